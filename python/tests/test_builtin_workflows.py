"""Workflows and reward functions that come with the package."""

import builtins
import sys

import pytest

import rollway as rw
from rollway.workflows import AGAIN, BOXED, MultiTurnWorkflow, SimpleWorkflow

ROW = {"prompt": "7", "response": "7"}


def run(workflow, repeat_times=1, model=None, mode="sequential", **fields):
    config = rw.Config()
    config.explorer.concurrent_mode = mode
    task = rw.Task(workflow=workflow, **{"raw_task": ROW, **fields})
    return rw.WorkflowRunner(config, model or rw.models.Echo()).run_task(task, repeat_times)


def reward(name, response, truth, **arguments):
    async def workflow(task, model):
        return (await rw.compute_reward(task, response))["reward"]

    raw = {"prompt": "p", "response": truth}
    status, _ = run(workflow, raw_task=raw, is_eval=True, reward_fn=name, reward_fn_args=arguments)
    assert status.ok, status.message
    return status.metrics[0]["reward"]


# Name, answer, what was expected, arguments, reward. The first eleven are judged alike in Rust.
JUDGED = [
    ("exact_match", " 042\n", "042", {}, 1),
    ("exact_match", "42", 42, {}, 1),
    ("exact_match", "PARIS", "Paris", {"ignore_case": True}, 1),
    ("exact_match", "<a>1</a><a> 2 </a>", "2", {"pattern": "<a>(.*?)</a>"}, 1),
    ("exact_match", "2", "2", {"pattern": "<a>(.*?)</a>"}, 0),
    ("contains", "It is Paris, of course", "Paris", {}, 1),
    ("exact_match", "12 - 5 is 007.", 7, {"take": "last_number"}, 1),
    ("exact_match", "$1,234.50!", "#### 1234.5", {"take": "last_number"}, 1),
    ("exact_match", "so: -3", "-3.0", {"take": "last_number"}, 1),
    ("exact_match", "so: 5-3", "-3", {"take": "last_number"}, 0),
    ("exact_match", "none", 7, {"take": "last_number"}, 0),
    ("math_reward", "so it is \\boxed{\\frac{1}{2}}.", "0.5", {}, 1),
    ("math_reward", "$x = 3$ or \\boxed{2\\sqrt{2}}", "\\sqrt{8}", {}, 1),
    ("math_reward", "The answer is \\boxed{12}", "13", {}, 0),
    ("math_reward", "I do not know", "13", {}, 0),
    ("math_reward", "It is 1,072.", "6 * 12 = 72, and 1000 #### 1,072", {}, 1),
    ("math_reward", "\\boxed{72}", "$72$", {"timeout": 2}, 1),
]


@pytest.mark.parametrize("case", JUDGED, ids=lambda case: f"{case[0]}: {case[1][:12]}")
def test_rewards(case):
    name, answer, truth, arguments, expected = case
    assert reward(name, answer, truth, **arguments) == expected


def strict(response, truth, *, prompt, task, scale=1):
    assert (prompt, task.raw_task["response"]) == ("p", truth)
    return {"right": float(response == truth) * scale, "brief": 0.5}


async def patient(chat, expected):
    return chat == expected


class Counting:
    def __init__(self, step):
        self.step = step

    def __call__(self, response, truth):
        return len(response) * self.step


def test_reward_functions_of_any_form():
    assert reward(strict, "a", "a", scale=3) == 3.5
    assert reward(patient, "a", "a") == 1.0
    assert reward(Counting, "abc", "a", step=2) == 6.0
    assert reward(lambda response: 0.25, "abc", "a") == 0.25
    rw.reward_fn("counting_by_name")(Counting)
    assert reward("counting_by_name", "ab", None, step=1) == 2.0
    assert reward("rollway.rewards:ExactMatch", "ab", "ab") == 1.0


