"""`rollway servers`: servers of a running job are listed, added, removed and restarted."""

import json
import subprocess
import sys
import time

from test_mistakes import ROLLWAY, Command

JOB = """
mode: explore
checkpoint_root_dir: jobs
project: p
name: job
buffer:
  batch_size: 2
  total_steps: 100000
  explorer_input:
    default_workflow_type: simple_workflow
    default_reward_fn_type: exact_match
    taskset:
      path: tasks.jsonl
      total_epochs: 100000
      format: {{prompt_key: question, response_key: answer}}
      rollout_args: {{max_tokens: 4}}
explorer:
  runner_per_model: 2
  rollout_model: {{engine_type: vllm, base_url: ["{url}/v1"]}}
  server_restart: {{command: {command}}}
synchronizer: {{trainer_join_timeout: 0.1}}
"""


def started(folder, *options):
    """Starts a mock server and returns it with its address."""
    server = Command("mock-server", "--port", 0, *options, cwd=folder)
    server.wait_for("(Ctrl-C stops it)")
    return server, next(word for word in server.text.split() if word.startswith("http://"))


def servers(folder, *words):
    command = [*ROLLWAY, "servers", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def listed(folder):
    """Returns the servers of the job by address."""
    done = servers(folder, "list", "jobs/p/job", "--json")
    assert done.returncode == 0, done.stderr
    return {it["url"]: it for model in json.loads(done.stdout)["models"] for it in model["servers"]}


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.05)


def test_servers_of_a_running_job(tmp_path):
    restarted = tmp_path / "restarted.txt"
    command = json.dumps(["sh", "-c", f'echo "$ROLLWAY_SERVER_URL" > {restarted}'])
    first, one = started(tmp_path)
    second, two = started(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB.format(url=one, command=command))
    (tmp_path / "tasks.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n' * 4)
    missing = servers(tmp_path, "list", "jobs/p/job")
    assert missing.returncode == 2 and "no such folder: jobs/p/job" in missing.stderr
    job = Command("run", "job.yaml", cwd=tmp_path, env={"ROLLWAY_PYTHON": sys.executable})
    try:
        job.wait_for("dashboard:")
        wait_until(lambda: (tmp_path / "jobs/p/job/gateway.json").exists())
        wait_until(lambda: listed(tmp_path)[one]["state"] == "running")
        assert (tmp_path / "jobs/p/job/gateway.json").stat().st_mode & 0o777 == 0o600

        done = servers(tmp_path, "add", "jobs/p/job", f"{two}/v1")
        assert done.returncode == 0, done.stderr
        wait_until(lambda: listed(tmp_path)[two]["requests"] > 0)
        shown = servers(tmp_path, "list", "jobs/p/job").stdout
        assert f"vllm {two} running; weights 0" in shown, shown
        again = servers(tmp_path, "add", "jobs/p/job", two)
        assert again.returncode == 1 and "already" in again.stderr

        done = servers(tmp_path, "restart", "jobs/p/job", two)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: restarted.exists() and restarted.read_text().strip() == two)
        wait_until(lambda: listed(tmp_path)[two]["restarts"] == 1)

        done = servers(tmp_path, "remove", "jobs/p/job", one)
        assert done.returncode == 0, done.stderr
        assert "removed; 0 requests were aborted" in done.stdout
        assert list(listed(tmp_path)) == [two]
        unknown = servers(tmp_path, "remove", "jobs/p/job", one)
        assert unknown.returncode == 2 and f"it has {two}" in unknown.stderr, unknown.stderr
        before = listed(tmp_path)[two]["requests"]
        wait_until(lambda: listed(tmp_path)[two]["requests"] > before)
        job.interrupt()
        assert job.end() == 130, job.text
        assert not (tmp_path / "jobs/p/job/gateway.json").exists()
    finally:
        for process in (job, first, second):
            process.kill()
