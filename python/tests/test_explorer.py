"""The explorer from Python: workflows of this file, models as objects, a trainer beside it."""

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import urllib.parse
import urllib.request

import numpy as np
import pytest
from ray_nodes import until
from safetensors.numpy import load_file

import rollway as rw
from rollway.client.explorer import tensor


@rw.workflow
async def add(task, model):
    """Asks for a sum."""
    question = {"role": "user", "content": task.raw_task["question"]}
    reply = await model.chat([question], max_tokens=5)
    return float(reply.text == task.raw_task["answer"])


@rw.workflow
async def look(task, model):
    """Looks for what workers must not have."""
    await model.chat([{"role": "user", "content": "hello"}])
    kept = [value for name, value in os.environ.items() if "KEY" in name]
    return float("secret" not in kept)


@rw.reward_fn
def near(response, truth):
    """Is lenient."""
    return 1.0 / (1 + abs(int(response) - int(truth)))


@rw.operator("doubled")
class Doubled(rw.Operator):
    """Is generous."""

    def process(self, experiences):
        for one in experiences:
            one.reward = 2 * one.reward + 1
        return experiences, {"generosity": 2.0}


@pytest.fixture
def config(config, tmp_path):
    """A small job on sums of the tiny model."""
    rows = [
        {"question": f"{a:02}+{b:02}=", "answer": f"{a + b:03}"}
        for a in range(3, 99, 24)
        for b in (1, 18)
    ]
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"prompt_key": "question", "response_key": "answer"}
    config.mode = "bench"
    config.name = "sums"
    config.algorithm.repeat_times = 2
    config.buffer.batch_size = 4
    config.buffer.train_batch_size = 8
    config.buffer.total_steps = 3
    config.buffer.explorer_input = {
        "default_workflow_type": "add",
        "taskset": {"path": str(path), "format": columns},
        "eval_tasksets": [{"name": "held_out", "path": str(path), "format": columns}],
    }
    config.buffer.trainer_input.experience_buffer.storage_type = "sql"
    config.explorer.rollout_model.engine_type = "tiny"
    config.explorer.rollout_model.max_response_tokens = 5
    config.explorer.runner_per_model = 2
    config.synchronizer.sync_method = "checkpoint"
    config.synchronizer.sync_timeout = 60
    return config


def test_a_workflow_of_a_script_is_evaluated_and_seen(config):
    events = []
    with rw.Explorer(config, on_event=events.append) as explorer:
        (row,) = explorer.benchmark().result()
        stats = explorer.live_stats().result()
        again = explorer.eval().result()
    assert (row["step"], row["set"], row["tasks"], row["failed"]) == (0, "held_out", 8, 0)
    assert 0 <= row["score"] <= 1 and any("held_out" in key for key in row["metrics"])
    assert (stats["done"], stats["runners"], stats["failed"]) == (8, 2, 0)
    assert [one["set"] for one in again] == ["held_out"]
    waits = {"wait_begun", "wait_ended"}
    steps = [event for event in events if event["event"] not in waits]
    assert [event["event"] for event in steps] == ["began", "evaluated", "evaluated"]
    assert steps[0]["mode"] == "bench" and steps[1]["score"] == row["score"]


def test_unnamed_jobs_of_one_process_have_folders_of_their_own(config):
    config.mode = "both"
    config.buffer.total_steps = 1
    config.buffer.explorer_input.eval_tasksets = []
    values = config.to_dict()
    del values["name"]
    folders = []
    for _ in range(2):
        with rw.Explorer(rw.Config.from_dict(values)) as explorer:
            explorer.explore().result()
            folders.append(explorer.job_dir.name)
    assert len(set(folders)) == 2 and all(str(os.getpid()) in name for name in folders), folders


@rw.workflow
async def halts(task, model):
    """Is quick, or hangs in a stage."""
    stage = task.raw_task["hangs"]
    if stage is not None:
        with rw.stage(stage):
            await asyncio.Event().wait()
    return 1.0


@rw.workflow
async def fails(task, model):
    """Never works."""
    raise RuntimeError("no such sandbox")


