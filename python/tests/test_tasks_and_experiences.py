"""Tasks, experiences and their ids."""

import json
import pickle

import numpy as np
import pytest

import rollway as rw


def test_ids():
    eid = rw.EID(batch=3, task=1, run=2, step=4, suffix="abcdef")
    assert str(eid) == eid.uid == "3/1/2/4/abcdef"
    assert (eid.tid, eid.rid, eid.sid) == ("3/1", "3/1/2", "3/1/4")
    assert rw.EID(**eid.to_dict()) == eid
    assert len(rw.EID().suffix) == 6 and rw.EID().suffix != rw.EID().suffix


def sample(**fields):
    return rw.Experience(**{"tokens": [1, 2, 3, 4], "prompt_length": 2, **fields})


def test_a_single_turn():
    experience = sample(logprobs=[-0.5, -1], reward=1)
    assert experience.kind == "single_turn"
    assert experience.tokens.dtype == np.int32 and experience.logprobs.dtype == np.float32
    assert experience.action_mask.tolist() == [True, True]
    assert experience.reward == 1.0 and experience.response_length == 2
    assert experience.info == {} and experience.metrics == {}


def test_a_turn_with_a_truncated_prompt_trains_nothing():
    experience = rw.Experience(
        tokens=[1, 2, 3], prompt_length=3, truncate_status="prompt_truncated", logprobs=[0, 0]
    )
    assert experience.action_mask.tolist() == [False, False]


def test_several_turns_and_preferences():
    assert sample(action_mask=[True, False]).kind == "multi_turn"
    pair = rw.Experience(tokens=[1, 2], chosen=[3], rejected=[4, 5])
    assert (pair.kind, pair.prompt_length) == ("dpo", 2)
    chosen, rejected = pair.split_dpo()
    assert chosen.tokens.tolist() == [1, 2, 3] and rejected.tokens.tolist() == [1, 2, 4, 5]
    assert chosen.kind == "single_turn" and chosen.eid.suffix != rejected.eid.suffix


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt_length": 0}, "prompt_length must be at least 1"),
        ({"prompt_length": 4}, "there is no response"),
        ({"logprobs": [0.0]}, "logprobs has 1 values, but the response has 2"),
        ({"action_mask": [True]}, "action_mask has 1 values"),
        ({"tokens": [[1, 2]]}, "one dimension"),
        ({"tokens": ["a", "b", "c"]}, "cannot be an array of"),
        ({"tokens": [1, 2, 2**40]}, "do not fit into 32 bits"),
        ({"tokens": [0.5, 1, 2]}, "cannot be an array of float64"),
        ({"truncate_status": "both"}, "truncate_status is"),
        ({"eid": "1/2"}, "eid is an EID or a dictionary"),
        ({"kind": "tree"}, "kind is single_turn"),
        ({"model_versions": [(1, 1)]}, "about 1 tokens, but the response has 2"),
        ({"model_versions": [(1, 0)]}, "not a pair of a version"),
        ({"custom_fields": [("a", "b", "text")]}, "'text' is not a type"),
    ],
)
def test_invalid_experiences_are_refused_with_a_reason(fields, words):
    with pytest.raises(ValueError, match=words):
        sample(**fields)


def test_arrays_come_as_they_are_or_are_converted():
    tokens = np.arange(6, dtype=np.int64)[::2]
    experience = rw.Experience(tokens=tokens, logprobs=np.zeros(2, np.float64))
    assert experience.tokens.tolist() == [0, 2, 4] and experience.logprobs.dtype == np.float32


def full():
    return sample(
        eid=rw.EID("3/eval", 7, 1, 2, "abc123"),
        logprobs=[-0.5, -1.5],
        reward=0.25,
        action_mask=[True, False],
        token_level_reward=[0, 1],
        advantages=[1, 2],
        returns=[3, 4],
        teacher_logprobs=[-1, -2],
        messages=[{"role": "user", "content": "häß"}],
        tools=[{"name": "f"}],
        prompt_text="p",
        response_text="r",
        info={"a": [1, {"b": None}], "n": np.int64(3), "v": np.ones(2)},
        metrics={"reward": np.float32(0.5)},
        truncate_status="response_truncated",
        multi_modal_inputs={"image": np.arange(12, dtype=np.uint8).reshape(2, 2, 3)},
        custom_fields=[("a", "judge", "float32"), ("n", "count", np.int64)],
        model_versions=[(None, 1), (4, 1)],
    )


