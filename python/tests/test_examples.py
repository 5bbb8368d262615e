"""Every example, as a user runs it, with fewer steps."""

import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
from programs import program

import rollway as rw

ROOT = pathlib.Path(__file__).parents[2]
STAND_IN = pathlib.Path(__file__).parent / "stand_in"


def environment(**more):
    return {**os.environ, "ROLLWAY_PYTHON": sys.executable, **more}


def rollway(*arguments):
    """Returns the words of a command."""
    return [program("ROLLWAY_BIN"), *arguments]


def run(*command, **more):
    """Runs a command to its end, from the root of the repository, and returns what it prints."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def start(*arguments):
    """Starts a command that serves, and waits for the line that says where it is."""
    process = subprocess.Popen(
        rollway(*arguments), cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if " at http" in line:
            return process, "http" + line.split(" at http")[1].split()[0]
    raise AssertionError(f"{arguments} ended with {process.wait()}")


def end(process):
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    process.stdout.close()
    assert process.wait(60) == 0


def summary(folder, name, file="summary.json"):
    return json.loads((folder / "examples" / name / file).read_text())


def test_tools(tmp_path):
    run(
        *rollway("run", "examples/tools.yaml", f"checkpoint_root_dir={tmp_path}"),
        "buffer.total_steps=3",
        "buffer.batch_size=6",
        "explorer.eval_interval=3",
    )
    final = summary(tmp_path, "tools")
    assert (final["mode"], final["steps"], final["tasks_failed"]) == ("both", 3, 0)
    # Two sums for every task at least, and one more for every carry.
    assert final["experiences_delivered"] >= 3 * 6 * 8 * 2


def test_the_pad_adds(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    tools = importlib.import_module("tools")
    for a, b in [(0, 0), (9999, 9999), (1234, 8766), (99, 1), (5050, 5050), (4950, 50)]:
        pad = tools.Pad(f"{a:04}", f"{b:04}")
        while (question := pad.question) is not None:
            one, other = question.rstrip("=").split("+")
            assert not pad.write("nonsense")
            assert pad.write(f"{int(one) + int(other):03}")
        assert int(pad.number) == a + b
    assert tools.calculate('{"operation": "multiply", "a": 6, "b": "7"}') == "42"
    assert tools.calculate('{"operation": "divide", "a": 6, "b": 7}').startswith("error")
    assert tools.calculate("[").startswith("error")


def test_an_agent_with_functions():
    printed = run(sys.executable, "examples/tools.py")
    questions, answers, used = map(int, re.findall(r"(\d+)", printed.splitlines()[-2])[:3])
    assert questions == 64 and used > 0 and answers == questions + used
    assert "0 runs failed" in printed


def test_an_external_server(tmp_path):
    fast = ["--first-token-seconds", "0", "--tokens-per-second", "0"]
    fast += ["--completion-tokens", "3-9"]
    process, url = start("mock-server", "openai", "--port", "0", *fast)
    try:
        printed = run(
            *rollway("run", "examples/external.yaml", f"checkpoint_root_dir={tmp_path}"),
            ROLLWAY_MODEL_URL=f"{url}/v1",
        )
    finally:
        end(process)
    assert "questions" in printed
    (final,) = summary(tmp_path, "external", "bench_summary.json")["evals"]
    assert (final["set"], final["finished"], final["failed"]) == ("questions", 64, 0)


def test_an_agent_elsewhere(tmp_path):
    where = [f"checkpoint_root_dir={tmp_path}", "explorer.proxy_port=0"]
    process, _ = start("run", "examples/serve/serve.yaml", *where)
    job = tmp_path / "examples" / "serve"
    try:
        printed = run(sys.executable, "examples/serve/agent.py", "--job", str(job), "--tasks", "10")
    finally:
        end(process)
    right = int(re.search(r"(\d+) of 10 were right; step 1 has 10 experiences", printed)[1])
    source = f"sqlite:///{job}/buffer/experience_buffer.db"
    with rw.ExperienceReader(source, batch_size=10, timeout=10) as reader:
        experiences = reader.read().experiences
    assert sum(one.reward for one in experiences) == right
    assert all(len(one.logprobs) == one.response_length > 0 for one in experiences)


def test_a_trainer_in_torch(tmp_path):
    """With torch itself if it is installed, else with a stand-in that is NumPy and a tape."""
    paths = [] if importlib.util.find_spec("torch") else [str(STAND_IN)]
    run(
        *rollway("run", "examples/torch_trainer.yaml", f"checkpoint_root_dir={tmp_path}"),
        "buffer.total_steps=24",
        "explorer.eval_interval=24",
        PYTHONPATH=os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
    )
    final = summary(tmp_path, "torch_trainer")
    assert (final["steps"], final["tasks_failed"]) == (24, 0)
    assert final["last_eval"] > final["first_eval"] + 0.15
    lines = (tmp_path / "examples" / "torch_trainer" / "torch_trainer.jsonl").read_text()
    steps = [json.loads(line) for line in lines.splitlines()]
    assert [step["step"] for step in steps] == list(range(1, 25))
    # What torch makes of the recorded tokens is what the model in Rust said when it drew them.
    assert max(step["drift"] for step in steps) < 1e-3


def test_tools_as_a_script_name_the_package_that_they_need():
    without = "import runpy, sys; sys.modules['openai'] = None"
    without += "; runpy.run_path('examples/tools.py', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", without], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "this example needs the package openai: pip install openai\n"


def test_hello():
    printed = run(sys.executable, "examples/hello.py")
    assert "10 of 10 tasks ended well" in printed


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda p: p.name)
def test_every_configuration_can_be_read(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    rw.Config.load(path).check()