def ask(url, path, method="GET"):
    """Asks a dashboard, or has it do something."""
    base, token = url.split("/?token=")
    headers = {"authorization": f"Bearer {token}", "x-rollway": "1"}
    headers["content-type"] = "application/json"
    body = b"{}" if method == "POST" else None
    request = urllib.request.Request(f"{base}/api/{path}", body, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_hanging_runs_of_a_script_are_shown(config, tmp_path, caplog):
    stages = ["compiling the tests", "waiting for the sandbox", "reading the page"]
    rows = [{"hangs": stages[n // 8] if n in (3, 8, 17) else None} for n in range(60)]
    path = tmp_path / "halts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config.buffer.explorer_input.default_workflow_type = "halts"
    config.buffer.explorer_input.eval_tasksets = [{"name": "held_out", "path": str(path)}]
    config.explorer.runner_per_model = 5
    config.explorer.max_timeout = 1000
    caplog.set_level("INFO", "rollway")
    found = []
    with rw.Explorer(config) as explorer:
        url, job_dir = explorer.dashboard_url, explorer.job_dir
        base, token = url.split("/?token=")
        until(lambda: f"dashboard: {base} (" in caplog.text, "it is in the log where to look")
        assert token not in caplog.text
        card = json.loads((job_dir / "dashboard.json").read_text())
        assert url.startswith(card["url"])
        working = threading.Thread(target=lambda: found.extend(explorer.benchmark().result()))
        working.start()

        def on_top():
            top = ask(url, "runners")[:3]
            return top if {one["stage"] for one in top} == set(stages) else None

        # On top with the next heartbeat, each with the stage where it hangs.
        top = until(on_top, "those who hang stand first")
        hanging = {one["task"]: one["stage"] for one in top}
        assert [hanging.get(task) for task in (3, 8, 17)] == stages
        for one in top:
            run = urllib.parse.quote(one["batch"], safe="") + f"/{one['task']}/{one['run']}"
            assert ask(url, f"runs/{run}/cancel", "POST")["done"]
        working.join()
        assert ask(url, "job")["live"] and ask(url, "runs?state=succeeded")["total"] == 57
    (row,) = found
    assert (row["tasks"], row["failed"]) == (60, 3)
    assert any("tfevents" in path.name for path in job_dir.rglob("*"))
    assert not (job_dir / "dashboard.json").exists()

    def is_gone():
        try:
            ask(url, "job")
        except OSError:
            return True
        return False

    until(is_gone, "the server to stop")


def test_an_alarm_ends_the_job_of_a_script(config):
    config.mode = "explore"
    config.buffer.explorer_input.default_workflow_type = "fails"
    config.alarms.consecutive_failures = 5
    config.alarms.on_consecutive_failures = "stop"
    config.dashboard.enable = False
    events = []
    with rw.Explorer(config, on_event=events.append) as explorer:
        assert explorer.dashboard_url is None
        with pytest.raises(rw.ExplorerError, match="(?s)5 runs failed in a row.*no such sandbox"):
            explorer.explore().result()
    assert any(event["event"] == "alarm" for event in events)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("explore", "none of 4 tasks succeeded; failed runs: .*no such sandbox"),
        ("bench", "no task of any evaluation succeeded; failed runs: .*no such sandbox"),
    ],
)
def test_a_job_in_which_every_run_failed_is_an_error(config, mode, words):
    config.mode = mode
    config.synchronizer.trainer_join_timeout = 0.1
    config.buffer.total_steps = 1
    config.buffer.explorer_input.default_workflow_type = "fails"
    with rw.Explorer(config) as explorer:
        work = explorer.explore if mode == "explore" else explorer.benchmark
        with pytest.raises(rw.ExplorerError, match=f"(?s)the job has no result: {words}"):
            work().result()
        job_dir = explorer.job_dir
    (path,) = job_dir.glob("*summary.json")
    summary = json.loads(path.read_text())
    assert summary["state"] == "failed" and "no such sandbox" in summary["error"]


def test_built_in_workflows_need_no_process(config):
    config.buffer.explorer_input.default_workflow_type = "simple_workflow"
    config.buffer.explorer_input.default_reward_fn_type = "exact_match"
    config.explorer.python = "/no/such/python"
    with rw.Explorer(config) as explorer:
        assert explorer.benchmark().result()[0]["failed"] == 0


def test_reward_functions_of_a_script_travel_too(config):
    config.buffer.explorer_input.default_workflow_type = "simple_workflow"
    config.buffer.explorer_input.default_reward_fn_type = "near"
    with rw.Explorer(config, rw.models.Tiny()) as explorer:
        (row,) = explorer.benchmark().result()
    assert row["failed"] == 0 and row["score"] > 0.3


def test_modules_beside_the_configuration_are_found(config, tmp_path):
    (tmp_path / "beside.py").write_text(
        "async def asks(task, model):\n"
        "    await model.chat([{'role': 'user', 'content': '1+1='}], max_tokens=2)\n"
        "    return 0.25\n"
    )
    config.buffer.explorer_input.default_workflow_type = "beside:asks"
    path = tmp_path / "job.json"
    path.write_text(config.to_json())
    with rw.Explorer(rw.Config.load(path)) as explorer:
        assert explorer.benchmark().result()[0]["score"] == 0.25


def test_models_as_objects(config):
    config.buffer.explorer_input.default_workflow_type = "look"
    servers = [rw.models.MockServer(api_key="secret", seed=seed) for seed in (1, 2)]
    with rw.Explorer(config, servers) as explorer:
        (row,) = explorer.benchmark().result()
    assert (row["score"], row["failed"]) == (1.0, 0)
    assert sum(server.counts["completed"] for server in servers) == 8
    with rw.Explorer(config, rw.models.Echo()) as explorer:
        assert explorer.benchmark().result()[0]["score"] == 1.0
    with pytest.raises(rw.Error, match="some are not"):
        rw.Explorer(config, [rw.models.Echo(), servers[0]]).prepare().result()
    with pytest.raises(ValueError, match="no rollout model"):
        rw.Explorer(config, [])


def test_tiny_travels_by_its_address():
    model = rw.models.Tiny("small", seed=3)
    copy = pickle.loads(pickle.dumps(model))
    assert (copy.base_url, copy.name, copy.engine) == (model.base_url, "small", "vllm")
    assert copy.api_key == model.api_key and len(model.api_key) == 64
    with pytest.raises(rw.WeightsError, match="nowhere"):
        rw.models.Tiny(weights="nowhere")
    model.stop()
    assert model.weights_version is None


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (("default_workflow_type", "ad"), rw.WorkflowUnavailable, "did you mean `add`"),
        (("default_workflow_type", "no_such:one"), ImportError, "no module `no_such`"),
        (("eval_tasksets", [{"path": "no/such.jsonl"}]), rw.TasksetError, "no/such.jsonl"),
        (("eval_tasksets", [{"path": "x", "nmae": ""}]), rw.ConfigError, "did you mean `name`"),
    ],
)
def test_mistakes_are_reported_before_the_start(config, change, error, words):
    setattr(config.buffer.explorer_input, *change)
    with pytest.raises(error, match=words) as caught:
        rw.Explorer(config).prepare().result()
    assert isinstance(caught.value, rw.Error)


