"""Runners that share a worker process: each reports only its own runs."""

import asyncio
import os
import tempfile
import time

import pytest

import rollway as rw


@pytest.fixture
def config(config):
    """Four runners in one process. No run is ever tried again on its own account."""
    config.explorer.runner_per_model = 4
    config.explorer.runner_per_worker = 4
    config.explorer.failures.poison_limit = 1
    return config


def experience():
    return rw.Experience(tokens=[1, 2], prompt_length=1, reward=1.0)


def begins(folder, name):
    """Tells whether a run begins for the first time."""
    path = os.path.join(folder, name)
    if os.path.exists(path):
        return False
    open(path, "w").close()
    return True


class Neighbour(rw.Workflow):
    """One does its deed while three others wait. Those go well when they are begun again."""

    async def run_async(self):
        folder, name = self.task.raw_task["folder"], self.task.raw_task["name"]
        if name == "deed":
            while len(os.listdir(folder)) < 3:
                await asyncio.sleep(0.01)
            await self.do(self.task.raw_task["deed"])
        elif begins(folder, name):
            await asyncio.Event().wait()
        return [experience()]

    async def do(self, deed):
        if deed == "exit":
            os._exit(3)
        if deed == "block":
            time.sleep(600)
        if deed == "gathered exit":
            await asyncio.gather(asyncio.Event().wait(), self.exit_soon())

    async def exit_soon(self):
        await asyncio.sleep(0.01)
        os._exit(3)


def neighbours(workflow, folder, deed):
    names = ["deed", "0", "1", "2"]
    rows = [{"folder": str(folder), "name": name, "deed": deed} for name in names]
    return [rw.Task(workflow=workflow, raw_task=row) for row in rows]


async def only_the_first_fails(config, tasks, kinds):
    async with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule(tasks, 1)
        statuses, experiences = await scheduler.get_results(1, timeout=100)
        bad, *good = statuses
        assert bad.completed_runs == 0 and set(bad.failed_runs) <= kinds, bad
        assert all(status.ok for status in good), good
        assert sorted(one.eid.task for one in experiences) == [1, 2, 3]
        # The pool is whole.
        scheduler.schedule([rw.Task(workflow=quick)] * 8, 2)
        assert all(status.ok for status in await scheduler.get_statuses(2, timeout=60))


async def quick(task, model):
    return [experience()]


@pytest.mark.parametrize("deed", ["exit", "gathered exit"])
async def test_one_exits_and_alone_is_blamed(config, tmp_path, deed):
    tasks = neighbours(Neighbour, tmp_path, deed)
    await only_the_first_fails(config, tasks, {"runner_lost"})


async def test_one_blocks_the_event_loop_and_alone_runs_out_of_time(config, tmp_path):
    config.explorer.max_timeout = 2
    tasks = neighbours(Neighbour, tmp_path, "block")
    await only_the_first_fails(config, tasks, {"timeout"})


class InThread(rw.Workflow):
    """As `Neighbour`, in threads: one never ends, and its process is replaced under the others."""

    def run(self):
        folder, name = self.task.raw_task["folder"], self.task.raw_task["name"]
        if name == "deed" or begins(folder, name):
            time.sleep(600)
        return [experience()]


async def test_a_thread_that_hangs_is_replaced_with_its_process(config, tmp_path):
    first, *others = neighbours(InThread, tmp_path, "hang")
    async with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule([first], 1)
        scheduler.schedule(others, 2)
        while len(os.listdir(tmp_path)) < 3:
            await asyncio.sleep(0.01)
        # It does not give up, so that its process is ended, and the others with it.
        await scheduler.abort_batch(1)
        statuses = await scheduler.get_statuses(2, timeout=60)
        assert all(status.ok for status in statuses), statuses


async def second_exits(task, model):
    folder = task.raw_task
    number = len(os.listdir(folder))
    # Retries of several runs begin at the same time in several processes.
    tempfile.mkstemp(dir=folder)
    if number == 1:
        # At once: the report of the first run has left the process before this one began.
        os._exit(3)
    return experience()


async def test_runs_finished_before_the_process_ended_count(config, tmp_path):
    config.explorer.failures.poison_limit = 3
    async with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        task = rw.Task(workflow=second_exits, raw_task=str(tmp_path), repeat_times=3)
        scheduler.schedule([task], 1)
        (status,), experiences = await scheduler.get_results(1, timeout=60)
        assert status.ok, status
        # The first run was not performed again: three good ones, and the one that exited.
        assert len(os.listdir(tmp_path)) == 4
        assert sorted(one.eid.run for one in experiences) == [0, 1, 2]


class ExitOrRecord(rw.Workflow):
    """Appends its name and process to a file; the bad ones end their process."""

    def run(self):
        path, name = self.task.raw_task
        with open(path, "a") as file:
            file.write(f"{name} {os.getpid()}\n")
        if name == "bad":
            os._exit(1)
        return [experience()]


@pytest.mark.parametrize("order", ["first", "last", "mixed"])
@pytest.mark.parametrize(("runners", "bad"), [(4, 3), (8, 8)])
async def test_tasks_that_end_their_process_do_not_stop_the_pool(
    config, tmp_path, order, runners, bad
):
    config.explorer.runner_per_model = runners
    config.explorer.failures.poison_limit = 3
    names = {
        "first": ["bad"] * bad + ["good"] * 40,
        "last": ["good"] * 40 + ["bad"] * bad,
        "mixed": (["bad"] + ["good"] * 5) * bad + ["good"] * (40 - 5 * bad),
    }[order]
    path = tmp_path / "begun"
    tasks = [rw.Task(workflow=ExitOrRecord, raw_task=(str(path), name)) for name in names]
    async with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule(tasks, 1)
        statuses = await scheduler.get_statuses(1)
    for name, status in zip(names, statuses, strict=True):
        assert status.ok == (name == "good"), (name, status)
        assert name == "good" or status.failed_runs == {"runner_lost": 1}, status
    begun = [line.split() for line in path.read_text().splitlines()]
    # Every loss of a shared process makes at least one bad task a suspect. A suspect ends its
    # process alone, as often as the limit of poison tasks allows.
    shared_losses = bad * (bad + 1) // 2
    assert sum(name == "bad" for name, _ in begun) <= bad * 3 + shared_losses
    # Good ones may be lost with a shared process, but not once for every loss.
    assert sum(name == "good" for name, _ in begun) <= 40 + bad * runners
