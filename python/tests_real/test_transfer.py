"""Weights of a Python trainer reach a real vLLM without files, over gloo."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import programs
import pytest
from vllm_server import Vllm, vllm_python

pytestmark = pytest.mark.timeout(1800)

STEPS = 4

JOB = """
mode: both
checkpoint_root_dir: jobs
project: p
name: job
algorithm: {{repeat_times: 2}}
buffer:
  batch_size: 2
  train_batch_size: 4
  total_steps: {steps}
  explorer_input:
    default_workflow_type: simple_workflow
    default_reward_fn_type: exact_match
    taskset:
      path: tasks.jsonl
      format: {{prompt_key: question, response_key: answer}}
      rollout_args: {{max_tokens: 16}}
explorer:
  runner_per_model: 2
  rollout_model: {{engine_type: vllm, base_url: ["{url}/v1"], temperature: 1.0}}
trainer:
  command: ["{python}", "{trainer}"]
synchronizer:
  sync_method: checkpoint
  sync_timeout: 300
"""


def run(folder: pathlib.Path, server: Vllm) -> str:
    """Runs a job whose trainer sends its weights, and returns the output."""
    trainer = pathlib.Path(__file__).with_name("transfer_trainer.py")
    keys = {"url": server.url, "python": vllm_python(), "trainer": trainer, "steps": STEPS}
    (folder / "job.yaml").write_text(JOB.format(**keys))
    (folder / "tasks.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n' * 8)
    done = subprocess.run(
        [programs.program("ROLLWAY_BIN"), "run", "job.yaml"],
        cwd=folder,
        env={**os.environ, "ROLLWAY_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return output


@pytest.mark.capability("weights without files, from a Python trainer (gloo)")
def test_weights_are_sent_to_the_server(random_model, tmp_path, measured):
    server = Vllm(random_model, arguments=("--weight-transfer-config", '{"backend": "gloo"}'))
    try:
        output = run(tmp_path, server)
        assert re.findall(r"published (\d+) by (\w+)", output) == [
            (str(version), "gloo") for version in range(1, STEPS + 1)
        ], output
        checked = re.findall(r"checked (\d+) right, (\d+) wrong", output)
        assert sum(int(right) for right, _ in checked) > 0, output
        assert all(wrong == "0" for _, wrong in checked), output
        assert not list(tmp_path.glob("jobs/p/job/global_step_*")), "weights were written to files"
        assert server.version() == str(STEPS) and not server.is_paused()
        right = sum(int(right) for right, _ in checked)
        measured(f"{STEPS} versions sent, none written to a file; {right} tokens right, 0 wrong")
    finally:
        server.kill()


@pytest.mark.capability("a server without a transfer backend gets the weights from the folder")
def test_weights_fall_back_to_the_folder(vllm, tmp_path):
    output = run(tmp_path, vllm)
    assert re.findall(r"published (\d+) by (\w+)", output) == [
        (str(version), "checkpoint") for version in range(1, STEPS + 1)
    ], output
    assert "cannot be sent over gloo" in output, output
    assert vllm.version() == str(STEPS) and not vllm.is_paused()
