"""Whose code a worker executes, moment by moment, in a file that outlives the process.

Many workflows share a process. If it dies, the engine reads here which of them was being executed
and blames that one alone; a workflow that only waits is not marked. A mark that stays the same for
long is a workflow that keeps the event loop to itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import mmap
import os
import tempfile
from collections.abc import Coroutine, Generator, MutableSequence
from typing import Any

#: The runner for which the current code is executed, by its place in this process.
place: contextvars.ContextVar[int | None] = contextvars.ContextVar("place", default=None)

#: What stands for code in a thread, which keeps nobody else from anything.
_THREAD = 255

#: The number of the next step.
_steps = itertools.cycle(range(1, _THREAD))

#: A byte for every runner: not 0 while its code is executed, and different for every step.
_marks: MutableSequence[int] | mmap.mmap = bytearray(1)


def new_file(places: int) -> str:
    """Makes a file for so many runners, for a process that nobody else made one for."""
    if hasattr(os, "memfd_create"):
        # In no folder, and gone with the process; it is kept open until then.
        descriptor = os.memfd_create("rollway-marks", os.MFD_CLOEXEC)
        path = f"/proc/self/fd/{descriptor}"
    else:
        descriptor, path = tempfile.mkstemp(prefix="rollway-marks-")
    os.write(descriptor, bytes(places))
    return path


def open_file(path: str) -> None:
    """From now on marks are set in this file."""
    global _marks
    descriptor = os.open(path, os.O_RDWR)
    try:
        _marks = mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


def place_of(runner: int) -> int:
    """Returns the place of a runner in this process."""
    return runner % len(_marks)


class Mark:
    """Marks a thread that executes the code of a runner."""

    def __init__(self) -> None:
        self._place = place.get()

    def __enter__(self) -> None:
        if self._place is not None:
            _marks[self._place] = _THREAD

    def __exit__(self, *_: object) -> None:
        if self._place is not None:
            _marks[self._place] = 0


class Marked(Coroutine[Any, Any, Any]):
    """A coroutine that is marked whenever it is executed, and not while it waits."""

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
        # Debuggers and libraries look at `cr_frame` and the like.
        return getattr(self._inner, name)


def begin_task(where: int, coroutine: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any]:
    """Creates the task of an attempt; tasks that it creates belong to the same runner."""
    context = contextvars.copy_context()
    context.run(place.set, where)
    # One name for all: asyncio would make up a different one for each.
    return context.run(
        asyncio.Task, Marked(coroutine, where), loop=loop, name="rollway-attempt"
    )


def task_factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **how: Any) -> asyncio.Task[Any]:
    """Makes tasks whose coroutines are marked, if they belong to a runner."""
    where = place.get()
    if where is not None:
        coroutine = Marked(coroutine, where)
    return asyncio.Task(coroutine, loop=loop, **how)
