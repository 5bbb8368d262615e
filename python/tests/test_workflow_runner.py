"""One runner by hand: what workflows may return and do, and what becomes of it."""

import asyncio
import importlib
import signal
import sys
import threading

import numpy as np
import pytest

import rollway as rw

QUESTION = [{"role": "user", "content": "2"}]


def experience(**fields):
    return rw.Experience(tokens=[1, 2, 3], prompt_length=1, **fields)


def runner(mode="sequential", model=None):
    config = rw.Config()
    config.explorer.concurrent_mode = mode
    return rw.WorkflowRunner(config, model or rw.models.Echo())


def run(workflow, repeat_times=1, run_id_base=0, mode="sequential", **fields):
    task = rw.Task(workflow=workflow, **fields)
    task.batch_id, task.task_id = 5, 2
    return runner(mode).run_task(task, repeat_times, run_id_base)


def returns(value):
    async def workflow(task, model):
        await model.chat(QUESTION)
        return value() if callable(value) else value

    return workflow


def raises(error):
    async def workflow(task, model):
        raise error

    return workflow


def blocking(task, model):
    return float(model.chat(QUESTION).text)


def exits(task, model):
    sys.exit("bye")


class Refused(ConnectionRefusedError):
    pass


# What a workflow does, how many of 2 runs complete, experiences, failures by kind, words.
ENDINGS = {
    "a list": (returns(lambda: [experience(), experience()]), 2, 4, {}, None),
    "one experience": (returns(experience), 2, 2, {}, None),
    "a reward": (returns(2.5), 2, 2, {}, None),
    "a bool": (returns(np.bool_(True)), 2, 2, {}, None),
    "nothing, with recorded turns": (returns(None), 2, 2, {}, None),
    "blocking code": (blocking, 2, 2, {}, None),
    "an empty list": (returns(list), 0, 0, {"invalid_output": 2}, "returned no experiences"),
    "rubbish": (returns("rubbish"), 0, 0, {"invalid_output": 2}, "an object of type str"),
    "rubbish in a list": (returns([1]), 0, 0, {"invalid_output": 2}, "list with an object of type"),
    "NaN": (returns(float("nan")), 0, 0, {"invalid_output": 2}, "the reward nan is not a finite"),
    "infinity": (returns(float("-inf")), 0, 0, {"invalid_output": 2}, "the reward -inf is not"),
    "a huge reward": (
        returns(lambda: [experience(), experience(reward=1e39)]),
        0,
        0,
        {"invalid_output": 2},
        "the reward 1e+39 is not a finite 32-bit number",
    ),
    "the reward of a token": (
        returns(lambda: [experience(token_level_reward=[0.5, float("nan")])]),
        0,
        0,
        {"invalid_output": 2},
        "token_level_reward is nan at 1: it is not finite",
    ),
    "an exception": (raises(KeyError("no")), 0, 0, {"workflow": 2}, "KeyError: 'no'"),
    "no connection": (raises(Refused("gone")), 0, 0, {"model_unavailable": 2}, "Refused: gone"),
    "no model": (raises(rw.ModelUnavailable("x")), 0, 0, {"model_unavailable": 2}, "x"),
    "sys.exit": (exits, 0, 0, {"workflow": 2}, "SystemExit: bye"),
    "own cancellation": (
        raises(asyncio.CancelledError()),
        0,
        0,
        {"workflow": 2},
        "cancelled itself",
    ),
    "an unknown name": ("no_such_one", 0, 0, {"workflow": 2}, "unknown workflow"),
    "a missing module": ("no.such:one", 0, 0, {"workflow": 2}, "No module named 'no'"),
    "no workflow": (None, 0, 0, {"workflow": 2}, "has no workflow"),
}


@pytest.mark.parametrize("mode", ["sequential", "asynchronous", "multi-threading"])
@pytest.mark.parametrize("name", ENDINGS)
def test_endings(name, mode):
    if name == "own cancellation" and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 cannot tell who cancelled")
    workflow, completed, count, failed, words = ENDINGS[name]
    status, experiences = run(workflow, 2, mode=mode)
    assert (status.completed_runs, status.total_runs) == (completed, 2)
    assert len(experiences) == count and status.failed_runs == failed
    assert status.ok == (completed == 2)
    if words is None:
        assert status.message is None
        assert [set(run) >= {"time/run_execution"} for run in status.metrics] == [True] * 2
    else:
        assert status.message.startswith("0/2 runs completed successfully. First error: ")
        assert words in status.message
        assert len(status.metrics) == 1 and set(status.metrics[0]) == {"time/run_execution"}


