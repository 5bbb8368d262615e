"""The worker's loop, over a link that is a list."""

import asyncio
import contextlib
import os
import threading

import pytest

import rollway as rw
from rollway import _serialization as travel
from rollway.run_settings import settings_of
from rollway.worker.process import Worker

TOO_LARGE = "the message has too many bytes"


class Link:
    """A link whose messages the test gives, and which keeps what is said."""

    def __init__(self):
        self.runners = [(0, 1)]
        self.report = asyncio.Queue()
        self.messages = []
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.file_descriptors = (self.reader, os.dup(self.reader))
        self.is_backlogged = False
        self.too_large = False

    def give(self, *message):
        self.messages.append(message)
        os.write(self.writer, b"x")

    def poll_messages(self):
        with contextlib.suppress(BlockingIOError):
            os.read(self.reader, 100)
        taken, self.messages = self.messages, []
        return taken

    def succeeded(self, runner, incarnation, attempt, run, payload, metrics):
        if self.too_large:
            return TOO_LARGE
        self.report.put_nowait(("succeeded", attempt, run, payload, metrics))
        return None

    def set_state(self, runner, state):
        self.state = state

    def flush(self):
        pass

    def __getattr__(self, name):
        return lambda *rest: self.report.put_nowait((name, *rest))

    async def expect(self, *expected):
        """Waits for the next words and checks that they are these."""
        for word in expected:
            report = await asyncio.wait_for(self.report.get(), 20)
            assert report[: len(word)] == word, report


class Start:
    """An attempt as the engine sends it."""

    runner, incarnation, attempt = 0, 1, 7
    batch_id, task_id, runs = "1/x", 3, [0]
    is_eval = False
    suspected_losses, model_keys = 0, []
    task_encoding = "pickle"

    def __init__(self, workflow, **fields):
        vars(self).update(fields)
        self.name = (self.runner, self.incarnation, self.attempt)
        definition = travel.define(workflow)
        self.definition = (definition.name, definition.encoding, definition.body)
        self.definition_id = hash(definition.name)
        self.task = travel.encode_task(rw.Task(raw_task={"q": "5"}))


def experience(**fields):
    return rw.Experience(tokens=[1, 2, 3], prompt_length=1, **fields)


def worker_setup(mode):
    return {
        "models": [rw.models.Echo()],
        "auxiliary": [],
        "concurrent_mode": mode,
        "settings": settings_of(rw.Config()),
    }


def working(mode="sequential"):
    """A worker at work, which ends with the context."""

    class Context:
        async def __aenter__(self):
            self.link = Link()
            self.work = asyncio.ensure_future(Worker(self.link, worker_setup(mode)).run())
            await self.link.expect(("ready", 0, 1))
            return self.link

        async def __aexit__(self, *_):
            self.link.give("ended", "test over")
            assert await asyncio.wait_for(self.work, 20) == "test over"

    return Context()


async def answers(task, model):
    reply = await model.chat([{"role": "user", "content": task.raw_task["q"]}])
    return float(reply.text)


async def hangs(task, model):
    await model.chat([])
    await asyncio.Event().wait()


async def test_an_attempt_is_executed_run_by_run():
    async with working() as link:
        link.give("start", Start(answers, runs=[2, 5]))
        await link.expect(("attempt_began", 0, 1, 7))
        for run in (2, 5):
            report = await link.report.get()
            assert report[:3] == ("succeeded", 7, run)
            (one,) = rw.Experience.deserialize_many(report[3])
            assert (one.eid.batch, one.eid.task, one.eid.run) == ("1/x", 3, run)
            assert one.reward == 5.0 and report[4]["reward"] == 5.0
        await link.expect(("attempt_ended", 0, 1, 7))


async def test_eval_sends_no_payload():
    async with working() as link:
        link.give("start", Start(answers, is_eval=True))
        await link.expect(("attempt_began",), ("succeeded", 7, 0, None), ("attempt_ended",))


async def test_unsendable_results_fail_with_a_message():
    async def unwritable(task, model):
        return experience(info={"x": object()})

    async with working() as link:
        link.give("start", Start(unwritable))
        await link.expect(("attempt_began",), ("failed", 0, 1, 7, 0, "invalid_output"))
        await link.expect(("attempt_ended",))
        link.too_large = True
        link.give("start", Start(answers, attempt=8))
        await link.expect(("attempt_began",), ("failed", 0, 1, 8, 0, "invalid_output", TOO_LARGE))
        await link.expect(("attempt_ended", 0, 1, 8))


async def test_a_workflow_that_does_not_load_fails_its_runs():
    async with working() as link:
        start = Start(answers, runs=[0, 1])
        start.definition = ("no.such:thing", "name", b"")
        link.give("start", start)
        await link.expect(("attempt_began",), ("failed", 0, 1, 7, 0, "workflow"))
        await link.expect(("failed", 0, 1, 7, 1, "workflow"), ("attempt_ended",))


