"""Stages of runs and their code locations, for the runner status."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import sys
import sysconfig
import threading
import time
from types import FrameType
from typing import Any

from rollway.errors import StageTimeout
from rollway.run_settings import RunSettings

#: Built-in stages: creation of the workflow, execution, reward, encoding of the experiences.
STARTING = "starting workflow"
RUNNING = "running"
REWARDING = "rewarding"
ENCODING = "encoding"

#: Stages with a configured deadline, by other names.
_ALIASES = {STARTING: "setup", RUNNING: "agent", REWARDING: "reward"}

#: Maximum length of a stage and of a code location.
MAX_TEXT_CHARS = 200

#: Seconds in one stage before the code location is reported.
LOCATION_AFTER = 2.0

#: Minimum seconds between two lookups of the code location.
LOCATION_INTERVAL = 1.0

#: Maximum number of inspected frames.
_DEPTH = 64


class RunStage:
    """Current stage of a run. Code inside `with` belongs to this run."""

    __slots__ = (
        *("_among", "_before", "_looked", "_location"),
        *("of", "resources", "run", "settings", "since", "stage", "task", "thread"),
    )

    def __init__(
        self,
        of: Any,
        run: int,
        among: dict[int, RunStage],
        settings: RunSettings | None = None,
    ) -> None:
        self.settings = settings or RunSettings()
        #: Sandboxes of the run that were not closed.
        self.resources: set[Any] = set()
        #: Task of the run.
        self.of = of
        self.run = run
        self.stage = STARTING
        self.since = time.time()
        #: Table that contains this object inside `with`.
        self._among = among
        #: Executing thread, and asyncio task if the workflow is a coroutine.
        self.thread: int | None = None
        self.task: asyncio.Task[Any] | None = None
        self._location: str | None = None
        self._looked = 0.0

    def __enter__(self) -> RunStage:
        self._among[id(self)] = self
        self._before = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._before)
        del self._among[id(self)]

    def names(self) -> dict[str, Any]:
        """Returns the ids of the run."""
        return {"batch": str(self.of.batch_id), "task": self.of.task_id, "run": self.run}

    def set(self, stage: str) -> None:
        """Changes the stage."""
        self.stage, self.since = stage[:MAX_TEXT_CHARS], time.time()

    def set_executor(self, task: asyncio.Task[Any] | None = None) -> None:
        """Records the current thread, and the task of a coroutine, as the executor."""
        self.thread, self.task = threading.get_ident(), task

    async def release(self) -> None:
        """Ends the sandboxes that the run has left open."""
        closing = [asyncio.ensure_future(sandbox.close()) for sandbox in self.resources]
        self.resources.clear()
        # If cancelled here, they end nevertheless.
        await asyncio.wait(closing)

    def code_location(self, now: float) -> str | None:
        """Returns the code location if the stage has lasted `LOCATION_AFTER` seconds."""
        if now - self.since < LOCATION_AFTER:
            return None
        if now - self._looked >= LOCATION_INTERVAL or now < self._looked:
            self._looked = now
            self._location = _location(self.thread, self.task)
        return self._location


_current: contextvars.ContextVar[RunStage | None] = contextvars.ContextVar("doing", default=None)


def current() -> RunStage | None:
    """Returns the stage of the current run; `None`: outside of runs."""
    return _current.get()


class StageScope:
    """An entered stage. `with` restores the previous stage at its end.

    `async with` also ends the code inside at the deadline of the stage, with `StageTimeout`.
    """

    __slots__ = ("_before", "_deadline", "_doing", "_mine", "_timeout")

    def __init__(
        self, one: RunStage | None, mine: str, before: str, timeout: float | None = None
    ) -> None:
        self._doing = one
        self._mine = mine
        self._before = before
        self._timeout = timeout
        self._deadline: _Deadline | None = None

    def __enter__(self) -> StageScope:
        return self

    async def __aenter__(self) -> StageScope:
        if self._timeout is not None:
            self._deadline = _Deadline(self._mine, self._timeout)
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.__exit__()
        if self._deadline is not None:
            self._deadline.end(error)

    def __exit__(self, *_: object) -> None:
        # A stage set by other code of the run in the meantime stays.
        if self._doing is not None and self._doing.stage == self._mine:
            self._doing.set(self._before)


class _Deadline:
    """Cancels the current task at its time, and turns that into `StageTimeout`."""

    def __init__(self, stage: str, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._stage = stage
        self._seconds = seconds
        self._is_over = False
        self._handle = asyncio.get_running_loop().call_later(seconds, self._cancel)

    def _cancel(self) -> None:
        self._is_over = True
        self._task.cancel()

    def end(self, error: BaseException | None) -> None:
        """Ends the stage, with the exception of the code inside."""
        self._handle.cancel()
        if not self._is_over:
            return
        # Python 3.10 cannot distinguish this cancellation from others.
        others = self._task.uncancel() if hasattr(self._task, "uncancel") else 0
        if isinstance(error, asyncio.CancelledError) and others == 0:
            raise StageTimeout(
                f"the stage `{self._stage}` exceeded its deadline of {self._seconds:g} s",
                stage=self._stage,
                seconds=self._seconds,
            ) from None


def stage(name: str, timeout: float | None = None) -> StageScope:
    """Sets the stage of the current run, shown in the runner status:

        rw.stage("compiling the tests")
        with rw.stage("waiting for the sandbox"):
            ...

    `async with` has a deadline: `timeout` in seconds, or that of `explorer.stages` for `setup`,
    `agent`, `reward` and `teardown`. At its end the code inside is cancelled and `StageTimeout`
    raised, which names the stage:

        async with rw.stage("reward", timeout=60):
            ...

    The cost is negligible. Works in coroutines, blocking workflows, `asyncio.to_thread` and threads
    that run in the context; has no effect elsewhere.
    """
    one = _current.get()
    if one is None:
        return _NONE if timeout is None else StageScope(None, str(name), "", timeout)
    before = one.stage
    one.set(str(name))
    if timeout is None:
        timeout = one.settings.stages.timeout(_ALIASES.get(one.stage, one.stage))
    return StageScope(one, one.stage, before, timeout)


_NONE = StageScope(None, "", "")


def waiting(model: str | None) -> StageScope:
    """Enters the stage "waiting for model"; a stage set by the workflow stays."""
    one = _current.get()
    if one is None or one.stage != RUNNING:
        return _NONE
    return stage(f"waiting for model {model or ''}".rstrip())


def _location(thread: int | None, task: asyncio.Task[Any] | None) -> str | None:
    """Returns `file:line function` of the innermost frame of user code."""
    frames = None if task is None else _awaited(task)
    if frames is None:
        frame = None if thread is None else sys._current_frames().get(thread)
        frames = []
        while frame is not None and len(frames) < 4 * _DEPTH:
            frames.append(frame)
            frame = frame.f_back
        frames.reverse()
    for foreign in (_PACKAGES, _LIBRARY, _OURS):
        for frame in reversed(frames):
            if not frame.f_code.co_filename.startswith(foreign):
                return _code_location(frame)
    return None


def _awaited(task: asyncio.Task[Any]) -> list[FrameType] | None:
    """Returns the frames of a waiting task, outermost first; `None`: it is executing."""
    frames: list[FrameType] = []
    seen: Any = task
    while isinstance(seen, asyncio.Task) and len(frames) < _DEPTH:
        inner: Any = seen.get_coro()
        while inner is not None and len(frames) < _DEPTH:
            kind = next((kind for kind in _KINDS if hasattr(inner, f"{kind}_frame")), None)
            if kind is None:
                break
            if getattr(inner, f"{kind}_running"):
                return None
            frame = getattr(inner, f"{kind}_frame")
            if frame is None:
                break
            frames.append(frame)
            inner = getattr(inner, _KINDS[kind], None)
        seen = _next_task(seen, frames[-1] if frames else None)
    return frames


def _next_task(task: asyncio.Task[Any], innermost: FrameType | None) -> Any:
    """Returns a task that this task awaits; `None`: it awaits something else."""
    waits = getattr(task, "_fut_waiter", None)
    found = list(getattr(waits, "_children", None) or [waits])
    if innermost is not None and innermost.f_code.co_filename.startswith(_ASYNCIO):
        # `wait_for`, `wait` and task groups hold the awaited tasks in local variables.
        known = innermost.f_locals
        found += [known.get("fut"), *list(known.get("fs") or ())]
        found += list(getattr(known.get("self"), "_tasks", ()))
    return next((one for one in found if isinstance(one, asyncio.Task) and not one.done()), None)


#: Attribute prefix of each awaitable type, and its attribute for the inner awaitable.
_KINDS = {"cr": "cr_await", "gi": "gi_yieldfrom", "ag": "ag_await"}


def _code_location(frame: FrameType) -> str:
    name = frame.f_code.co_filename
    with contextlib.suppress(OSError):
        here = os.getcwd() + os.sep
        name = name.removeprefix(here)
    function = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
    return f"{name}:{frame.f_lineno} {function}"[-MAX_TEXT_CHARS:]


def _paths(*names: str) -> tuple[str, ...]:
    known = sysconfig.get_paths()
    return tuple({known[name] + os.sep for name in names if name in known})


#: Path prefixes of skipped frames: Rollway, the standard library, installed packages.
_OURS = (os.path.dirname(os.path.abspath(__file__)) + os.sep, "<frozen ")
_LIBRARY = _OURS + tuple(
    path for path in _paths("stdlib", "platstdlib") if not path.endswith("site-packages" + os.sep)
)
_ASYNCIO = os.path.dirname(asyncio.__file__) + os.sep
_PACKAGES = _LIBRARY + _paths("purelib", "platlib")
