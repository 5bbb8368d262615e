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
import tempfile
from collections.abc import Coroutine, Generator, MutableSequence
from typing import Any

#: Slot of the runner whose code is executed.
current_slot: contextvars.ContextVar[int | None] = contextvars.ContextVar(
    "current_slot", default=None
)

#: Mark of code in a separate thread, which does not block the event loop.
_THREAD = 255

#: Marks of successive steps.
_steps = itertools.cycle(range(1, _THREAD))

#: One byte per runner: 0 while it waits, otherwise different for every step.
_marks: MutableSequence[int] | mmap.mmap = bytearray(1)


def new_file(slots: int) -> str:
    """Creates an anonymous marks file, for a process that was not given one."""
    if hasattr(os, "memfd_create"):
        # Unlinked: it is deleted with the process, which keeps it open.
        descriptor = os.memfd_create("rollway-marks", os.MFD_CLOEXEC)
        path = f"/proc/self/fd/{descriptor}"
    else:
        descriptor, path = tempfile.mkstemp(prefix="rollway-marks-")
    os.write(descriptor, bytes(slots))
    return path


def open_file(path: str) -> None:
    """Maps the file; marks are written to it from now on."""
    global _marks
    descriptor = os.open(path, os.O_RDWR)
    try:
        _marks = mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


def slot_of(runner: int) -> int:
    """Returns the slot of a runner in this process."""
    return runner % len(_marks)


class ExecutionMark:
    """Context manager that marks a thread as executing a runner's code."""

    def __init__(self) -> None:
        self._slot = current_slot.get()

    def __enter__(self) -> None:
        if self._slot is not None:
            _marks[self._slot] = _THREAD

    def __exit__(self, *_: object) -> None:
        if self._slot is not None:
            _marks[self._slot] = 0


class Marked(Coroutine[Any, Any, Any]):
    """Coroutine wrapper that sets the mark while it executes, not while it waits."""

    __slots__ = ("_inner", "_slot")

    def __init__(self, inner: Any, slot: int) -> None:
        self._inner = inner
        self._slot = slot

    def send(self, value: Any) -> Any:
        _marks[self._slot] = next(_steps)
        try:
            return self._inner.send(value)
        finally:
            _marks[self._slot] = 0

    def throw(self, *error: Any) -> Any:
        _marks[self._slot] = next(_steps)
        try:
            return self._inner.throw(*error)
        finally:
            _marks[self._slot] = 0

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        # Debuggers and libraries read `cr_frame` and similar attributes.
        return getattr(self._inner, name)


def begin_task(slot: int, coroutine: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any]:
    """Creates the task of an attempt; tasks that it creates belong to the same runner."""
    context = contextvars.copy_context()
    context.run(current_slot.set, slot)
    # One name for all: asyncio would make up a different one for each.
    return context.run(asyncio.Task, Marked(coroutine, slot), loop=loop, name="rollway-attempt")


def task_factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **how: Any) -> asyncio.Task[Any]:
    """Task factory that marks the coroutines of runners."""
    slot = current_slot.get()
    if slot is not None:
        coroutine = Marked(coroutine, slot)
    return asyncio.Task(coroutine, loop=loop, **how)