async def test_async_code_is_cancelled_at_once_and_finished_runs_count():
    async with working("asynchronous") as link:
        link.give("start", Start(hangs, runs=[0, 1, 2]))
        await link.expect(("attempt_began",))
        link.give("cancel", 0, 1, 7)
        await link.expect(("attempt_ended", 0, 1, 7))
        link.give("cancel", 0, 1, 7)
        link.give("start", Start(answers, attempt=9))
        await link.expect(("attempt_began", 0, 1, 9), ("succeeded",), ("attempt_ended",))


async def waits_for_another(task, model):
    """Waits for a task; 1 if that is cancelled with this one, and this one is the same still."""
    me, other = asyncio.current_task(), asyncio.ensure_future(asyncio.Event().wait())
    try:
        await other
    except asyncio.CancelledError:
        return float(other.cancelled() and asyncio.current_task() is me)


async def test_awaited_tasks_of_a_cancelled_attempt_are_cancelled():
    async with working() as link:
        link.give("start", Start(waits_for_another, is_eval=True))
        await link.expect(("attempt_began", 0, 1, 7))
        link.give("cancel", 0, 1, 7)
        report = await asyncio.wait_for(link.report.get(), 20)
        assert report[:3] == ("succeeded", 7, 0) and report[4]["reward"] == 1.0
        await link.expect(("attempt_ended", 0, 1, 7))


async def test_an_attempt_cancelled_before_its_first_step_ends_without_beginning():
    async with working() as link:
        link.messages += [("start", Start(waits_for_another, is_eval=True))]
        link.give("cancel", 0, 1, 7)
        await link.expect(("attempt_ended", 0, 1, 7))


# The function travels by value, what it waits for must not.
GATES = {}


def wait_at_gate():
    GATES["reached"].set()
    GATES["open"].wait(20)


async def test_blocking_code_is_acknowledged_only_when_it_has_ended():
    GATES.update(reached=threading.Event(), open=threading.Event())

    class Blocks(rw.Workflow):
        def run(self):
            wait_at_gate()
            return [experience()]

    async with working() as link:
        start = Start(answers, runs=[0, 1])
        start.definition_id = 99
        executable = travel.resolve(Blocks)
        start.definition = ("by reference", "name", b"")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(travel, "load", lambda *_: executable)
            link.give("start", start)
            await link.expect(("attempt_began",))
            await asyncio.to_thread(GATES["reached"].wait, 20)
        link.give("cancel", 0, 1, 7)
        done = asyncio.ensure_future(link.report.get())
        await asyncio.wait([done], timeout=0.2)
        assert not done.done()
        GATES["open"].set()
        assert (await asyncio.wait_for(done, 20))[:4] == ("attempt_ended", 0, 1, 7)


async def test_runners_come_and_go_and_the_engine_has_the_last_word():
    async with working() as link:
        link.give("start_runner", 4, 2)
        await link.expect(("ready", 4, 2))
        link.give("start", Start(hangs, runner=4, incarnation=2))
        await link.expect(("attempt_began", 4, 2, 7))
        # Nothing is said about a life that is over.
        link.give("stop_runner", 4, 2)
        link.give("start", Start(answers, attempt=9))
        await link.expect(
            ("stopped", 4, 2),
            ("attempt_began", 0, 1, 9),
            ("succeeded", 9),
            ("attempt_ended", 0, 1, 9),
        )
    link = Link()
    work = asyncio.ensure_future(Worker(link, worker_setup("sequential")).run())
    link.give("shutdown", 1.0)
    # Nothing begins after a shutdown.
    link.give("start", Start(answers))
    await link.expect(("ready",), ("goodbye", "stopped by the engine"))
    link.give("ended", "the engine has heard")
    assert await asyncio.wait_for(work, 20) == "the engine has heard"
    assert link.report.empty()


async def reads(task, model):
    os.read(task.raw_task["pipe"], 1)
    return experience(reward=1.0)


async def test_a_run_that_blocks_the_loop_is_still_reported(monkeypatch):
    monkeypatch.setattr("rollway.stages.LOCATION_AFTER", 0)
    reader, writer = os.pipe()
    async with working() as link:

        def set_state(runner, state):
            if "place" in state:
                link.state = state
                os.write(writer, b"x")

        link.set_state = set_state
        start = Start(reads)
        start.task = travel.encode_task(rw.Task(raw_task={"pipe": reader}))
        link.give("start", start)
        await link.expect(("attempt_began",), ("succeeded", 7, 0), ("attempt_ended",))
    assert link.state["stage"] == "running" and link.state["run"] == "0"
    assert link.state["place"].endswith(" reads") and "test_worker.py:" in link.state["place"]
