"""Worker process: executes attempts for an engine.

Started as `python -m rollway.worker` with the engine's address in its environment; `--connect`
starts a supervisor instead. A `Link` carries all messages: commands arrive in batches, and reports
are collected and sent once per turn of the event loop. Async workflows of all runners share the
event loop; blocking ones run in threads, and the engine replaces the process if they do not cancel
in time.
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

from rollway import _rollway, _serialization, _trinity_alias
from rollway.errors import Closed, Error, InvalidOutput
from rollway.experience.payload import encode
from rollway.run_settings import RunSettings
from rollway.sandbox import leases
from rollway.task import Task
from rollway.worker import certificates, log_relay, plugins, supervisor
from rollway.worker import execution_marks as marks
from rollway.worker import setup as setups
from rollway.worker.run_outcome import RunFailure, RunOutput, failure
from rollway.worker.runner import WorkflowRunner
from rollway.workflow import Executable

#: Maximum number of cached workflows.
MAX_WORKFLOWS = 64

#: Labels that are sent even if they are `None`.
REQUIRED_LABELS = ("workflow_id", "model_version", "terminate_time")

#: Seconds between two updates of a runner's labels.
STATE_INTERVAL = 0.5


#: Variable with the address of the model gateway, if there is one.
GATEWAY_URL = "ROLLWAY_WORKER_GATEWAY_URL"

#: Variable with the certificate of the model gateway, as PEM, if it speaks TLS.
GATEWAY_CERTIFICATE = "ROLLWAY_WORKER_GATEWAY_CERTIFICATE"

#: Variables of the setup.
_SETUP_VARIABLES = (setups.SETUP, setups.SETUP_JSON, GATEWAY_URL, GATEWAY_CERTIFICATE)

#: Size of a marks file that the worker creates itself.
_MARK_SLOTS = 65536

#: Id of an attempt: runner, incarnation, attempt number.
Name = tuple[int, int, int]


class Link(Protocol):
    """Connection to the engine; implemented by `_rollway.WorkerLink`."""

    @property
    def runners(self) -> list[tuple[int, int]]: ...
    @property
    def file_descriptors(self) -> tuple[int, int]: ...
    @property
    def is_backlogged(self) -> bool: ...
    def poll_messages(self) -> list[tuple[Any, ...]]: ...
    def ready(self, runner: int, incarnation: int, after: int | None = None) -> None: ...
    def attempt_began(self, runner: int, incarnation: int, attempt: int) -> None: ...
    def succeeded(
        self,
        runner: int,
        incarnation: int,
        attempt: int,
        run: int,
        payload: bytes | None,
        metrics: dict[str, float],
    ) -> str | None: ...
    def failed(
        self, runner: int, incarnation: int, attempt: int, run: int, kind: str, text: str
    ) -> None: ...
    def attempt_ended(self, runner: int, incarnation: int, attempt: int) -> None: ...
    def flush(self) -> None: ...
    def stopped(self, runner: int, incarnation: int) -> None: ...
    def set_state(self, runner: int, state: dict[str, str]) -> None: ...
    def goodbye(self, reason: str) -> None: ...


class _Explorer:
    def __init__(self, setup: dict[str, Any]) -> None:
        self.concurrent_mode = setup["concurrent_mode"]
        self.sandbox = setup["settings"]["sandbox"]
        self.stages = setup["settings"]["stages"]


class _Settings:
    """The part of a configuration that a runner needs."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.explorer = _Explorer(setup)


