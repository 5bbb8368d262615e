"""From a coordinator into every kind of buffer, read there with other people's tools."""

import asyncio
import json
import pickle
import signal
import subprocess
import sys

import pyarrow.dataset
import pytest

import rollway as rw


async def answers(task, model):
    reply = await model.chat([{"role": "user", "content": str(task.raw_task)}])
    return float(reply.text)


async def raises(task, model):
    raise ValueError("no good")


async def hangs(task, model):
    await asyncio.Event().wait()


async def until(coordinator, batch_id, finished):
    """Waits until so many tasks of a batch have ended that never does."""
    while True:
        with pytest.raises(rw.TimedOut) as caught:
            await coordinator.finalize_train_batch(batch_id, timeout=0.3)
        if caught.value.finished == finished:
            return


async def train(coordinator, batch_id, count=3):
    many = [rw.Task(workflow=answers, raw_task=number, repeat_times=2) for number in range(count)]
    await coordinator.submit_batch(batch_id=batch_id, tasks=many, batch_type="train")
    return await coordinator.finalize_train_batch(batch_id)


def counts(result):
    metrics = result.get("metrics", result)
    return metrics["experience_pipeline/stored_count"], metrics["experience_pipeline/known_count"]


LOOK = """
import pickle, sqlite3, sys
with sqlite3.connect(sys.argv[1]) as database:
    sys.stdout.buffer.write(pickle.dumps(database.execute(sys.argv[2]).fetchall()))
"""


def look(path, sql):
    """Asks a database from another process, as people do.

    The engine has an SQLite of its own: two of them in one process undo each other's locks.
    """
    command = [sys.executable, "-c", LOOK, str(path), sql]
    return pickle.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def sqlite_rows(folder):
    rows = look(folder / "out.db", "SELECT experience_bytes FROM experience")
    return [experience for (row,) in rows for experience in rw.Experience.deserialize_many(row)]


