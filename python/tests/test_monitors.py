"""Monitor backends, offline, through the engine and with the real packages."""

import io
import json
import struct
import subprocess
import sys

import pytest
from programs import program

from rollway import monitors

LINES = [
    {"began": 0},
    {"step": 1, "metrics": {"rollout/reward/mean": 0.25}},
    {"eval": 1, "metrics": {"eval/held/reward/mean@8": 0.5}},
    {"trained": 1, "metrics": {"trainer/loss": 2.0}},
    {"step": 2, "metrics": {"rollout/reward/mean": 0.75}},
]


@pytest.fixture
def run_monitors(tmp_path, monkeypatch):
    """Returns a function that tells monitors what happens, in a process of its own."""
    binary = program("ROLLWAY_MONITOR_BIN")
    monkeypatch.setenv("ROLLWAY_PYTHON", sys.executable)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")

    def run_monitors(section, *lines):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        command = [binary, str(tmp_path), json.dumps(section)]
        ran = subprocess.run(
            command, input=text, text=True, check=True, timeout=120, stdout=subprocess.PIPE
        )
        (folder,) = tmp_path.glob("**/monitor")
        logs = "\n".join(path.read_text() for path in folder.glob("*/log.txt"))
        assert json.loads(ran.stdout) == dict.fromkeys(section["monitor_type"], 0), logs
        return folder

    return run_monitors


def wandb_records(path):
    """Returns the records of a file, in the messages of the package."""
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, whole = 7, b""
    while at + 7 <= len(data):
        # Blocks of 32 KiB: a head (checksum, length, kind) does not cross their ends.
        if (left := -at % 32768) and left < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        # A whole record, or the last part of one.
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def wandb_rows(folder):
    (path,) = folder.glob("run-*.wandb")
    rows, runs = [], set()
    for record in wandb_records(path):
        if record.HasField("history"):
            items = record.history.item
            row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
            rows.append({key: value for key, value in row.items() if not key.startswith("_")})
        if record.HasField("run"):
            runs.add((record.run.run_id, record.run.project, record.run.display_name))
    return rows, runs


def test_several_monitors_and_a_resumed_job(run_monitors, tmp_path):
    from mlflow.tracking import MlflowClient

    uri = (tmp_path / "store").as_uri()
    section = {
        "monitor_type": ["wandb", "mlflow"],
        "monitor_args": {"wandb": {"mode": "offline"}, "mlflow": {"uri": uri}},
    }
    folder = run_monitors(section, *LINES)
    run_monitors(section, {"began": 2}, {"step": 3, "metrics": {"rollout/reward/mean": 1.0}})
    # Weights & Biases: two files of one run.
    rows, runs = [], set()
    for part in sorted((folder / "wandb" / "wandb").glob("offline-run-*")):
        more, of = wandb_rows(part)
        rows += more
        runs |= of
    known = json.loads((folder / "wandb" / "run.json").read_text())["run"]
    assert runs == {(known, "Rollway", "rft")}
    assert {"trainer/loss": 2.0, "trainer_step": 1} in rows
    reward = "rollout/reward/mean"
    rewards = [(row["explorer_step"], row[reward]) for row in rows if reward in row]
    assert rewards == [(1, 0.25), (2, 0.75), (3, 1.0)]
    # MLflow: one run, and every number in it.
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("Rollway")
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "rollout/reward/mean")
    assert [(it.step, it.value) for it in history] == [(1, 0.25), (2, 0.75), (3, 1.0)]
    (score,) = client.get_metric_history(run.info.run_id, "eval/held/reward/mean_at_8")
    assert (score.step, score.value) == (1, 0.5)
    assert run.info.status == "FINISHED"
    assert run.data.params["explorer.runner_per_model"] == "8"


def test_swanlab(run_monitors):
    section = {"monitor_type": ["swanlab"], "monitor_args": {"mode": "offline"}}
    folder = run_monitors(section, *LINES)
    (run,) = (folder / "swanlab").glob("run-*")
    (data,) = run.glob("*.swanlab")
    text = data.read_bytes()
    assert b"rollout/reward/mean" in text
    assert b"trainer/loss" in text
    assert "runner_per_model" in (run / "files" / "config.yaml").read_text()


def follow(tmp_path, *lines):
    begin = {
        "do": "begin",
        "project": "p",
        "group": "",
        "name": "n",
        "mode": "both",
        "folder": str(tmp_path),
        "config": {},
        "args": {},
    }
    out = io.StringIO()
    text = [json.dumps(line) for line in (begin, *lines)]
    succeeded = monitors.follow("wandb", text, out)
    return succeeded, [json.loads(line) for line in out.getvalue().splitlines()]


class Stubborn:
    """A board that takes nothing."""

    run, place = "r", None
    is_closed = False

    def log(self, role, step, at, numbers):
        raise ConnectionError("no route")

    def close(self):
        self.is_closed = True


def test_rejected_values_are_warned_about_once(tmp_path, monkeypatch):
    board = Stubborn()
    module = type(sys)("rollway.monitors.wandb")
    module.open = lambda job: board
    monkeypatch.setitem(sys.modules, module.__name__, module)
    log = {"do": "log", "role": "explorer", "step": 7, "numbers": {"a": 1.0}}
    succeeded, replies = follow(tmp_path, *[log] * 3, {"do": "end"})
    assert succeeded and board.is_closed
    assert [it["reply"] for it in replies] == ["ready", "trouble"]
    assert "step 7" in replies[1]["message"] and "no route" in replies[1]["message"]
    succeeded, replies = follow(tmp_path, *[log] * 100)
    assert not succeeded
    assert [it["reply"] for it in replies] == ["ready", "trouble", "failed"]


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rollway.monitors.wandb", None)
    succeeded, (replies,) = follow(tmp_path)
    assert not succeeded
    assert replies["reply"] == "failed" and "pip install wandb" in replies["message"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monitors.check("swanlab")
    assert capsys.readouterr().out == "swanlab\n"


def test_secrets_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("MY_KEY", "abc")
    args = {"api_key_env": "MY_KEY", "mode": "offline"}
    assert monitors.secret(args, "api_key") == "abc"
    assert args == {"mode": "offline"}
    with pytest.raises(ValueError, match="NO_SUCH_KEY is not set"):
        monitors.secret({"api_key_env": "NO_SUCH_KEY"}, "api_key")