# A reward function, its arguments, the expected answer, the kind of failure and words of it.
REFUSED = [
    (None, {}, "7", "workflow", "default_reward_fn_type"),
    ("exactmatch", {}, "7", "workflow", "did you mean `exact_match`?"),
    ("exact_match", {"patern": "x"}, "7", "workflow", "patern"),
    ("exact_match", {"pattern": "("}, "7", "workflow", "cannot be used"),
    ("exact_match", {}, None, "workflow", "response_key"),
    (strict, {"scal": 1}, "7", "workflow", "scal"),
    ("rollway.rewards:no_such", {}, "7", "workflow", "no_such"),
    (lambda response: "good", {}, "7", "invalid_output", "a finite number was expected"),
    (lambda response: float("nan"), {}, "7", "invalid_output", "a finite number was expected"),
    ("math_reward", {}, " ", "workflow", "not a mathematical expression"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[4])
def test_an_unrewardable_response_fails_the_run(case):
    reward_fn, arguments, truth, kind, fragment = case
    status, _ = run(
        "simple_workflow",
        raw_task={"prompt": "7", "response": truth},
        reward_fn=reward_fn,
        reward_fn_args=arguments,
    )
    assert status.failed_runs == {kind: 1} and fragment in status.message


def test_the_missing_checker_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "math_verify":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "math_verify", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    status, _ = run("math_workflow")
    assert "pip install rollway[math]" in status.message


@pytest.mark.parametrize("mode", ["sequential", "asynchronous", "multi-threading"])
def test_simple_workflow(mode):
    system = {"system_prompt": "Answer.", "prompt_key": "q", "response_key": "a"}
    status, experiences = run(
        "simple_workflow",
        2,
        mode=mode,
        raw_task={"q": "42 ", "a": 42},
        format_args=system,
        rollout_args={"max_tokens": 3},
        reward_fn="exact_match",
    )
    assert status.ok, status.message
    assert [one.reward for one in experiences] == [1.0, 1.0]
    first = experiences[0].messages[:2]
    assert first == [{"role": "system", "content": "Answer."}, {"role": "user", "content": "42 "}]
    assert status.metrics[0]["reward"] == 1.0


def test_messages_of_a_row_are_as_the_engine_makes_them():
    chat = [{"role": "system", "content": "S", "name": None}, {"role": "user", "content": "Q"}]
    plain = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    for row, format_args, expected in [
        ({"prompt": 12}, {}, [{"role": "user", "content": "12"}]),
        ({"m": chat}, {"messages_key": "m", "system_prompt": "other"}, plain),
        ({"m": '[{"role": "user", "content": "Q"}]'}, {"messages_key": "m"}, plain[1:]),
        ({"prompt": "Q", "s": "S"}, {"system_prompt_key": "s", "system_prompt": "x"}, plain),
        ({"prompt": plain}, {}, plain),
        ({"question": "Q"}, {}, []),
    ]:
        assert rw.Task(raw_task=row, format_args=format_args).messages == expected
    tools = rw.Task(raw_task={"t": '[{"type": "function"}]'}, format_args={"tools_key": "t"}).tools
    assert tools == [{"type": "function"}]
    with pytest.raises(ValueError, match="role"):
        _ = rw.Task(raw_task={"m": [{"content": "Q"}]}, format_args={"messages_key": "m"}).messages


def test_math_workflow_wants_the_answer_boxed():
    boxed = {"prompt": "\\boxed{\\frac{6}{4}}", "response": "1.5"}
    status, experiences = run("math_workflow", raw_task=boxed)
    assert status.ok, status.message
    assert experiences[0].reward == 1.0
    assert experiences[0].messages[0] == {"role": "system", "content": BOXED}
    # Where the checker cannot interrupt itself.
    status, experiences = run("math_workflow", mode="multi-threading", raw_task=boxed)
    assert status.ok and experiences[0].reward == 1.0
    own = {"system_prompt": "My own."}
    _, experiences = run("math_workflow", raw_task=boxed, format_args=own)
    assert experiences[0].messages[0]["content"] == "My own."


def count_up(response, reward, turn, messages, task):
    assert reward == 0.0 and messages[-1]["content"] == response
    return str(int(response) + 1) if turn < 5 else None


async def environment(response, turn):
    chat = {"role": "user", "content": f"{response}!"}
    return ([chat] if turn < 3 else None), turn / 2


# Arguments, reward function, how many turns there are, the reward, what the user said last.
TURNS = [
    ({}, "exact_match", "7", 1, 1.0, "7"),
    ({}, "exact_match", "8", 3, 0.0, AGAIN),
    ({"max_turns": 2, "feedback": "No: think."}, "exact_match", "8", 2, 0.0, "No: think."),
    ({"max_turns": 9, "feedback": count_up}, "exact_match", "9", 3, 1.0, "9"),
    ({"feedback": count_up, "turn_discount": 0.5}, "exact_match", "8", 2, 0.5, "8"),
    ({"max_turns": 9, "feedback": count_up}, "exact_match", "99", 5, 0.0, "11"),
    ({"max_turns": 9, "feedback": environment}, None, "x", 3, 1.5, "7!!"),
    ({"max_turns": 2, "feedback": environment}, None, "x", 2, 1.0, "7!"),
]


@pytest.mark.parametrize("case", TURNS)
def test_multi_turn_workflow(case):
    arguments, reward_fn, truth, turns, expected, last = case
    status, experiences = run(
        "multi_turn_workflow",
        raw_task={"prompt": "7", "response": truth},
        workflow_args=arguments,
        reward_fn=reward_fn,
    )
    assert status.ok, status.message
    metrics = status.metrics[0]
    assert (metrics["turns"], metrics["reward"]) == (turns, expected)
    assert {one.reward for one in experiences} == {expected}
    # The echo records every turn by itself; the last has all that was said.
    assert len(experiences) == turns
    assert experiences[-1].messages[-2]["content"] == last


def test_feedback_returns_no_reward_beside_a_reward_function():
    status, _ = run(
        "multi_turn_workflow",
        raw_task={"prompt": "7", "response": "9"},
        workflow_args={"feedback": environment},
        reward_fn="exact_match",
    )
    assert not status.ok
    assert "return the messages only, or configure no reward function" in status.message


def test_turns_on_a_server_are_one_chain(config):
    """And by name, in workers, through the gateway."""
    model = rw.models.MockServer(seed=3)
    tasks = [
        rw.Task(
            workflow="multi_turn_workflow",
            raw_task={"prompt": f"question {number}", "response": "x"},
            workflow_args={"max_turns": 3},
            reward_fn="exact_match",
            repeat_times=2,
        )
        for number in range(2)
    ]
    with rw.Scheduler(config, [model]) as scheduler:
        scheduler.schedule(tasks, batch_id=1)
        statuses, experiences = scheduler.get_results(1).result()
    assert [status.message for status in statuses] == [None, None]
    assert len(model.requests) == 12
    assert sum(one.info["turns"] for one in experiences) == 12
    assert all(status.metrics[0]["turns"] == 3.0 for status in statuses)


def test_workflows_can_be_made_of_them():
    class Shouting(SimpleWorkflow):
        default_reward_fn = "exact_match"

        def format_messages(self):
            return [
                {**message, "content": message["content"].upper()}
                for message in super().format_messages()
            ]

    status, experiences = run(Shouting, raw_task={"prompt": "abc", "response": "ABC"})
    assert status.ok and experiences[0].reward == 1.0

    class Kind(SimpleWorkflow):
        async def compute_reward(self, reply):
            return {"reward": 0.75, "length": len(reply.text)}

    status, experiences = run(Kind)
    assert (experiences[0].reward, status.metrics[0]["length"]) == (0.75, 1.0)

    class Twice(MultiTurnWorkflow):
        async def feedback(self, reply, turn, messages):
            return ("more" if turn < 2 else None), {"reward": 0.25 * turn}

    status, experiences = run(Twice)
    assert status.metrics[0]["reward"] == 0.5 and len(experiences) == 2


def test_a_dictionary_is_a_reward_with_metrics():
    async def workflow(task, model):
        await model.chat(task.messages)
        return task.workflow_args["returned"]

    for is_eval in (False, True):
        given = {"returned": {"reward": 2, "depth": 3}}
        status, experiences = run(workflow, workflow_args=given, is_eval=is_eval)
        assert (status.metrics[0]["reward"], status.metrics[0]["depth"]) == (2.0, 3.0)
        assert [one.reward for one in experiences] == ([] if is_eval else [2.0])
    for returned in ({"depth": 3}, {"reward": "much"}):
        status, _ = run(workflow, workflow_args={"returned": returned})
        assert status.failed_runs == {"invalid_output": 1}
