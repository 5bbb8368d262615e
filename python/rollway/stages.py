"""What runs are at, in words, and where in their code: for people who look at a runner."""

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

#: What a run is at while its workflow is made, while it is executed, while its answer is judged,
#: and afterwards.
STARTING = "starting workflow"
RUNNING = "running"
REWARDING = "rewarding"
ENCODING = "encoding"

#: The longest name of a stage, and of a place.
TEXT_MAX = 200

#: How long a run is at one thing before it is told where in the code that is, in seconds.
PLACE_AFTER = 2.0

#: How often that is looked up at most, in seconds.
PLACE_EVERY = 1.0

#: How many frames are looked at.
_DEPTH = 64


class RunStage:
    """What one run is at. What is executed inside of `with` belongs to this run."""

    __slots__ = (
        *("_among", "_before", "_looked", "_place"),
        *("of", "run", "since", "stage", "task", "thread"),
    )

    def __init__(self, of: Any, run: int, among: dict[int, RunStage]) -> None:
        #: The task that it is a run of.
        self.of = of
        self.run = run
        self.stage = STARTING
        self.since = time.time()
        #: Where it is found as long as it lasts.
        self._among = among
        #: Where it is executed: the thread, and the task if it is a coroutine.
        self.thread: int | None = None
        self.task: asyncio.Task[Any] | None = None
        self._place: str | None = None
        self._looked = 0.0

    def __enter__(self) -> RunStage:
        self._among[id(self)] = self
        self._before = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._before)
        del self._among[id(self)]

    def names(self) -> dict[str, Any]:
        """Returns what the run is called."""
        return {"batch": str(self.of.batch_id), "task": self.of.task_id, "run": self.run}

    def set(self, stage: str) -> None:
        """It is at something else."""
        self.stage, self.since = stage[:TEXT_MAX], time.time()

    def here(self, task: asyncio.Task[Any] | None = None) -> None:
        """It is executed by this thread, and by this task if it is a coroutine."""
        self.thread, self.task = threading.get_ident(), task

    def place(self, now: float) -> str | None:
        """Returns where in its code it is, if it has been at one thing for a while."""
        if now - self.since < PLACE_AFTER:
            return None
        if now - self._looked >= PLACE_EVERY or now < self._looked:
            self._looked = now
            self._place = _place(self.thread, self.task)
        return self._place


_current: contextvars.ContextVar[RunStage | None] = contextvars.ContextVar("doing", default=None)


def current() -> RunStage | None:
    """Returns what the run is at to which the current code belongs; none outside of runs."""
    return _current.get()


class StageScope:
    """A stage that was begun. Used with `with`, the one before comes back afterwards."""

    __slots__ = ("_before", "_doing", "_mine")

    def __init__(self, one: RunStage | None, mine: str, before: str) -> None:
        self._doing = one
        self._mine = mine
        self._before = before

    def __enter__(self) -> StageScope:
        return self

    def __exit__(self, *_: object) -> None:
        # Whatever else of the run has said something else meanwhile is right.
        if self._doing is not None and self._doing.stage == self._mine:
            self._doing.set(self._before)


def stage(name: str) -> StageScope:
    """Says what the run is at from now on, for people who look at it::

        rw.stage("compiling the tests")
        with rw.stage("waiting for the sandbox"):
            ...

    Costs next to nothing. Works in coroutines, in blocking workflows, in `asyncio.to_thread` and in
    threads that were given the context; elsewhere, and outside of runs, it does nothing.
    """
    one = _current.get()
    if one is None:
        return _NONE
    before = one.stage
    one.set(str(name))
    return StageScope(one, one.stage, before)


_NONE = StageScope(None, "", "")


def waiting(model: str | None) -> StageScope:
    """The run waits for a model. What it said itself that it is at stays."""
    one = _current.get()
    if one is None or one.stage != RUNNING:
        return _NONE
    return stage(f"waiting for model {model or ''}".rstrip())


def _place(thread: int | None, task: asyncio.Task[Any] | None) -> str | None:
    """Returns `file:line function` of the innermost frame that is the user's."""
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
                return _words(frame)
    return None


def _awaited(task: asyncio.Task[Any]) -> list[FrameType] | None:
    """Returns the frames of a task that waits, the outermost first; none if it is executed now."""
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
    """Returns a task that this one waits for, alone or with others; none if it waits otherwise."""
    waits = getattr(task, "_fut_waiter", None)
    found = list(getattr(waits, "_children", None) or [waits])
    if innermost is not None and innermost.f_code.co_filename.startswith(_ASYNCIO):
        # `wait_for`, `wait` and groups of tasks wait for something that is told of them.
        known = innermost.f_locals
        found += [known.get("fut"), *list(known.get("fs") or ())]
        found += list(getattr(known.get("self"), "_tasks", ()))
    return next((one for one in found if isinstance(one, asyncio.Task) and not one.done()), None)


#: The sorts of objects that can be awaited, and what each calls the one that it waits for.
_KINDS = {"cr": "cr_await", "gi": "gi_yieldfrom", "ag": "ag_await"}


def _words(frame: FrameType) -> str:
    name = frame.f_code.co_filename
    with contextlib.suppress(OSError):
        here = os.getcwd() + os.sep
        name = name.removeprefix(here)
    function = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
    return f"{name}:{frame.f_lineno} {function}"[-TEXT_MAX:]


def _paths(*names: str) -> tuple[str, ...]:
    known = sysconfig.get_paths()
    return tuple({known[name] + os.sep for name in names if name in known})


#: Whose frames are passed over: Rollway's, those of Python, and those of packages.
_OURS = (os.path.dirname(os.path.abspath(__file__)) + os.sep, "<frozen ")
_LIBRARY = _OURS + tuple(
    path for path in _paths("stdlib", "platstdlib") if not path.endswith("site-packages" + os.sep)
)
_ASYNCIO = os.path.dirname(asyncio.__file__) + os.sep
_PACKAGES = _LIBRARY + _paths("purelib", "platlib")