@pytest.mark.parametrize("mode", ["sequential", "asynchronous", "multi-threading"])
def test_a_run_without_experience_fails_alone(mode):
    async def workflow(task, model):
        run = importlib.import_module("rollway.stages").current().run
        return [experience()] if run else []

    status, experiences = run(workflow, 3, mode=mode)
    assert (status.completed_runs, status.failed_runs) == (2, {"invalid_output": 1})
    assert [one.eid.run for one in experiences] == [1, 2]


def test_stamps():
    async def workflow(task, model):
        own = experience(eid={"task": "mine", "step": 3}, info={"a": 1})
        return [experience(metrics={"x": 1.0}), own]

    status, (first, second) = run(workflow, run_id_base=4, index={"index": 9})
    assert (first.eid.batch, first.eid.task, first.eid.run) == (5, 2, 4)
    assert (second.eid.task, second.eid.run, second.eid.step) == (2, 4, 3)
    assert second.info["sub_task"] == "mine" and "sub_task" not in first.info
    assert first.info == {"model_version": 0, "use_count": 0, "task_index": {"index": 9}}
    assert second.info["a"] == 1
    assert status.metrics[0]["x"] == 1.0 and status.metrics[0]["time/run_execution"] >= 0


def test_a_reward_goes_to_every_recorded_turn():
    async def workflow(task, model):
        await model.chat(QUESTION)
        await model.generate("b")
        return 0.5

    status, turns = run(workflow, 2)
    assert [(turn.reward, turn.eid.run) for turn in turns] == [
        (0.5, 0),
        (0.5, 0),
        (0.5, 1),
        (0.5, 1),
    ]
    assert turns[0].response_text == "2" and turns[0].messages[-1]["content"] == "2"
    assert [metrics["reward"] for metrics in status.metrics] == [0.5, 0.5]


def test_eval_returns_metrics_only_and_needs_no_experiences():
    async def workflow(task, model):
        return 1.0

    status, experiences = run(workflow, 2, is_eval=True)
    assert status.ok and experiences == []
    assert [metrics["reward"] for metrics in status.metrics] == [1.0, 1.0]


def test_a_reward_without_recorded_turns_is_nothing_to_train_on():
    async def workflow(task, model):
        return 1.0

    status, _ = run(workflow)
    assert status.failed_runs == {"invalid_output": 1}
    assert "no turn of the model was recorded" in status.message


def test_good_runs_survive_bad_ones():
    calls = []

    async def workflow(task, model):
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("second")
        return experience()

    status, experiences = run(workflow, 3, run_id_base=10)
    assert status.message.startswith("2/3 runs completed successfully. First error: workflow: Val")
    assert [one.eid.run for one in experiences] == [10, 12]
    assert len(status.metrics) == 2


class Resettable(rw.Workflow):
    can_reset = True
    made = 0

    def __init__(self, *, task, model, auxiliary_models=None):
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        type(self).made += 1

    def reset(self, task):
        """Forgets to take the task, as one easily does."""

    async def run_async(self):
        return experience(metrics={"temperature": self.rollout_args.get("temperature", -1)})


def test_reset_gives_the_new_task_and_never_old_arguments():
    Resettable.made = 0
    one = runner()

    def seen(**fields):
        status, _ = one.run_task(rw.Task(workflow=Resettable, **fields), 2)
        return [metrics["temperature"] for metrics in status.metrics], Resettable.made

    assert seen(raw_task=1) == ([-1, -1], 1)
    assert seen(raw_task=2) == ([-1, -1], 1)
    assert seen(rollout_args={"temperature": 0.5}) == ([0.5, 0.5], 2)
    assert seen(raw_task=3) == ([-1, -1], 3)


def test_an_instance_that_failed_is_not_used_again():
    class Fragile(Resettable):
        made = 0

        async def run_async(self):
            if self.task.raw_task == "bad":
                raise ValueError
            return experience()

    one = runner()
    one.run_task(rw.Task(workflow=Fragile, raw_task="bad"))
    one.run_task(rw.Task(workflow=Fragile, raw_task="good"), 2)
    assert Fragile.made == 2


class Repeatable(rw.Workflow):
    can_repeat = True

    async def run_async(self):
        assert self.task.rollout_args["n"] == self.repeat_times
        how = self.task.raw_task
        many = [experience() for _ in range(self.repeat_times)]
        if how != "unnumbered":
            for index, one in enumerate(many):
                one.eid.run = self.run_id_base + index
        if how == "short":
            many.pop()
        if how == "wrong":
            many[0].eid.run = 99
        return many


