"""Scrapes a job while it runs, with the parsers of the official client."""

import re
import socket
import subprocess
import urllib.error
import urllib.request

import pytest
from programs import program
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as classic

CONFIG = """
mode: explore
name: scraped
checkpoint_root_dir: {folder}
algorithm: {{repeat_times: 2}}
buffer:
  batch_size: 8
  total_steps: 100000
  explorer_input:
    taskset:
      path: {folder}/tasks.jsonl
      default_workflow_type: simple_workflow
      default_reward_fn_type: exact_match
      format: {{prompt_key: question, response_key: answer}}
explorer: {{runner_per_model: 4, rollout_model: {{engine_type: tiny}}}}
synchronizer: {{sync_style: fully_async}}
monitor: {{prometheus: "127.0.0.1:{port}"}}
"""


@pytest.fixture
def job(tmp_path):
    """Starts a job that does not end by itself; yields where its metrics are."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "tasks.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n' * 20)
    (tmp_path / "job.yaml").write_text(CONFIG.format(folder=tmp_path, port=port))
    command = [program("ROLLWAY_BIN"), "run", str(tmp_path / "job.yaml"), "--log", "json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if '"step_begun"' in line:
                    break
            else:
                pytest.fail("".join(lines))
            yield f"http://127.0.0.1:{port}/metrics"
        finally:
            process.kill()


def scrape(url, accept=None):
    request = urllib.request.Request(url, headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def values(families):
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def total(samples, name, **labels):
    wanted = set(labels.items())
    return sum(v for (n, have), v in samples.items() if n == name and wanted <= set(have))


def test_the_official_parsers_read_both_formats_and_everything_adds_up(job):
    accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    earlier = {}
    for _ in range(20):
        kind, text = scrape(job, accept)
        assert kind.startswith("application/openmetrics-text")
        families = list(openmetrics(text))
        samples = values(families)
        names = [family.name for family in families]
        assert len(names) == len(set(names))
        assert all(re.fullmatch(r"rollway_[a-z0-9_]+", name) for name in names)
        assert all(f.documentation and f.type != "unknown" for f in families)
        assert any(name.startswith("rollway_gateway_") for name in names)
        for kind in ("train", "eval"):
            parts = ["succeeded_total", "failed_total", "cancelled_total", "pending", "running"]
            runs = sum(total(samples, f"rollway_runs_{part}", batch_type=kind) for part in parts)
            assert total(samples, "rollway_runs_submitted_total", batch_type=kind) == runs
            tasks = total(samples, "rollway_tasks_ended_total", batch_type=kind)
            tasks += total(samples, "rollway_tasks_open", batch_type=kind)
            assert total(samples, "rollway_tasks_submitted_total", batch_type=kind) == tasks
        gauges = {s.name for f in families if f.type in ("gauge", "info") for s in f.samples}
        grown = {key: samples.get(key, -1) >= v for key, v in earlier.items()}
        assert [key for key, ok in grown.items() if not ok and key[0] not in gauges] == []
        earlier = samples
    assert total(samples, "rollway_runs_submitted_total", batch_type="train") > 0
    kind, text = scrape(job)
    assert kind.startswith("text/plain")
    families = list(classic(text))
    assert {"counter", "gauge", "histogram"} == {family.type for family in families}
    older = {name for name, _ in values(families)}
    assert {name for name, _ in samples} <= older


def test_there_is_nothing_else(job):
    with pytest.raises(urllib.error.HTTPError) as refused:
        scrape(job.replace("/metrics", "/"))
    assert refused.value.code == 404