def test_a_server_that_does_not_answer(config):
    config.synchronizer.sync_timeout = 0.3
    with pytest.raises(rw.ModelUnavailable, match="start the server") as caught:
        rw.Explorer(config, rw.models.OpenAI("http://127.0.0.1:9/v1")).prepare().result()
    assert isinstance(caught.value, ConnectionError)


def test_not_prepared_and_over(config):
    explorer = rw.Explorer(config)
    with pytest.raises(rw.NotStarted):
        explorer.explore().result()
    explorer.shutdown().result()
    with rw.Explorer(config) as explorer:
        with pytest.raises(rw.ExplorerError, match="does not explore"):
            explorer.explore().result()
        with pytest.raises(rw.ExplorerError, match="mode: serve"):
            explorer.serve().result()
    with pytest.raises(rw.Stopped):
        explorer.eval().result()


def test_it_explores_beside_a_trainer(config, tmp_path):
    config.mode = "explore"
    config.data_processor.experience_pipeline.operators = [{"name": "doubled"}]
    weights = tmp_path / "start.safetensors"
    rw.models.Tiny.export(weights)
    read = []

    def train(job):
        source = f"sqlite:///{job}/buffer/experience_buffer.db"
        with (
            rw.Synchronizer(job) as synchronizer,
            rw.ExperienceReader(source, batch_size=8, timeout=60) as reader,
        ):
            for version in (1, 2, 3):
                read.extend(reader.read().experiences)
                synchronizer.publish(weights, version=version)

    events = []
    with rw.Explorer(config, on_event=events.append) as explorer:
        trainer = threading.Thread(target=train, args=(explorer.job_dir,))
        trainer.start()
        assert explorer.explore().result() == "explorer"
        trainer.join()
        assert explorer.sync_weight().result() == 3
        explorer.save_checkpoint().result()
        found = explorer.get_weight("positions").result()
        with pytest.raises(rw.WeightsError, match="no_such"):
            explorer.get_weight("no_such").result()
    assert np.array_equal(found, load_file(weights)["positions"])
    assert len(read) == len({str(one.eid) for one in read}) == 3 * 4 * 2
    assert {one.reward for one in read} <= {1.0, 3.0}
    assert [one["version"] for one in events if one["event"] == "synced"][:3] == [1, 2, 3]
    assert [one["step"] for one in events if one["event"] == "step_done"] == [1, 2, 3]
    scores = [one["version"] for one in events if one["event"] == "evaluated"]
    # Before the first step, and with the last weights.
    assert scores == [0, 3]


