"""Manual workers: `python -m rollway.worker --connect` in other processes."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

import rollway as rw


@rw.workflow
async def tells(task, model):
    """Says where it was executed, and what it found there."""
    reply = await model.chat([{"role": "user", "content": str(task.raw_task)}])
    return rw.Experience(
        tokens=[1, 2],
        prompt_length=1,
        reward=float(reply.text),
        info={"pid": os.getpid(), "flag": os.environ.get("BY_HAND_FLAG"), "parent": os.getppid()},
    )


@rw.workflow
async def hangs_once(task, model):
    """Hangs in the first attempt and succeeds in the next."""
    if os.path.exists(task.raw_task):
        return rw.Experience(tokens=[1, 2], prompt_length=1, reward=1.0)
    with open(task.raw_task, "w") as file:
        file.write(str(os.getppid()))
    await asyncio.Event().wait()


@rw.workflow
async def called_by_openai(task, model):
    """Calls the model by the package `openai`, which knows the roots of its environment only."""
    messages = [{"role": "user", "content": task.raw_task}]
    api = model.async_openai_client()
    await api.chat.completions.create(model=model.name, messages=messages, max_tokens=3)
    return 1.0


@pytest.fixture
def by_hand(config):
    config.cluster.backend = "manual"
    config.cluster.listen = "127.0.0.1"
    config.explorer.env_vars = {"BY_HAND_FLAG": "as the job says"}
    config.explorer.max_timeout = 60
    return config


def card_of(config):
    return os.path.join(config.checkpoint_root_dir, config.project, config.name, "cluster.json")


def worker(card, *arguments):
    """Starts workers as on another machine, without the environment of the job."""
    command = [sys.executable, "-m", "rollway.worker", "--connect", card, *arguments]
    return subprocess.Popen(command, cwd="/", stderr=subprocess.PIPE, text=True)


def started(scheduler):
    """Starts in a thread: it takes until the first worker has come."""
    thread = threading.Thread(target=lambda: scheduler.start().result())
    thread.start()
    return thread


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def test_a_workflow_of_this_file_is_executed_by_workers_that_come_by_themselves(by_hand):
    scheduler = rw.Scheduler(by_hand, [rw.models.Echo()])
    starting = started(scheduler)
    card = card_of(by_hand)
    wait_for(card)
    assert stat.S_IMODE(os.stat(card).st_mode) == 0o600
    assert json.load(open(card)).keys() == {"address", "secret"}
    first = worker(card, "--runners", "2")
    starting.join()
    tasks = [rw.Task(workflow=tells, raw_task=number) for number in range(10)]
    scheduler.schedule(tasks, 1)
    statuses, experiences = scheduler.get_results(1).result()
    assert all(status.ok for status in statuses), statuses
    assert [one.reward for one in experiences] == [float(number) for number in range(10)]
    assert {one.info["parent"] for one in experiences} == {first.pid}
    assert {one.info["flag"] for one in experiences} == {"as the job says"}
    scheduler.stop().result()
    # The engine dismisses them.
    assert first.wait() == 0, first.stderr.read()
    assert "ended normally" in first.stderr.read()


def test_a_leaving_worker_is_replaced_by_the_next_one(by_hand, tmp_path):
    scheduler = rw.Scheduler(by_hand, [rw.models.Echo()])
    starting = started(scheduler)
    card = card_of(by_hand)
    wait_for(card)
    first = worker(card, "--runners", "2")
    starting.join()
    mark = str(tmp_path / "waits")
    scheduler.schedule([rw.Task(workflow=hangs_once, raw_task=mark)], 1)
    wait_for(mark)
    first.send_signal(signal.SIGTERM)
    assert first.wait() == 0, first.stderr.read()
    second = worker(card, "--runners", "2")
    statuses, experiences = scheduler.get_results(1).result()
    assert statuses[0].ok and experiences[0].reward == 1.0, statuses
    scheduler.stop().result()
    assert second.wait() == 0, second.stderr.read()


def test_a_wrong_secret_is_not_tried_twice(by_hand, tmp_path):
    scheduler = rw.Scheduler(by_hand, [rw.models.Echo()])
    starting = started(scheduler)
    card = card_of(by_hand)
    wait_for(card)
    address = json.load(open(card))["address"]
    (tmp_path / "wrong").write_text("guessed")
    stranger = worker(address, "--secret-file", str(tmp_path / "wrong"))
    assert stranger.wait() == 2
    words = stranger.stderr.read()
    assert "does not have the secret of this worker" in words and "error:" in words
    friend = worker(card)
    starting.join()
    scheduler.stop().result()
    assert friend.wait() == 0, friend.stderr.read()


def test_workers_use_the_certificate_of_the_address_file(by_hand):
    by_hand.tls.mode = "required"
    scheduler = rw.Scheduler(by_hand, [rw.models.MockServer()])
    starting = started(scheduler)
    card = card_of(by_hand)
    wait_for(card)
    address = json.load(open(card))["address"]
    assert address.startswith("tls:127.0.0.1:") and len(address.partition("#")[2]) == 64
    friend = worker(card, "--runners", "2")
    starting.join()
    scheduler.schedule([rw.Task(workflow=called_by_openai, raw_task="say")], 1)
    statuses, _ = scheduler.get_results(1).result()
    assert statuses[0].ok, statuses
    scheduler.stop().result()
    assert friend.wait() == 0, friend.stderr.read()


def test_missing_address_file_is_reported(tmp_path):
    process = worker(str(tmp_path / "cluster.json"), "--connect-timeout", "0")
    assert process.wait() == 1
    assert "No such file" in process.stderr.read()