@pytest.mark.parametrize(
    ("how", "runs", "failed"),
    [
        ("numbered", [3, 4, 5], {}),
        ("unnumbered", [3, 4, 5], {}),
        ("short", [3, 4], {"invalid_output": 1}),
        ("wrong", [], {"invalid_output": 3}),
    ],
)
def test_repeatable_workflows_answer_for_every_run(how, runs, failed):
    status, experiences = run(Repeatable, 3, 3, raw_task=how)
    assert [one.eid.run for one in experiences] == runs
    assert status.failed_runs == failed and status.completed_runs == len(runs)


def test_workflows_that_cannot_repeat_sample_once_a_run():
    async def workflow(task, model):
        replies = await model.chat(QUESTION, **task.rollout_args)
        return [replies.experience]

    status, experiences = run(workflow, 3, rollout_args={"n": 8, "temperature": 1})
    assert status.ok and len(experiences) == 3


@pytest.mark.parametrize("mode", ["asynchronous", "multi-threading"])
def test_runs_at_once_have_their_own_history(mode):
    meeting = threading.Barrier(3) if mode == "multi-threading" else None
    event = asyncio.Event()
    arrived = []

    async def workflow(task, model):
        mine = str(id(model))
        await model.chat([{"role": "user", "content": mine}])
        if meeting:
            meeting.wait(10)
        else:
            arrived.append(1)
            if len(arrived) == 3:
                event.set()
            await asyncio.wait_for(event.wait(), 10)
        turns = model.extract_experience_from_history()
        assert [turn.response_text for turn in turns] == [mine]
        return turns

    status, experiences = run(workflow, 3, mode=mode)
    assert status.ok, status.message
    assert [one.eid.run for one in experiences] == [0, 1, 2]


def test_the_state_names_the_absolute_run():
    one = runner()
    assert one.state["workflow_id"] is None and one.state["begin_time"] == 0
    seen = []

    async def workflow(task, model):
        model.set_workflow_state({"stage": "thinking"})
        seen.append(one.state)
        return experience()

    task = rw.Task(workflow=workflow)
    task.batch_id, task.task_id = "3/x", 1
    one.run_task(task, 2, run_id_base=4)
    assert [state["workflow_id"] for state in seen] == ["3/x/1/4", "3/x/1/5"]
    assert seen[0]["stage"] == "thinking" and seen[0]["terminate_time"] is None
    assert seen[1]["begin_time"] > seen[0]["begin_time"] > 0, "it is per run"
    assert one.state["stage"] == "thinking", "it stays visible after the run"
    assert one.state["terminate_time"] >= one.state["begin_time"] > 0


async def test_it_can_be_used_in_an_event_loop():
    status, _ = runner().run_task(rw.Task(workflow=returns(1.0)))
    assert status.ok
    status, _ = await runner().run_task_async(rw.Task(workflow=returns(1.0)))
    assert status.ok


def test_auxiliary_models_and_the_openai_client():
    pytest.importorskip("openai")

    async def workflow(task, model, auxiliary_models):
        (judge,) = auxiliary_models
        reply = await judge.chat([{"role": "user", "content": "judge"}])
        assert reply.text == "judge" and judge.model_version == 7
        answer = await model.async_openai_client().chat.completions.create(
            model="echo", messages=QUESTION
        )
        return float(answer.choices[0].message.content)

    hand = rw.WorkflowRunner(rw.Config(), rw.models.Echo(), [rw.models.Echo(model_version=7)])
    status, (turn,) = hand.run_task(rw.Task(workflow=workflow))
    assert status.ok, status.message
    assert turn.reward == 2.0 and turn.response_text == "2"


def test_a_server_that_is_not_there_is_no_fault_of_the_workflow():
    config, model = rw.Config(), rw.models.OpenAI("http://127.0.0.1:9/v1", model="m")
    config.explorer.max_timeout = 1

    async def workflow(task, model):
        return (await model.chat(QUESTION)).text

    status, _ = rw.WorkflowRunner(config, model).run_task(rw.Task(workflow=workflow))
    assert status.failed_runs == {"model_unavailable": 1}
    assert "no response from model m" in status.message


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="concurrent_mode is one of"):
        runner("parallel")


@pytest.mark.parametrize("mode", ["sequential", "asynchronous"])
def test_an_exit_by_a_signal_handler_is_no_failure_of_the_workflow(mode):
    """As in an actor of Ray, whose handler of SIGTERM exits within what the process executes."""

    async def workflow(task, model):
        signal.raise_signal(signal.SIGTERM)
        return [experience()]

    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        with pytest.raises(SystemExit):
            run(workflow, mode=mode)
    finally:
        signal.signal(signal.SIGTERM, before)
