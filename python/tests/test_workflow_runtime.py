"""Workers that an engine without Python starts: how they are set up, and what is checked before.

The engine is a small program of this repository that runs one batch of a configuration.
"""

import json
import subprocess
import sys

import pytest
from programs import program

import rollway as rw

ROWS = [
    {"question": "12+34=", "answer": "046", "tags": ["é", None], "hard": True},
    {"question": "50+07=", "answer": "057", "tags": [], "hard": False},
]

OWN = """
import os
import rollway as rw

@rw.workflow
async def solve(task, model):
    reply = await model.chat([{"role": "user", "content": task.raw_task["question"]}], max_tokens=5)
    model.set_workflow_state({"said": reply.text})
    assert task.format_args["prompt_key"] == "question" and task.workflow_args == {"depth": 2}
    assert os.environ["FLAVOUR"] == "plain" and task.batch_id in ("train", "eval")
    return {**await rw.compute_reward(task, reply.text), "tags": len(task.raw_task["tags"])}

def blocking(task, model):
    return float(model.chat(task.messages, max_tokens=5).text.isdigit())

@rw.reward_fn
def digits(response, truth, bonus=0.0):
    return {"digits": float(response.strip().isdigit()), "bonus": bonus}

async def judged(response, truth, auxiliary_models):
    (judge,) = auxiliary_models
    reply = await judge.chat([{"role": "user", "content": f"Is {response} {truth}?"}])
    return 0.25 if judge.name == "judge" and reply.text else 0.0

def again(response, reward, turn, task):
    return "+01="
"""


def job(folder, explorer=None, **given):
    """Writes a configuration with its tasks and a module beside it; returns its path."""
    (folder / "own_flows.py").write_text(OWN)
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    sets = {
        "path": str(folder / "sums.jsonl"),
        "format": {"prompt_key": "question", "response_key": "answer"},
        "rollout_args": {"max_tokens": 5},
        **given.pop("set", {}),
    }
    config = {
        "mode": "explore",
        "checkpoint_root_dir": str(folder / "jobs"),
        "algorithm": {"repeat_times": 2},
        "buffer": {
            "batch_size": 2,
            "explorer_input": {"taskset": sets, "eval_tasksets": [{**sets, "name": "e"}], **given},
        },
        "explorer": {
            "python": sys.executable,
            "rollout_model": {"engine_type": "tiny"},
            "runner_per_model": 2,
            "max_retry_times": 0,
            "env_vars": {"FLAVOUR": "plain"},
            **(explorer or {}),
        },
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(config))
    return path