def test_mode_both_starts_the_trainer_of_the_configuration(config):
    config.mode = "both"
    events = []
    with rw.Explorer(config, on_event=events.append) as explorer:
        assert explorer.explore().result() == "explorer"
        assert explorer.sync_weight().result() == 3
    assert [one["step"] for one in events if one["event"] == "trained"] == [1, 2, 3]
    assert [one["version"] for one in events if one["event"] == "synced"][-1] == 3


def test_failure_of_the_trainer_ends_the_explorer(config):
    config.mode = "both"
    config.trainer.command = [sys.executable, "-c", "raise ValueError('no GPU')"]
    with rw.Explorer(config) as explorer, pytest.raises(rw.TrainerFailed, match="no GPU"):
        explorer.explore().result()


SLOW = """
import asyncio, sys
import rollway as rw

@rw.workflow
async def slow(task, model):
    await asyncio.sleep(600)

config = rw.Config.load(sys.argv[1])
config.buffer.explorer_input.default_workflow_type = "slow"
with rw.Explorer(config, on_event=lambda event: print(event["event"], flush=True)) as explorer:
    explorer.benchmark().result()
"""


def test_ctrl_c_ends_it_cleanly(config, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "job.json").write_text(config.to_json())
    process = subprocess.Popen(
        [sys.executable, "slow.py", "job.json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Waits for servers come before.
    assert "began\n" in iter(process.stdout.readline, "")
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and words.rstrip().endswith("KeyboardInterrupt")


async def test_a_cancelled_explorer_is_resumed_by_another(config):
    config.mode = "explore"
    config.explorer.eval_on_startup = False
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def seen(event):
        if event["event"] == "step_begun":
            loop.call_soon_threadsafe(begun.set)

    async with rw.Explorer(config, rw.models.Tiny(), on_event=seen) as explorer:
        exploring = asyncio.create_task(explorer.explore())
        await begun.wait()
        exploring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exploring
    # Only mode `explore` continues without a trainer.
    config.mode = "both"
    config.synchronizer.sync_timeout = 1
    events = []
    async with rw.Explorer(config, rw.models.Tiny(), on_event=events.append) as explorer:
        with pytest.raises(rw.NoWeights, match="trainer") as caught:
            await explorer.explore()
    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.step, caught.value.at_least) == (1, 1)
    done = [event for event in events if event["event"] == "step_done"]
    assert [event["step"] for event in done] == [1]
    assert done[0]["finished_task_count"] == 4


async def test_it_serves(config):
    config.mode = "serve"
    config.explorer.proxy_port = 0
    async with rw.Explorer(config, rw.models.Tiny()) as explorer:
        serving = asyncio.create_task(explorer.serve())
        client = rw.ServeClient.of_job(explorer.job_dir)
        messages = [{"role": "user", "content": "01+02="}]
        async with client.async_openai() as model:
            answer = await model.chat.completions.create(
                model=client.model(), messages=messages, max_tokens=5
            )
        assert client.feedback(1.0, [answer.id])["accepted"] == 1
        assert client.commit()["experiences"] == 1
        with pytest.raises(rw.ExplorerError, match="only serve"):
            await explorer.eval()
        explorer.stop()
        assert await serving == "explorer"


def test_a_group_for_weights(config):
    config.mode = "explore"
    config.explorer.rollout_model.tensor_parallel_size = 2
    servers = [rw.models.MockServer(), rw.models.MockServer()]
    with rw.Explorer(config, servers) as explorer:
        with pytest.raises(rw.ExplorerError, match="name them"):
            explorer.setup_weight_sync_group("127.0.0.1", 29500).result()
        meta = [("lm_head.weight", "torch.bfloat16", (2, 2))]
        # The trainer, and two servers with two GPUs each.
        assert explorer.setup_weight_sync_group("127.0.0.1", 29500, meta).result() == 5
        with pytest.raises(rw.Error):
            explorer.get_weight("lm_head.weight").result()


def test_tensors_as_arrays():
    assert tensor(("F32", [2, 1], np.array([1, 2], "<f4").tobytes())).tolist() == [[1.0], [2.0]]
    # 1.5 and -2 in bfloat16: the upper half of float32.
    wide = tensor(("BF16", [2], b"\xc0\x3f\x00\xc0"))
    assert wide.astype(np.float32).tolist() == [1.5, -2.0]
    with pytest.raises(rw.Error, match="F8_E4M3"):
        tensor(("F8_E4M3", [1], b"\0"))
