"""A coordinator that dies, and goes on where it was."""

import collections
import os
import signal
import subprocess
import sys
import textwrap

import pytest

import rollway as rw

JOB = """
    import os, sys, time
    import rollway as rw

    class Slow(rw.Workflow):
        can_reset = False

        async def run_async(self):
            import asyncio
            await asyncio.sleep(0.01 * (self.task.task_id % 4))
            return [rw.Experience(tokens=[1, 2, 3], prompt_length=1, reward=1.0)]

    config = rw.Config.from_dict({
        "name": "restarted",
        "checkpoint_root_dir": sys.argv[1],
        "explorer": {"runner_per_model": 4},
        "buffer": {"trainer_input": {"experience_buffer": {"storage_type": "sql"}}},
    })
    with rw.RolloutCoordinator(config, [rw.models.Echo()]) as coordinator:
        restored = coordinator.restored
        for batch in range(1, 7):
            if batch not in restored.batches and batch not in restored.ended:
                tasks = [rw.Task(workflow=Slow, repeat_times=2) for _ in range(8)]
                coordinator.submit_batch(batch_id=batch, tasks=tasks, batch_type="train").result()
            print("submitted", batch, flush=True)
        for batch in range(1, 7):
            result = coordinator.finalize_train_batch(batch).result()
            assert result["finished_task_count"] == 8, result
            print("finalized", batch, flush=True)
        print("job done", flush=True)
"""


def live(path, root, last):
    """Runs the job until it says this, and kills it; returns what it said."""
    command = [sys.executable, str(path), str(root)]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            lines.append(line.strip())
            if lines[-1] == last:
                process.send_signal(signal.SIGKILL)
                break
    return lines


def test_a_killed_job_resumes_with_every_experience_once(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(textwrap.dedent(JOB))
    for last in ("submitted 2", "submitted 6", "finalized 1", "finalized 4"):
        assert live(path, tmp_path / "jobs", last)[-1] == last
    assert live(path, tmp_path / "jobs", "never")[-1] == "job done"
    database = next((tmp_path / "jobs").rglob("experience_buffer.db"))
    reader = rw.ExperienceReader(f"sqlite:///{database}", batch_size=1000, name="check", timeout=1)
    found = [one for batch in reader for one in batch.experiences]
    counts = collections.Counter(one.eid.rid for one in found)
    expected = {f"{b}/{t}/{r}" for b in range(1, 7) for t in range(8) for r in range(2)}
    assert set(counts) == expected
    assert set(counts.values()) == {1}


async def test_unfinished_work_of_a_shutdown_is_resumed(config):
    def coordinator():
        return rw.RolloutCoordinator(config, [rw.models.Echo()])

    @rw.workflow
    async def waits(task, model):
        import asyncio

        await asyncio.sleep(0 if task.task_id == 0 or os.path.exists(task.raw_task) else 600)
        return [rw.Experience(tokens=[1, 2, 3], prompt_length=1, reward=1.0)]

    path = os.path.join(config.checkpoint_root_dir, "go")
    tasks = [rw.Task(workflow=waits, raw_task=path) for _ in range(2)]
    async with coordinator() as first:
        await first.submit_batch(batch_id=1, tasks=tasks, batch_type="train")
        await first.note_version(3)
        with pytest.raises(rw.errors.LedgerFailed, match="older than 3"):
            await first.note_version(2)
        await first.shutdown(0.2)
    with open(path, "w"):
        pass
    async with coordinator() as second:
        assert list(second.restored.batches) == [1]
        assert second.restored.version == 3
        result = await second.finalize_train_batch(1)
        assert result["ok_task_count"] == 2
    async with coordinator() as third:
        assert third.restored.batches == {}
        assert third.restored.ended == [1]
        assert (await third.finalize_train_batch(1))["finished_task_count"] == 2


async def test_a_trainer_reads_stored_experiences(config):
    @rw.workflow
    async def answers(task, model):
        return [rw.Experience(tokens=[1, 2, 3], prompt_length=1, reward=float(task.task_id))]

    async with rw.RolloutCoordinator(config, [rw.models.Echo()]) as coordinator:
        tasks = [rw.Task(workflow=answers, repeat_times=2) for _ in range(3)]
        await coordinator.submit_batch(batch_id=1, tasks=tasks, batch_type="train")
        await coordinator.finalize_train_batch(1)
        with rw.ExperienceReader(coordinator, batch_size=2, timeout=10) as reader:
            batch = await reader.aread()
            assert [one.eid.rid for one in batch.experiences] == ["1/0/0", "1/0/1"]
            assert batch.to_numpy()["advantages"].shape[0] == 2
        with rw.ExperienceServer(coordinator) as server:
            elsewhere = rw.ExperienceReader(
                server.url, batch_size=4, timeout=60, secret=server.secret
            )
            rest = await elsewhere.aread()
            assert [one.eid.tid for one in rest.experiences] == ["1/1", "1/1", "1/2", "1/2"]