def json_rows(folder):
    lines = (folder / "out.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def parquet_rows(folder):
    files = [str(path) for path in (folder / "out.parquet").glob("*.parquet")]
    return pyarrow.dataset.dataset(files).to_table().to_pylist()


@pytest.mark.parametrize(
    ("storage", "path", "rows"),
    [
        ("sql", "sqlite:///{}/out.db", sqlite_rows),
        ("file", "{}/out.jsonl", json_rows),
        ("file", "{}/out.parquet", parquet_rows),
    ],
)
async def test_experiences_are_at_the_configured_address(config, tmp_path, storage, path, rows):
    ours = config.buffer.trainer_input.experience_buffer
    ours.storage_type, ours.path = storage, path.format(tmp_path)
    async with rw.RolloutCoordinator(config, [rw.models.Echo()]) as coordinator:
        result = await train(coordinator, 1)
        assert counts(result) == (6.0, 0.0)
        assert result["metrics"]["experience_pipeline/experience_count"] == 6.0
        assert result["metrics"]["time/experience_pipeline/grpo"] > 0.0
        assert result["metrics"]["rollout/finished_task_count"] == 3.0
        assert await coordinator.finalize_train_batch(1) == result
        payload = rw.Experience(tokens=[1, 2], prompt_length=1, reward=0.5).serialize()
        assert counts(await coordinator.process_experiences([payload])) == (1.0, 0.0)
        assert counts(await coordinator.process_experiences([payload])) == (0.0, 1.0)
        assert await coordinator.process_experiences([]) == {}
    found = rows(tmp_path)
    reward = [one["reward"] if isinstance(one, dict) else one.reward for one in found]
    assert sorted(reward) == [0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 2.0]
    # What came is kept too.
    path = tmp_path / "jobs/Rollway/rft/buffer/explorer_output.db"
    assert look(path, "SELECT count(*) FROM explorer_output") == [(7,)]


async def test_a_reader_names_the_table_of_a_database(config, tmp_path):
    ours = config.buffer.trainer_input.experience_buffer
    address = f"sqlite:///{tmp_path}/out.db"
    ours.storage_type, ours.path, ours.name = "sql", address, "mine"
    async with rw.RolloutCoordinator(config, [rw.models.Echo()]) as coordinator:
        assert counts(await train(coordinator, 1)) == (6.0, 0.0)
    sources = [(address, {"table": "mine"}), (f"{address}?table=mine", {"name": "other"})]
    for source, options in sources:
        reader = await asyncio.to_thread(
            rw.ExperienceReader, source, batch_size=6, timeout=10, **options
        )
        batch = await asyncio.to_thread(reader.read)
        assert len(batch.experiences) == 6
        await asyncio.to_thread(reader.close)


async def test_a_queue_survives_its_coordinator(config):
    config.data_processor.experience_pipeline.save_input = False
    payload = rw.Experience(tokens=[1, 2], prompt_length=1, reward=0.5).serialize()
    for stored, known in [(1.0, 0.0), (0.0, 1.0)]:
        async with rw.RolloutCoordinator(config, [rw.models.Echo()]) as coordinator:
            # A batch of the same name, as a job has it that begins anew: these are others.
            assert counts(await train(coordinator, 1)) == (6.0, 0.0)
            assert counts(await coordinator.process_experiences([payload])) == (stored, known)


async def test_acknowledged_samples_survive_a_kill(config):
    payload = rw.Experience(tokens=[1, 2], prompt_length=1, reward=0.5).serialize()
    script = """
import os, signal, sys
import rollway as rw
config, payload = rw.Config(), bytes.fromhex(sys.argv[2])
config.name, config.checkpoint_root_dir = "rft", sys.argv[1]
config.explorer.runner_per_model = 1
coordinator = rw.RolloutCoordinator(config, [rw.models.Echo()])
coordinator.prepare().result()
metrics = coordinator.process_experiences([payload]).result()
assert metrics["experience_pipeline/stored_count"] == 1.0, metrics
os.kill(os.getpid(), signal.SIGKILL)
"""
    arguments = [config.checkpoint_root_dir, payload.hex()]
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", script, *arguments)
    assert await killed.wait() == -signal.SIGKILL
    async with rw.RolloutCoordinator(config, [rw.models.Echo()]) as coordinator:
        assert counts(await coordinator.process_experiences([payload])) == (0.0, 1.0)


async def test_a_full_queue_refuses_and_keeps(config):
    ours = config.buffer.trainer_input.experience_buffer
    ours.capacity, ours.max_write_timeout = 1, 0
    async with rw.RolloutCoordinator(config, [rw.models.Echo()]) as coordinator:
        await train(coordinator, 1)
        with pytest.raises(rw.SinkFailed, match="no room"):
            await train(coordinator, 2)
        result = await coordinator.abort_batch(2, reason="no reader")
        assert result["dropped_payload_count"] == {"aborted": 6}


async def test_a_shutdown_ends_the_wait_of_a_delivery_for_room(config):
    ours = config.buffer.trainer_input.experience_buffer
    ours.capacity, ours.max_write_timeout = 1, 3600
    coordinator = rw.RolloutCoordinator(config, [rw.models.Echo()])
    await coordinator.prepare()
    await train(coordinator, 1)
    waiting = asyncio.create_task(train(coordinator, 2))
    while coordinator.batch_state(2) is not rw.BatchLifecycleState.FINALIZING:
        await asyncio.sleep(0.01)
    report = await coordinator.shutdown(timeout=0.5)
    assert report["batches"] == [2] and report["undelivered_payloads"] == 6
    assert report["pipeline_error"] is None
    with pytest.raises(rw.Error):
        await waiting


async def test_results_of_an_aborted_batch_can_be_kept(config, tmp_path):
    ours = config.buffer.trainer_input.experience_buffer
    ours.storage_type, ours.path = "sql", f"sqlite:///{tmp_path}/out.db"
    mixed = [rw.Task(workflow=one, raw_task=1) for one in (answers, raises, answers, hangs)]
    async with rw.RolloutCoordinator(config, [rw.models.Echo()]) as coordinator:
        for batch_id, keep, kept in [(1, False, 0), (2, True, 2)]:
            await coordinator.submit_batch(batch_id=batch_id, tasks=mixed, batch_type="train")
            await until(coordinator, batch_id, 3)
            result = await coordinator.abort_batch(
                batch_id, reason="enough", keep_partial_results=keep
            )
            assert result["state"] == "aborted" and result["delivered_payload_count"] == kept
            assert result["dropped_payload_count"] == ({} if keep else {"aborted": 2})
            assert sum(result["cancelled_run_count"].values()) == 1
            assert len(sqlite_rows(tmp_path)) == kept


async def test_a_database_that_cannot_be_opened_is_named(config, tmp_path):
    (tmp_path / "out.db").mkdir()
    ours = config.buffer.trainer_input.experience_buffer
    ours.storage_type, ours.path = "sql", f"sqlite:///{tmp_path}/out.db"
    ours.max_retry_times = 0
    with pytest.raises(rw.PipelineFailed, match="out.db is not available: unable to open"):
        await rw.RolloutCoordinator(config, [rw.models.Echo()]).prepare()


async def test_a_missing_folder_is_named_and_tried_again(config, tmp_path):
    ours = config.buffer.trainer_input.experience_buffer
    ours.storage_type, ours.path = "sql", f"sqlite:///{tmp_path}/missing/out.db"
    ours.max_retry_interval = 0.01
    coordinator = rw.RolloutCoordinator(config, [rw.models.Echo()])
    with pytest.raises(rw.PipelineFailed, match="there is no folder .*missing"):
        await coordinator.prepare()
    (tmp_path / "missing").mkdir()
    async with coordinator:
        assert counts(await train(coordinator, 1)) == (6.0, 0.0)
    assert len(sqlite_rows(tmp_path / "missing")) == 6


async def test_a_database_that_becomes_read_only_loses_nothing(config, tmp_path):
    ours = config.buffer.trainer_input.experience_buffer
    ours.storage_type, ours.path = "sql", f"sqlite:///{tmp_path}/out.db"
    ours.max_retry_times = 0
    async with rw.RolloutCoordinator(config, [rw.models.Echo()]) as coordinator:
        await train(coordinator, 1)
        look(
            tmp_path / "out.db",
            "CREATE TRIGGER locked BEFORE INSERT ON experience "
            "BEGIN SELECT raise(ABORT, 'closed for today'); END",
        )
        with pytest.raises(rw.SinkFailed, match="closed for today"):
            await train(coordinator, 2)
        assert len(sqlite_rows(tmp_path)) == 6
        look(tmp_path / "out.db", "DROP TRIGGER locked")
        assert counts(await coordinator.finalize_train_batch(2)) == (6.0, 0.0)
    assert len(sqlite_rows(tmp_path)) == 12


async def test_invalid_settings_are_refused_with_their_key(config):
    ours = config.buffer.trainer_input.experience_buffer
    ours.storage_type, ours.path = "sql", "mysql://me:secret@host/db"
    with pytest.raises(rw.ConfigError, match=r"experience_buffer\.path.*postgresql") as caught:
        await rw.RolloutCoordinator(config, [rw.models.Echo()]).prepare()
    assert "secret" not in str(caught.value)
