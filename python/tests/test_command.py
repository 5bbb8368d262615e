"""The `rollway` command that is installed with the package."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import rollway as rw

JOB = """
mode: explore
name: command
synchronizer: {trainer_join_timeout: 0.1}
explorer:
  rollout_model: {engine_type: echo}
  runner_per_model: 1
buffer:
  batch_size: 1
  total_steps: 1
  explorer_input:
    taskset:
      name: sums
      path: tasks.jsonl
      format: {prompt_key: question, response_key: answer}
    default_workflow_type: flows:interpreter
"""

WORKFLOW = """
import sys
import rollway as rw

@rw.workflow
async def interpreter(task, model):
    open("interpreter", "w").write(sys.executable)
    await model.chat([{"role": "user", "content": task.raw_task["question"]}])
    return 1.0
"""


def run(*arguments, **more):
    command = Path(sys.executable).with_name("rollway")
    environment = {name: text for name, text in os.environ.items() if name != "ROLLWAY_PYTHON"}
    return subprocess.run(
        [command, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **more,
    )


def test_version_and_usage_errors():
    done = run("--version")
    assert (done.returncode, done.stdout.split()) == (0, ["rollway", rw.__version__])
    done = run("imitate")
    assert done.returncode == 2
    assert "renamed to `rollway mock-server`" in done.stderr
    assert json.loads(run("schema").stdout)["type"] == "object"


def test_debug_warns_of_a_run_without_a_reward(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "tasks.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    for returned, is_warned in (("return 1.0", False), ("return None", True)):
        (tmp_path / "flows.py").write_text(WORKFLOW.replace("return 1.0", returned))
        done = run("debug", "job.yaml", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert ("warning: the run has no reward" in done.stderr) == is_warned, done.stderr


def test_job_runs_in_the_interpreter_of_the_command(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "flows.py").write_text(WORKFLOW)
    (tmp_path / "tasks.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    done = run("run", "job.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "interpreter").read_text() == sys.executable


def test_written_job_runs_with_the_embedded_model_and_with_a_server(tmp_path):
    """`rollway init`: both job files run as they were written, but for the number of steps."""
    assert run("init", "first", cwd=tmp_path).returncode == 0
    folder = tmp_path / "first"
    for file in ("job.yaml", "server.yaml"):
        done = run("check", file, cwd=folder)
        assert (done.returncode, done.stderr) == (0, f"{file}: valid\n")
    small = ("buffer.total_steps=2", "buffer.batch_size=4", "explorer.runner_per_model=2")
    done = run("run", "job.yaml", *small, cwd=folder)
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "checkpoints/tutorial/first/summary.json").read_text())
    assert (summary["trained_steps"], summary["evals"][0]["finished"]) == (2, 200)
    server = rw.models.MockServer()
    address = f"explorer.rollout_model.base_url={server.base_url}"
    # Twice: the trainer resumes at its step.
    for steps in ("buffer.total_steps=2", "buffer.total_steps=3"):
        done = run("run", "server.yaml", *small[1:], steps, address, cwd=folder)
        assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "checkpoints/tutorial/first-server/summary.json").read_text())
    assert (summary["steps"], summary["version"]) == (3, 3)


SERVE = """
mode: serve
name: served
explorer:
  proxy_port: 0
  rollout_model: {engine_type: vllm, base_url: http://127.0.0.1:1/v1}
buffer: {trainer_input: {experience_buffer: {storage_type: sql}}}
"""

OPERATOR = """
class Bonus:
    def __init__(self, amount):
        self.amount = amount

    def process(self, experiences):
        for one in experiences:
            one.reward += self.amount
        return experiences, {}
"""


def test_operators_in_python_run_in_the_command(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "flows.py").write_text(WORKFLOW)
    (tmp_path / "extra.py").write_text(OPERATOR)
    (tmp_path / "tasks.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    key = "data_processor.experience_pipeline.operators=[{name: extra:Bonus, args: {%s: 2.0}}]"
    database = "buffer.trainer_input.experience_buffer.storage_type=sql"
    done = run("check", "job.yaml", key % "amuont", cwd=tmp_path)
    assert done.returncode == 2
    assert "unexpected keyword argument 'amuont'" in done.stderr
    done = run("run", "job.yaml", key % "amount", database, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    buffer = tmp_path / "checkpoints/Rollway/command/buffer/experience_buffer.db"
    with rw.ExperienceReader(f"sqlite:///{buffer}", name="test", timeout=10) as reader:
        assert [one.reward for one in reader.read()] == [3.0]


def test_operators_in_python_serve_in_the_command(tmp_path):
    (tmp_path / "serve.yaml").write_text(SERVE)
    (tmp_path / "extra.py").write_text(OPERATOR)
    key = "data_processor.experience_pipeline.operators=[{name: extra:Bonus, args: {%s: 2.0}}]"
    done = run("check", "serve.yaml", key % "amuont", cwd=tmp_path)
    assert done.returncode == 2
    assert "unexpected keyword argument 'amuont'" in done.stderr
    process = subprocess.Popen(
        [Path(sys.executable).with_name("rollway"), "run", "serve.yaml", key % "amount"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
    )
    with process.stdout:
        first = next(iter(process.stdout.readline, ""), "")
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
    assert process.wait(60) == 0 and "serving " in first + rest, first + rest