class Worker:
    """Hosts runners and executes the commands of the engine until the connection ends."""

    def __init__(self, link: Link, setup: dict[str, Any]) -> None:
        self.link = link
        self.setup = setup
        self.runners: dict[int, WorkflowRunner] = {}
        self.incarnations: dict[int, int] = {}
        #: Open attempts by runner, each with its asyncio task.
        self.attempts: dict[int, tuple[Name, asyncio.Task[None]]] = {}
        self.workflows: OrderedDict[int, Executable] = OrderedDict()
        self.over: asyncio.Future[str] | None = None
        #: Set once the engine has dismissed this worker.
        self.dismissed = False
        #: Set while a turn of the link is scheduled or in progress.
        self.turning = False
        #: Set while the link waits until the socket is writable.
        self.is_backlogged = False

    async def run(self, is_manual: bool = False) -> str:
        """Works until the link ends; returns the reason.

        A manual worker disconnects on SIGTERM.
        """
        self.loop = loop = asyncio.get_running_loop()
        if is_manual:
            loop.add_signal_handler(signal.SIGTERM, self._shut_down, "SIGTERM received")
        self.over = loop.create_future()
        loop.set_task_factory(marks.task_factory)
        descriptors = self.link.file_descriptors
        for descriptor in descriptors:
            loop.add_reader(descriptor, self._turn)
        quiet = threading.Event()
        # In a thread, which continues while a workflow blocks the event loop.
        states = threading.Thread(
            target=self._send_states, args=(quiet,), name="rollway-states", daemon=True
        )
        states.start()
        try:
            for runner, incarnation in self.link.runners:
                self._begin_incarnation(runner, incarnation)
            return await self.over
        finally:
            quiet.set()
            loop.remove_writer(descriptors[0])
            for descriptor in descriptors:
                loop.remove_reader(descriptor)

    def _turn(self) -> None:
        """Sends the collected reports and executes the received commands."""
        self.turning = True
        try:
            received = self._execute_commands()
        except Closed as error:
            self._end(str(error))
            return
        finally:
            self.turning = False
        if received:
            # Short attempts end in their first step, which comes before the next turn.
            self._schedule_turn()
        if self.link.is_backlogged != self.is_backlogged:
            self._watch_writability()

    def _execute_commands(self) -> bool:
        """Executes the received commands; returns whether there were any."""
        messages = self.link.poll_messages()
        for message in messages:
            if message[0] == "start":
                self._start(message[1])
            else:
                self._handle(*message)
        return bool(messages)

    def _schedule_turn(self) -> None:
        if not self.turning:
            self.turning = True
            self.loop.call_soon(self._turn)

    def _watch_writability(self) -> None:
        self.is_backlogged = not self.is_backlogged
        if self.is_backlogged:
            self.loop.add_writer(self.link.file_descriptors[0], self._turn)
        else:
            self.loop.remove_writer(self.link.file_descriptors[0])

    def _end(self, why: str) -> None:
        if self.over is not None and not self.over.done():
            self.over.set_result(why)

    def _handle(self, what: str, *rest: Any) -> None:
        if what == "cancel":
            # An attempt that has ended was reported already.
            if rest[2] in self.attempts:
                self._cancel(*self.attempts[rest[2]])
        elif what == "start_runner":
            self._begin_incarnation(*rest)
        elif what == "stop_runner":
            self._end_incarnation(*rest)
        elif what == "shutdown":
            self._shut_down("stopped by the engine")
        elif what == "ended":
            self._end(rest[0])

    def _begin_incarnation(self, runner: int, incarnation: int) -> None:
        models, auxiliary = self.setup["models"], self.setup["auxiliary"]
        settings = _Settings(self.setup)
        self.runners[runner] = WorkflowRunner(
            settings,
            models[runner % len(models)],
            [engines[runner % len(engines)] for engines in auxiliary if engines],
            runner,
        )
        self.incarnations[runner] = incarnation
        self.link.ready(runner, incarnation)

    def _end_incarnation(self, runner: int, incarnation: int) -> None:
        if self.incarnations.get(runner) == incarnation:
            del self.incarnations[runner], self.runners[runner]
            for name, task in list(self.attempts.values()):
                if name[0] == runner:
                    self._cancel(name, task)
        self.link.stopped(runner, incarnation)

    def _shut_down(self, why: str) -> None:
        """Cancels all attempts and sends goodbye; the engine then closes the connection."""
        if self.dismissed:
            return
        self.dismissed = True
        self.incarnations.clear()
        for name, task in self.attempts.values():
            self._cancel(name, task)
        self.link.goodbye(why)

    def _cancel(self, name: Name, task: asyncio.Task[None]) -> None:
        task.cancel()
        # A task that is cancelled before its first step does not report its end itself.
        task.add_done_callback(lambda _: self._attempt_ended(name))

    def _is_current(self, name: Name) -> bool:
        """Returns whether the incarnation of an attempt is current; others are not reported."""
        return self.incarnations.get(name[0]) == name[1]

    def _start(self, start: Any) -> None:
        name = start.name
        if not self._is_current(name):
            return
        task = marks.begin_task(marks.slot_of(name[0]), self._execute(start, name), self.loop)
        self.attempts[name[2]] = name, task

    async def _execute(self, start: Any, name: Name) -> None:
        """Executes an attempt and reports every run."""
        log_relay.attempt.set(name[2])
        try:
            self.link.attempt_began(*name)
            runs, is_eval = start.runs, start.is_eval
            emit = partial(self._report, name, is_eval, len(runs) > 1)
            try:
                executable = self._workflow(start)
                fields = _serialization.decode_task(start.task, start.task_encoding)
                options = fields.pop(_serialization.RUN_OPTIONS, {})
                task = Task.restored(
                    executable.source,
                    fields,
                    batch_id=start.batch_id,
                    task_id=options.pop("task_id", start.task_id),
                    is_eval=is_eval,
                )
            except Exception as error:
                end = failure(error)
                for run in runs:
                    emit(run, end)
            else:
                shown = start.model_keys
                keys = dict(zip(runs, shown, strict=False)) if shown else None
                await self.runners[name[0]].execute(executable, task, runs, emit, keys, **options)
        except asyncio.CancelledError:
            # Unreported runs were cancelled; the report of the attempt's end implies it.
            pass
        except Closed as error:
            self._end(str(error))
        finally:
            self._attempt_ended(name)

    def _attempt_ended(self, name: Name) -> None:
        """Reports the end of an attempt once, in the next turn."""
        if self.attempts.pop(name[2], None) is None or not self._is_current(name):
            return
        self.link.attempt_ended(*name)
        self._schedule_turn()

    def _report(
        self, name: Name, is_eval: bool, flush: bool, run: int, end: RunOutput | RunFailure
    ) -> None:
        if self._is_current(name):
            self._send_outcome(name, is_eval, run, end)
        # Sends the report before the next run begins, which may end the process.
        if flush:
            self.link.flush()

    def _send_outcome(
        self, name: Name, is_eval: bool, run: int, end: RunOutput | RunFailure
    ) -> None:
        if isinstance(end, RunOutput):
            try:
                payload = None if is_eval or not end.experiences else encode(end.experiences)
            except Exception as error:
                end = RunFailure(InvalidOutput.code, f"the experiences cannot be written: {error}")
            else:
                refused = self.link.succeeded(*name, run, payload, end.metrics)
                if refused is None:
                    return
                end = RunFailure(InvalidOutput.code, refused)
        self.link.failed(*name, run, end.kind, end.message)

    def _workflow(self, start: Any) -> Executable:
        """Returns the workflow of an attempt; cached."""
        key = start.definition_id
        if key in self.workflows:
            self.workflows.move_to_end(key)
            return self.workflows[key]
        executable = _serialization.load(*start.definition)
        self.workflows[key] = executable
        while len(self.workflows) > MAX_WORKFLOWS:
            self.workflows.popitem(last=False)
        return executable

    def _send_states(self, quiet: threading.Event) -> None:
        while not quiet.wait(STATE_INTERVAL):
            for number, runner in list(self.runners.items()):
                # Entries that a workflow adds may not be serializable; they are skipped.
                with contextlib.suppress(Exception):
                    self.link.set_state(number, _labels(runner.state))