def run(path):
    """Runs a batch elsewhere than where the configuration is; returns the program's end."""
    cwd = path.parent / "elsewhere"
    cwd.mkdir(exist_ok=True)
    # A folder of that name where the job is started is not the package.
    (cwd / "rollway").mkdir(exist_ok=True)
    (cwd / "rollway" / "__init__.py").write_text("raise ImportError('not this one')")
    return subprocess.run(
        [program("ROLLWAY_FLOWS_BIN"), str(path)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


def results(path):
    ended = run(path)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("mode", ["sequential", "asynchronous", "multi-threading"])
def test_own_workflows_get_everything_that_a_task_has(tmp_path, mode):
    job_results = results(
        job(
            tmp_path,
            {"concurrent_mode": mode},
            default_workflow_type="own_flows:solve",
            default_reward_fn_type="own_flows:digits",
            set={"workflow_args": {"depth": 2}, "reward_fn_args": {"bonus": 0.5}},
        )
    )
    train, evals = job_results["train"], job_results["eval"]
    assert [status["message"] for status in train["statuses"] + evals["statuses"]] == [None] * 4
    runs = {(one["eid"]["task"], one["eid"]["run"]) for one in train["experiences"]}
    assert len(train["experiences"]) == 4 and runs == {(0, 0), (0, 1), (1, 0), (1, 1)}
    for one in train["experiences"]:
        texts = one["response_text"].strip()
        assert one["reward"] == float(texts.isdigit()) + 0.5
        assert one["info"]["task_index"] == {"index": one["eid"]["task"], "taskset_id": 0}
    assert [status["metrics"]["tags"] for status in train["statuses"]] == [2.0, 0.0]
    assert [status["metrics"]["bonus"] for status in train["statuses"]] == [0.5, 0.5]
    assert evals["experiences"] == []
    assert all(status["metrics"]["reward/mean@1"] >= 0.5 for status in evals["statuses"])


def test_a_chain_of_turns_is_one_experience(tmp_path):
    job_results = results(
        job(
            tmp_path,
            default_workflow_type="multi_turn_workflow",
            default_reward_fn_type="exact_match",
            set={
                "workflow_args": {"max_turns": 3, "feedback": "own_flows:again", "stop_at": 2},
                "reward_fn_args": {"take": "last_number"},
            },
        )
    )
    train = job_results["train"]
    assert [status["message"] for status in train["statuses"]] == [None] * 2
    assert [status["metrics"]["turns"] for status in train["statuses"]] == [3.0] * 2
    assert len(train["experiences"]) == 4
    for one in train["experiences"]:
        assert one["info"]["turns"] == 3 and one["reward"] in (0.0, 1.0)
        texts = [message["content"] for message in one["messages"] if message["role"] == "user"]
        assert texts[1:] == ["+01=", "+01="]


def test_rows_may_name_their_own(tmp_path):
    path = job(
        tmp_path,
        default_workflow_type="simple_workflow",
        default_reward_fn_type="exact_match",
        set={"format": {"prompt_key": "question", "response_key": "answer", "workflow_key": "w"}},
    )
    rows = [{**ROWS[0], "w": "own_flows:blocking"}, {**ROWS[1], "w": "no_such_one"}]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    good, bad = results(path)["train"]["statuses"]
    assert good["completed"] == 2
    assert bad["failed"] == {"workflow": 2} and "no_such_one" in bad["message"]


def test_other_models_are_found_by_name(tmp_path):
    simulated = {"engine_type": "echo"}
    job_results = results(
        job(
            tmp_path,
            {"rollout_model": simulated, "auxiliary_models": [{**simulated, "name": "judge"}]},
            default_workflow_type="math_workflow",
            default_reward_fn_type="own_flows:judged",
        )
    )
    train = job_results["train"]
    assert [status["message"] for status in train["statuses"]] == [None] * 2
    assert len(train["experiences"]) == 4
    for one in train["experiences"]:
        # What the judge said is not among it.
        assert one["info"]["turns"] == 1 and one["reward"] == 0.25
        assert [message["role"] for message in one["messages"]] == ["system", "user", "assistant"]


# What is named, what is written beside it, and the words that are said.
WRONG = {
    "no module": (
        {"default_workflow_type": "own_flow:solve"},
        ["there is no module `own_flow`", "did you mean `own_flows`?", sys.executable],
    ),
    "no such function": (
        {"default_workflow_type": "own_flows:sovle"},
        ["has no workflow `sovle`", "did you mean `own_flows:solve`?"],
    ),
    "no such name beside a module": (
        {"default_workflow_type": "own_flows:solve", "default_reward_fn_type": "digit"},
        ["unknown reward function `digit`", "did you mean `digits`?"],
    ),
    "an import that fails": (
        {"default_workflow_type": "torn:solve"},
        ["`torn:solve` could not be imported", "ZeroDivisionError", "torn.py"],
    ),
    "a module that lacks another": (
        {"default_workflow_type": "poor:solve"},
        ["`poor:solve` could not be imported", "No module named 'no_such_package'"],
    ),
    "bad syntax": (
        {"default_workflow_type": "typo:solve"},
        ["`typo:solve` could not be imported", "SyntaxError", "typo.py"],
    ),
    "a class without a method": (
        {"default_workflow_type": "own_flows:Empty"},
        ["Empty has no run(): define `async def run_async(self)`"],
    ),
    "no workflow at all": (
        {"default_workflow_type": "own_flows:OWN"},
        ["a workflow is a class, a function"],
    ),
    "arguments": (
        {
            "default_workflow_type": "multi_turn_workflow",
            "default_reward_fn_type": "exact_match",
            "set": {"workflow_args": {"max_turns": 0}},
        },
        ["max_turns is a number of at least 1, not 0"],
    ),
    "no reward function": (
        {"default_workflow_type": "simple_workflow", "default_reward_fn_type": "own_flows:OWN"},
        ["a reward function is a function, a class"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_workflows_are_reported_before_the_start(tmp_path, name):
    given, words = WRONG[name]
    (tmp_path / "torn.py").write_text("print('noise')\nrate = 1 / 0\n")
    (tmp_path / "poor.py").write_text("import no_such_package\n")
    (tmp_path / "typo.py").write_text("def solve(:\n")
    given = dict(given)
    path = job(tmp_path, **given)
    empty = "class Empty(rw.Workflow):\n    pass\n"
    (tmp_path / "own_flows.py").write_text(f"{OWN}\nOWN = 3\n\n\n{empty}")
    ended = run(path)
    assert ended.returncode == 1 and ended.stdout == ""
    for word in words:
        assert word in ended.stderr, ended.stderr
    # Said once, although two sets name it.
    assert ended.stderr.count(words[0]) == 1


def test_a_python_without_the_package_is_named(tmp_path):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    python = bare / "bin" / "python"
    path = job(tmp_path, {"python": str(python)}, default_workflow_type="own_flows:solve")
    ended = run(path)
    assert ended.returncode == 1
    assert f"{python} (Python 3." in ended.stderr and "has no package `rollway`" in ended.stderr
    assert f"the wheel of rollway {rw.__version__}" in ended.stderr
    assert "pip install rollway" not in ended.stderr
    assert "explorer.python" in ended.stderr and "ROLLWAY_PYTHON" in ended.stderr
