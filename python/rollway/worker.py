"""The worker process: executes attempts for an engine.

Started as `python -m rollway.worker` with the engine's address in its environment; with
`--connect` it keeps such processes for a job on another machine. Everything is
told over a link (see `Link`): messages come in batches, and what was reported by plain calls goes
out together, when the event loop has come round. Async workflows of all runners share the event
loop; blocking ones get a thread, and if they do not give up in time the engine replaces the
process.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import OrderedDict
from functools import partial
from typing import Any, Protocol

from rollway import _rollway, marks, pool, said, station, travel
from rollway.errors import Closed, Error
from rollway.outcome import Outcome, RunFailure, failure
from rollway.payload import encode
from rollway.runner import WorkflowRunner
from rollway.task import Task
from rollway.workflow import Executable

#: How many workflows are kept ready for the next attempt.
WORKFLOWS_MAX = 64

#: What is told of a runner even if it is nothing.
ALWAYS = ("workflow_id", "model_version", "terminate_time")

#: How often a runner's state is passed on, in seconds.
STATE_INTERVAL = 0.5


#: The variable in which a worker finds the model gateway, if there is one.
MODELS = "ROLLWAY_WORKER_MODELS"

#: What the engine says about models, and where it says it.
_TOLD = (pool.SETUP, pool.SETUP_JSON, MODELS)

#: Room for runners of any number, where a worker makes a file for marks itself.
_PLACES = 65536

#: What an attempt is called: its runner, the life of that and its own number.
Name = tuple[int, int, int]


class Link(Protocol):
    """The connection to the engine, as `_rollway.WorkerLink` has it."""

    @property
    def runners(self) -> list[tuple[int, int]]: ...
    @property
    def ears(self) -> tuple[int, int]: ...
    @property
    def full(self) -> bool: ...
    def turn(self) -> list[tuple[Any, ...]]: ...
    def ready(self, runner: int, life: int, after: int | None = None) -> None: ...
    def began(self, runner: int, life: int, attempt: int) -> None: ...
    def succeeded(
        self, runner: int, life: int, attempt: int, run: int, payload: bytes | None, metrics: dict
    ) -> str | None: ...
    def failed(
        self, runner: int, life: int, attempt: int, run: int, kind: str, words: str
    ) -> None: ...
    def ended(self, runner: int, life: int, attempt: int) -> None: ...
    def settle(self) -> None: ...
    def stopped(self, runner: int, life: int) -> None: ...
    def set_state(self, runner: int, state: dict[str, str]) -> None: ...
    def goodbye(self, reason: str) -> None: ...


class _Explorer:
    def __init__(self, concurrent_mode: str) -> None:
        self.concurrent_mode = concurrent_mode


class _Settings:
    """As much of a configuration as a runner needs."""

    def __init__(self, concurrent_mode: str) -> None:
        self.explorer = _Explorer(concurrent_mode)


class Worker:
    """Hosts runners and does what the engine says, until it says no more."""

    def __init__(self, link: Link, setup: dict[str, Any]) -> None:
        self.link = link
        self.setup = setup
        self.runners: dict[int, WorkflowRunner] = {}
        self.lives: dict[int, int] = {}
        #: Those that are not over, each with its task once its first step was made.
        self.attempts: dict[int, tuple[Name, asyncio.Task[None]]] = {}
        self.workflows: OrderedDict[int, Executable] = OrderedDict()
        self.over: asyncio.Future[str] | None = None
        #: Whether the engine has said that it needs no more.
        self.dismissed = False
        #: Whether a turn of the link is about to be taken anyway.
        self.turning = False
        #: Whether the link waits for the socket to have room.
        self.full = False

    async def run(self, by_hand: bool = False) -> str:
        """Works until the link ends; returns why.

        One that was started by hand leaves when it is told to terminate.
        """
        self.loop = loop = asyncio.get_running_loop()
        if by_hand:
            loop.add_signal_handler(signal.SIGTERM, self._leave, "it was told to terminate")
        self.over = loop.create_future()
        loop.set_task_factory(marks.task_factory)
        ears = self.link.ears
        for ear in ears:
            loop.add_reader(ear, self._turn)
        quiet = threading.Event()
        # In a thread of its own, which goes on while a workflow keeps the event loop to itself.
        states = threading.Thread(
            target=self._tell_states, args=(quiet,), name="rollway-states", daemon=True
        )
        states.start()
        try:
            for runner, life in self.link.runners:
                self._begin_life(runner, life)
            return await self.over
        finally:
            quiet.set()
            loop.remove_writer(ears[0])
            for ear in ears:
                loop.remove_reader(ear)

    def _turn(self) -> None:
        """Sends what was said and does what the engine says."""
        self.turning = True
        try:
            received = self._take()
        except Closed as error:
            self._end(str(error))
            return
        finally:
            self.turning = False
        if received:
            # Short attempts end in their first step, which comes before the next turn.
            self._turn_soon()
        if self.link.full != self.full:
            self._watch_room()

    def _take(self) -> bool:
        """Does what the engine says; returns whether it has said anything."""
        messages = self.link.turn()
        for message in messages:
            if message[0] == "start":
                self._start(message[1])
            else:
                self._handle(*message)
        return bool(messages)

    def _turn_soon(self) -> None:
        if not self.turning:
            self.turning = True
            self.loop.call_soon(self._turn)

    def _watch_room(self) -> None:
        self.full = not self.full
        if self.full:
            self.loop.add_writer(self.link.ears[0], self._turn)
        else:
            self.loop.remove_writer(self.link.ears[0])

    def _end(self, why: str) -> None:
        if self.over is not None and not self.over.done():
            self.over.set_result(why)

    def _handle(self, what: str, *rest: Any) -> None:
        if what == "cancel":
            # If it is over already, the engine will have heard.
            if rest[2] in self.attempts:
                self._cancel(*self.attempts[rest[2]])
        elif what == "start_runner":
            self._begin_life(*rest)
        elif what == "stop_runner":
            self._end_life(*rest)
        elif what == "shutdown":
            self._leave("told to")
        elif what == "ended":
            self._end(rest[0])

    def _begin_life(self, runner: int, life: int) -> None:
        models, auxiliary = self.setup["models"], self.setup["auxiliary"]
        settings = _Settings(self.setup["concurrent_mode"])
        self.runners[runner] = WorkflowRunner(
            settings,
            models[runner % len(models)],
            [engines[runner % len(engines)] for engines in auxiliary if engines],
            runner,
        )
        self.lives[runner] = life
        self.link.ready(runner, life)

    def _end_life(self, runner: int, life: int) -> None:
        if self.lives.get(runner) == life:
            del self.lives[runner], self.runners[runner]
            for name, task in list(self.attempts.values()):
                if name[0] == runner:
                    self._cancel(name, task)
        self.link.stopped(runner, life)

    def _leave(self, why: str) -> None:
        """Gives up everything and says goodbye. The engine then ends the connection."""
        if self.dismissed:
            return
        self.dismissed = True
        self.lives.clear()
        for name, task in self.attempts.values():
            self._cancel(name, task)
        self.link.goodbye(why)

    def _cancel(self, name: Name, task: asyncio.Task[None]) -> None:
        task.cancel()
        # One that has not begun will never come to say so itself.
        task.add_done_callback(lambda _: self._over(name))

    def _lives(self, name: Name) -> bool:
        """Tells whether the life of an attempt lasts; of one that is over nothing may be said."""
        return self.lives.get(name[0]) == name[1]

    def _start(self, start: Any) -> None:
        name = start.name
        if not self._lives(name):
            return
        task = marks.begin_task(marks.place_of(name[0]), self._execute(start, name), self.loop)
        self.attempts[name[2]] = name, task

    async def _execute(self, start: Any, name: Name) -> None:
        """Executes an attempt and says how it went, run by run."""
        said.attempt.set(name[2])
        try:
            self.link.began(*name)
            runs, is_eval = start.runs, start.is_eval
            emit = partial(self._report, name, is_eval, len(runs) > 1)
            try:
                executable = self._workflow(start)
                task = Task.restored(
                    executable.source,
                    travel.unpack(start.task, start.task_encoding),
                    batch_id=start.batch_id,
                    task_id=start.task_id,
                    is_eval=is_eval,
                )
            except Exception as error:
                end = failure(error)
                for run in runs:
                    emit(run, end)
            else:
                shown = start.model_keys
                keys = dict(zip(runs, shown, strict=False)) if shown else None
                await self.runners[name[0]].execute(executable, task, runs, emit, keys)
        except asyncio.CancelledError:
            # What has not been reported was cancelled; the end of the attempt says so.
            pass
        except Closed as error:
            self._end(str(error))
        finally:
            self._over(name)

    def _over(self, name: Name) -> None:
        """Says once that an attempt is over, together with what others say at this moment."""
        if self.attempts.pop(name[2], None) is None or not self._lives(name):
            return
        self.link.ended(*name)
        self._turn_soon()

    def _report(
        self, name: Name, is_eval: bool, settle: bool, run: int, end: Outcome | RunFailure
    ) -> None:
        if self._lives(name):
            self._say(name, is_eval, run, end)
        # What has ended is safe before the next run begins, which may end the process.
        if settle:
            self.link.settle()

    def _say(self, name: Name, is_eval: bool, run: int, end: Outcome | RunFailure) -> None:
        if isinstance(end, Outcome):
            try:
                payload = None if is_eval or not end.experiences else encode(end.experiences)
            except Exception as error:
                end = RunFailure("invalid_output", f"the experiences cannot be written: {error}")
            else:
                refused = self.link.succeeded(*name, run, payload, end.metrics)
                if refused is None:
                    return
                end = RunFailure("invalid_output", refused)
        self.link.failed(*name, run, end.kind, end.message)

    def _workflow(self, start: Any) -> Executable:
        """Returns the workflow of an attempt, loaded once."""
        key = start.definition_id
        if key in self.workflows:
            self.workflows.move_to_end(key)
            return self.workflows[key]
        executable = travel.load(*start.definition)
        self.workflows[key] = executable
        while len(self.workflows) > WORKFLOWS_MAX:
            self.workflows.popitem(last=False)
        return executable

    def _tell_states(self, quiet: threading.Event) -> None:
        while not quiet.wait(STATE_INTERVAL):
            for number, runner in list(self.runners.items()):
                # What a workflow adds may be anything; that nobody can read it is no reason to die.
                with contextlib.suppress(Exception):
                    self.link.set_state(number, _told(runner.state))


def _told(state: dict[str, Any]) -> dict[str, str]:
    """Returns a state as heartbeats carry it."""
    if state["terminate_time"] is None:
        state["running_time"] = time.time() - state["begin_time"]
    known = [(key, value) for key, value in state.items() if value is not None or key in ALWAYS]
    return {str(key): _text(value) for key, value in known[:64]}


def _text(value: Any) -> str:
    """Returns a value as text that is read back as the same value."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return str(value)


