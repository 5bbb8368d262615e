"""Quick work, of which a runner is given the next attempt before it has ended the one it has."""

import os
import time

import pytest

import rollway as rw

TASKS = 300


@pytest.fixture
def config(config):
    """Every runner has a process of its own. No run is ever tried again on its own account."""
    config.explorer.runner_per_worker = 1
    config.explorer.failures.poison_limit = 1
    config.explorer.supervision.restart_backoff = 0.01
    return config


def note(task):
    """Writes down that a run of a task has begun."""
    with open(task.raw_task["file"], "a") as file:  # one line at once, from any process
        file.write(f"{task.task_id}\n")


def noted(file):
    with open(file) as lines:
        return [int(line) for line in lines]


async def deadly(task, model):
    note(task)
    if task.task_id % 60 == 30:
        os._exit(3)
    return 1.0


def test_what_brings_a_process_down_is_blamed_alone_and_nothing_is_done_twice(config, tmp_path):
    file = tmp_path / "begun"
    config.explorer.runner_per_model = 1
    task = rw.Task(workflow=deadly, raw_task={"file": str(file)}, is_eval=True)
    with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule([task] * TASKS, 1)
        statuses = scheduler.get_statuses(1, timeout=100).result()
    bad = [status.task_id for status in statuses if not status.ok]
    assert bad == [30, 90, 150, 210, 270]
    assert all(status.failed_runs == {"runner_lost": 1} for status in statuses if not status.ok)
    # What had ended was known before the next one began.
    assert sorted(noted(file)) == list(range(TASKS))


async def one_waits(task, model):
    note(task)
    if task.task_id == 100:
        # Keeps the whole process from anything else until all others are done.
        while len(noted(task.raw_task["file"])) < TASKS:
            time.sleep(0.01)
    return 1.0


@pytest.mark.parametrize("runners", [2, 4])
def test_nothing_waits_behind_what_is_slow(config, tmp_path, runners):
    file = tmp_path / "begun"
    config.explorer.runner_per_model = runners
    task = rw.Task(workflow=one_waits, raw_task={"file": str(file)}, is_eval=True)
    with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule([task] * TASKS, 1)
        statuses = scheduler.get_statuses(1, timeout=100).result()
    assert all(status.ok for status in statuses)
    assert sorted(noted(file)) == list(range(TASKS))


async def quick(task, model):
    return [rw.Experience(tokens=[1, 2], prompt_length=1, reward=1.0)]


def test_quick_work_can_be_stopped_and_every_run_is_accounted_for(config):
    config.explorer.runner_per_model = 2
    with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule([rw.Task(workflow=quick)] * 20_000, 1)
        enough = scheduler.get_results(1, min_num=500, timeout=100, clear_timeout_tasks=False)
        _, first = enough.result()
        report = scheduler.stop(timeout=100).result()
        _, rest = scheduler.get_results(1, timeout=100).result()
    done = [experience.eid.task for experience in [*first, *rest]]
    assert len(set(done)) == len(done) >= 500
    assert report["running_runs"] == 0
    assert report["pending_runs"] == 20_000 - len(done)