def _labels(state: dict[str, Any]) -> dict[str, str]:
    """Returns a state as heartbeat labels."""
    if state["terminate_time"] is None:
        state["running_time"] = time.time() - state["begin_time"]
    labels = [
        (key, value) for key, value in state.items() if value is not None or key in REQUIRED_LABELS
    ]
    return {str(key): _text(value) for key, value in labels[:64]}


def _text(value: Any) -> str:
    """Encodes a value as text that decodes to the same value."""
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
    """Connects to the engine of the environment and works; returns the reason of the end, and
    whether the engine dismissed the worker.

    Must run in the main thread of a dedicated process. Threads of blocking workflows may still run
    afterwards. Raises `PermissionError` if the engine refuses this worker permanently.
    """
    given = _Environment.taken()
    # Ctrl-C in a terminal is handled by the parent process.
    signal.signal(signal.SIGINT, lambda *_: None)
    marks.open_file(given.marks)
    try:
        link = _rollway.WorkerLink(
            given.address, given.secret, given.token, given.runners, given.marks, given.host
        )
    except Closed as error:
        return f"connection refused: {error}", False
    log_relay.install(link)
    # Modules of workflows may import Trinity-RFT.
    _trinity_alias.install()
    try:
        setup = _prepare(link, given)
    except Exception as error:
        traceback.print_exc()
        message = "".join(traceback.format_exception_only(error)).strip()
        link.start_failed(f"{given.host}: {message}")
        return "the setup failed", False
    worker = Worker(link, setup)
    return asyncio.run(worker.run(given.is_manual)), worker.dismissed