def work() -> tuple[str, bool]:
    """Connects as the environment says and works; returns why no more, and whether it was told to.

    In the main thread of a process that is for nothing else. Threads of blocking workflows may
    still run afterwards; nobody waits for them. Raises `PermissionError` if the engine will never
    take this worker in.
    """
    given = _Given.taken()
    # Ctrl-C in a terminal is for the parent, which tells its workers what to do.
    signal.signal(signal.SIGINT, lambda *_: None)
    marks.open_file(given.marks)
    try:
        link = _rollway.WorkerLink(
            given.address, given.secret, given.token, given.runners, given.marks, given.host
        )
    except Closed as error:
        return f"not taken in: {error}", False
    said.install(link)
    try:
        setup = _prepare(link, given)
    except Exception as error:
        traceback.print_exc()
        words = "".join(traceback.format_exception_only(error)).strip()
        link.start_failed(f"{given.host}: {words}")
        return "it could not be set up", False
    worker = Worker(link, setup)
    return asyncio.run(worker.run(given.by_hand)), worker.dismissed


def main() -> None:
    """Works as a process of its own, and ends with the connection.

    With arguments it is for people: see `rollway.station`.
    """
    if sys.argv[1:]:
        station.main(sys.argv[1:])
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    code = 1
    try:
        why, dismissed = work()
        code = 0 if dismissed else 1
        if not dismissed:
            print(why, file=sys.stderr)
    except SystemExit as error:
        print(error, file=sys.stderr)
    except PermissionError as error:
        print(f"not taken in: {error}", file=sys.stderr)
        code = station.REFUSED
    except Exception:
        # The process ends below before anybody else could say so.
        traceback.print_exc()
    finally:
        said.finish()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Given:
    """What a worker finds in its environment: not for the user's code, nor for what it starts."""

    def __init__(
        self, address: str, secret: str, token: str, runners: str, path: str | None
    ) -> None:
        self.address = address
        self.secret = secret
        self.token = token
        self.runners = int(runners)
        #: One of its own is as good as one that outlives it, if nobody here could read that.
        self.marks = path or marks.new_file(_PLACES)
        self.host = socket.gethostname()
        #: Whether somebody else than the engine started it.
        self.by_hand = not token
        #: What the engine says about models; whoever is started by hand hears it later.
        self.told = {name: os.environ.pop(name) for name in _TOLD if name in os.environ}

    @classmethod
    def taken(cls) -> _Given:
        """Takes it out of the environment, or ends the process if it is not there."""
        address, secret, token, runners, path = _rollway.worker_variables()
        missing = [name for name in (address, secret, runners) if name not in os.environ]
        if missing:
            sys.exit(
                f"{', '.join(missing)} not set: workers are started by the engine, or by hand with "
                "`python -m rollway.worker --connect HOST:PORT`"
            )
        return cls(
            os.environ.pop(address),
            os.environ.pop(secret),
            os.environ.pop(token, ""),
            os.environ.pop(runners),
            os.environ.pop(path, None),
        )


def _prepare(link: Any, given: _Given) -> dict[str, Any]:
    """Has what runs need in this process."""
    told = given.told
    if given.by_hand:
        os.environ.update(link.env)
        told = {name: os.environ.pop(name) for name in _TOLD if name in os.environ}
    return _setup(told)


def _setup(told: dict[str, str]) -> dict[str, Any]:
    gateway = told.get(MODELS)
    if pool.SETUP in told:
        setup = pool.setup(told[pool.SETUP], gateway)
        pool.take(setup)
        return setup
    if pool.SETUP_JSON not in told:
        raise Error(f"{pool.SETUP_JSON} is not set: the engine has said nothing about models")
    setup = pool.setup_json(told[pool.SETUP_JSON], gateway)
    # What they register is known by name from now on.
    for module in setup["modules"]:
        importlib.import_module(module)
    return setup


if __name__ == "__main__":
    main()
