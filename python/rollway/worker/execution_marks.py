"""Execution marks: a file that shows which runner's code a worker executes.

Many workflows share a process. If it dies, the engine reads the marks to find the suspect; waiting
workflows are not marked. A mark that does not change for long means a workflow that blocks the
event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import mmap
import os
import sys
import tempfile
from collections.abc import Coroutine, Generator, MutableSequence
from typing import Any

#: Slot of the runner whose code is executed.
place: contextvars.ContextVar[int | None] = contextvars.ContextVar("place", default=None)

#: Mark of code in a separate thread, which does not block the event loop.
_THREAD = 255

#: Marks of successive steps.
_steps = itertools.cycle(range(1, _THREAD))

#: One byte per runner: 0 while it waits, otherwise different for every step.
_marks: MutableSequence[int] | mmap.mmap = bytearray(1)


def new_file(places: int) -> str:
    """Creates an anonymous marks file, for a process that was not given one."""
    if hasattr(os, "memfd_create"):
        # Unlinked: it is deleted with the process, which keeps it open.
        descriptor = os.memfd_create("rollway-marks", os.MFD_CLOEXEC)
        path = f"/proc/self/fd/{descriptor}"
    else:
        descriptor, path = tempfile.mkstemp(prefix="rollway-marks-")
    os.write(descriptor, bytes(places))
    return path


def open_file(path: str) -> None:
    """Maps the file; marks are written to it from now on."""
    global _marks
    descriptor = os.open(path, os.O_RDWR)
    try:
        _marks = mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


def place_of(runner: int) -> int:
    """Returns the slot of a runner in this process."""
    return runner % len(_marks)


class ExecutionMark:
    """Context manager that marks a thread as executing a runner's code."""

    def __init__(self) -> None:
        self._place = place.get()

    def __enter__(self) -> None:
        if self._place is not None:
            _marks[self._place] = _THREAD

    def __exit__(self, *_: object) -> None:
        if self._place is not None:
            _marks[self._place] = 0


class Marked(Coroutine[Any, Any, Any]):
    """Coroutine wrapper that sets the mark while it executes, not while it waits."""

    __slots__ = ("_inner", "_place")

    def __init__(self, inner: Any, where: int) -> None:
        self._inner = inner
        self._place = where

    def send(self, value: Any) -> Any:
        _marks[self._place] = next(_steps)
        try:
            return self._inner.send(value)
        finally:
            _marks[self._place] = 0

    def throw(self, *error: Any) -> Any:
        _marks[self._place] = next(_steps)
        try:
            return self._inner.throw(*error)
        finally:
            _marks[self._place] = 0

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        # Debuggers and libraries read `cr_frame` and similar attributes.
        return getattr(self._inner, name)


class _Ahead(Marked):
    """A marked coroutine whose first step was made before its task came to it."""

    __slots__ = ("_error", "_returned", "_waits_for")

    def __init__(self, inner: Any, where: int) -> None:
        self._inner = inner
        self._place = where
        #: What came of the first step, until the task comes to it.
        self._waits_for = self._returned = _NOTHING
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Makes the first step."""
        _marks[self._place] = next(_steps)
        try:
            self._waits_for = self._inner.send(None)
        except StopIteration as end:
            self._returned = end.value
        except BaseException as error:
            self._error = error
        finally:
            _marks[self._place] = 0

    def send(self, value: Any) -> Any:
        if self._returned is not _NOTHING:
            raise StopIteration(self._returned)
        if self._waits_for is not _NOTHING:
            waits_for, self._waits_for = self._waits_for, _NOTHING
            return waits_for
        if self._error is not None:
            raise self._error
        return Marked.send(self, value)

    def throw(self, *error: Any) -> Any:
        if self._returned is not _NOTHING:
            raise StopIteration(self._returned)
        if self._error is not None:
            raise self._error
        # Cancelled before its task came to it: so is what it waits for, as it is later.
        waits_for, self._waits_for = self._waits_for, _NOTHING
        if asyncio.isfuture(waits_for) and waits_for.cancel():
            return waits_for
        return Marked.throw(self, *error)


_NOTHING: Any = object()

#: Whether tasks of runners make their first step at once: Python 3.10 does not let us.
AT_ONCE = sys.version_info >= (3, 11)


def begin_task(where: int, coroutine: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any]:
    """Makes a task for a runner, to which everything belongs that the task begins.

    Its first step is made at once (see `AT_ONCE`): what a short attempt says can be sent without
    another round of the event loop. Not to be called by a task.
    """
    context = contextvars.copy_context()
    context.run(place.set, where)
    if not AT_ONCE:
        return context.run(asyncio.Task, Marked(coroutine, where), loop=loop)
    ahead = _Ahead(coroutine, where)
    # A name of its own would have to be made up for every attempt.
    task = asyncio.Task(ahead, loop=loop, name="rollway-attempt", context=context)
    asyncio.tasks._enter_task(loop, task)
    try:
        context.run(ahead.begin)
    finally:
        asyncio.tasks._leave_task(loop, task)
    return task


def task_factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **how: Any) -> asyncio.Task[Any]:
    """Task factory that marks the coroutines of runners."""
    where = place.get()
    if where is not None:
        coroutine = Marked(coroutine, where)
    return asyncio.Task(coroutine, loop=loop, **how)