def test_payloads_round_trip():
    pair = rw.Experience(tokens=[1, 2], chosen=[3], rejected=[4, 5])
    many = [full(), sample(), pair]
    back = rw.Experience.deserialize_many(rw.Experience.serialize_many(many))
    assert back[1:] == many[1:]
    one = full()
    one.info.update(n=3, v=[1.0, 1.0])
    one.metrics["reward"] = 0.5
    assert back[0] == one
    assert back[0].custom_fields[1] == rw.CustomField("n", "count", "int64")
    assert back[0].model_versions == [(None, 1), (4, 1)]
    assert back[1].custom_fields == [] and back[1].model_versions is None
    assert [experience.kind for experience in back] == ["multi_turn", "single_turn", "dpo"]
    assert rw.Experience.deserialize(full().serialize()).eid == full().eid
    assert rw.Experience.deserialize_many(rw.Experience.serialize_many([])) == []
    assert pickle.loads(pickle.dumps(sample(reward=1))).reward == 1.0


def test_payloads_that_are_none_are_refused():
    whole = rw.Experience.serialize_many([full()])
    cut = [b"", b"nonsense" * 10, whole[:-1], whole + b"x", pickle.dumps([1])]
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    for payload in (*cut, bytes(damaged)):
        with pytest.raises(rw.InvalidPayload):
            rw.Experience.deserialize_many(payload)
    with pytest.raises(ValueError, match="one experience was expected, there are 2"):
        rw.Experience.deserialize(rw.Experience.serialize_many([sample(), sample()]))
    with pytest.raises(ValueError, match="info cannot be written as JSON"):
        sample(info={"x": object()}).serialize()


def test_the_readable_form_has_no_arrays():
    shown = full().to_dict()
    assert shown["type"] == "multi_turn" and shown["response_length"] == 2
    assert shown["eid"]["task"] == 7 and "tokens" not in shown
    assert "reward" not in sample().to_dict()


def test_groups():
    runs = [sample(eid={"batch": 1, "task": t, "run": r}) for t, r in [(0, 0), (1, 0), (0, 1)]]
    assert list(rw.group_by(runs, "task")) == ["1/0", "1/1"]
    assert [len(group) for group in rw.group_by(runs, "run").values()] == [1, 1, 1]
    with pytest.raises(ValueError, match="cannot group by 'day'"):
        rw.group_by(runs, "day")


def test_tasks():
    task = rw.Task(raw_task={"q": "1+1", "a": "2"}, format_args={"prompt_key": "q"})
    assert task and not isinstance(task, dict)
    assert task.repeat_times == 1 and task.is_eval is False
    assert task.task_desc == "1+1" and task.truth is None
    assert rw.Task().workflow_args is not rw.Task().workflow_args
    sampled = rw.Task(rollout_args=rw.GenerationConfig(temperature=0.5, n=3))
    assert sampled.rollout_args == {"temperature": 0.5, "n": 3}
    assert sampled.with_n(1).rollout_args["n"] == 1 and sampled.rollout_args["n"] == 3
    with pytest.raises(TypeError, match="workflow_args is a dictionary"):
        rw.Task(workflow_args=[1])


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, -2.5, 1e300, 5e-324, 1e16, True, False, None, {}, []], "": {"b": {"c": "d"}}},
        {"text": 'quotes " and \\ and / and \n\t\x00\x1f and häß 😀 \u2028'},
        # What is left to Python: large numbers, other types, and what is nested deeply.
        {"large": 2**70, "tuple": (1, 2)},
        {"deep": [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]},
    ],
)
def test_info_is_read_back_as_it_was_written(value):
    back = rw.Experience.deserialize(sample(info=value, messages=[value]).serialize())
    expected = json.loads(json.dumps(value))
    assert back.info == expected and back.messages == [expected]


def test_info_that_json_does_not_have_is_refused():
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="info cannot be written as JSON"):
            sample(info={"x": value}).serialize()
