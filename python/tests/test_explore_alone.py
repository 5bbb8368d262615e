"""Mode `explore` without a trainer: `rollway run` ends well in every sync style and method."""

import os
import subprocess
import sys

import programs
import pytest

JOB = """
mode: explore
checkpoint_root_dir: jobs
buffer:
  batch_size: 1
  total_steps: 3
  explorer_input:
    default_workflow_type: simple_workflow
    default_reward_fn_type: exact_match
    taskset:
      path: tasks.jsonl
      format: {{prompt_key: question, response_key: answer}}
      rollout_args: {{max_tokens: 4}}
explorer:
  runner_per_model: 1
  rollout_model: {{engine_type: tiny}}
synchronizer:
  sync_style: {style}
  sync_method: {method}
  sync_interval: {interval}
  trainer_join_timeout: 0.1
"""


@pytest.mark.parametrize("interval", [1, 2, 1000])
@pytest.mark.parametrize("method", ["checkpoint", "memory", "nccl"])
@pytest.mark.parametrize("style", ["fixed", "explorer_driven", "trainer_driven", "fully_async"])
def test_exploring_without_a_trainer_ends_well(tmp_path, style, method, interval):
    job = JOB.format(style=style, method=method, interval=interval)
    (tmp_path / "job.yaml").write_text(job)
    (tmp_path / "tasks.jsonl").write_text('{"question": "01+01=", "answer": "002"}\n' * 3)
    done = subprocess.run(
        [programs.program("ROLLWAY_BIN"), "run", "job.yaml"],
        cwd=tmp_path,
        env={**os.environ, "ROLLWAY_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "3 steps" in done.stdout + done.stderr, done.stdout + done.stderr