def main() -> None:
    """Runs the worker process until the connection ends.

    With arguments it runs the supervisor: see `rollway.worker.supervisor`.
    """
    if sys.argv[1:]:
        supervisor.main(sys.argv[1:])
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
        print(f"connection refused: {error}", file=sys.stderr)
        code = supervisor.REFUSED
    except Exception:
        # The process exits below, before Python would print the traceback.
        traceback.print_exc()
    finally:
        log_relay.finish()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Environment:
    """Settings from the environment; removed from it, so that user code does not inherit them."""

    def __init__(
        self, address: str, secret: str, token: str, runners: str, path: str | None
    ) -> None:
        self.address = address
        self.secret = secret
        self.token = token
        self.runners = int(runners)
        #: Own file if none was given: no process on this machine reads it afterwards.
        self.marks = path or marks.new_file(_MARK_SLOTS)
        self.host = socket.gethostname()
        #: Set for a worker that was started manually, not by the engine.
        self.is_manual = not token
        #: Setup variables; a manual worker receives them after the handshake.
        self.setup = {name: os.environ.pop(name) for name in _SETUP_VARIABLES if name in os.environ}

    @classmethod
    def taken(cls) -> _Environment:
        """Removes the settings from the environment; exits if one is missing."""
        address, secret, token, runners, path = _rollway.worker_variables()
        missing = [name for name in (address, secret, runners) if name not in os.environ]
        if missing:
            sys.exit(
                f"{', '.join(missing)} not set: let the engine start workers, or start them with "
                "`python -m rollway.worker --connect HOST:PORT`"
            )
        return cls(
            os.environ.pop(address),
            os.environ.pop(secret),
            os.environ.pop(token, ""),
            os.environ.pop(runners),
            os.environ.pop(path, None),
        )


def _prepare(link: Any, given: _Environment) -> dict[str, Any]:
    """Applies the setup to this process."""
    variables = given.setup
    if given.is_manual:
        os.environ.update(link.env)
        variables = {name: os.environ.pop(name) for name in _SETUP_VARIABLES if name in os.environ}
    return _setup(variables)


def _setup(variables: dict[str, str]) -> dict[str, Any]:
    gateway = variables.get(GATEWAY_URL)
    if GATEWAY_CERTIFICATE in variables:
        # Before anything that connects reads its roots.
        certificates.trust(variables[GATEWAY_CERTIFICATE])
    if setups.SETUP in variables:
        setup = setups.setup(variables[setups.SETUP], gateway)
        setups.take(setup)
        plugins.load()
        leases.recover(RunSettings.of(setup["settings"]).sandbox)
        return setup
    if setups.SETUP_JSON not in variables:
        raise Error(f"{setups.SETUP_JSON} is not set: the engine sent no setup")
    setup = setups.setup_json(variables[setups.SETUP_JSON], gateway)
    # Importing registers their workflows and reward functions.
    for module in setup["modules"]:
        importlib.import_module(module)
    plugins.load()
    leases.recover(RunSettings.of(setup["settings"]).sandbox)
    return setup


if __name__ == "__main__":
    main()
