"""Calls that wait, for event loops and for plain scripts."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# A signal that comes between the interpreter's last look for one and the wait for a lock does not
# end that wait, however long it is. So nobody waits longer than this without another look.
_LOOK = 0.2


class PendingResult(Coroutine[Any, Any, T], Generic[T]):
    """A call that waits. In async code it is awaited; in a plain script one asks for its result::

        statuses = await scheduler.get_statuses(1)
        statuses = scheduler.get_statuses(1).result()

    It is a coroutine, so that `asyncio.create_task`, `gather` and `wait_for` take it. Whoever stops
    waiting, by cancelling the task, by Ctrl-C or by a timeout, leaves everything with the engine:
    nothing is taken that is not returned.
    """

    __slots__ = ("_begin", "_convert", "_coroutine", "_name", "_used")

    def __init__(self, name: str, begin: Callable[[], Any], convert: Callable[[Any], T]) -> None:
        self._name = name
        self._begin = begin
        self._convert = convert
        self._used = False
        self._coroutine: Coroutine[Any, Any, T] | None = None

    def result(self, timeout: float | None = None) -> T:
        """Waits for the answer and returns it. Ctrl-C works; the interpreter is free meanwhile.

        `TimeoutError` if there is none in `timeout` seconds: then the call is given up.
        """
        if self._used:
            raise RuntimeError(f"{self._name}() was waited for already")
        self._used = True
        deadline = None if timeout is None else time.monotonic() + timeout
        pending = self._begin()
        try:
            while True:
                gate = threading.Lock()
                gate.acquire()
                answer = pending.poll(gate.release)
                if answer is not None:
                    return self._convert(answer[0])
                if not _wait(gate, deadline):
                    raise TimeoutError(f"{self._name}() has no answer after {timeout} seconds")
        finally:
            pending.close()

    async def _drive(self) -> T:
        loop = asyncio.get_running_loop()
        pending = self._begin()
        try:
            while True:
                waiter = loop.create_future()
                answer = pending.poll(_Bell(loop, waiter))
                if answer is not None:
                    # No await from here on: who gets the answer has it.
                    return self._convert(answer[0])
                await waiter
        finally:
            pending.close()

    def _inner(self) -> Coroutine[Any, Any, T]:
        if self._coroutine is None:
            if self._used:
                raise RuntimeError(f"{self._name}() was waited for already")
            self._used = True
            self._coroutine = self._drive()
        return self._coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        return self._inner().__await__()

    def send(self, value: Any) -> Any:
        return self._inner().send(value)

    def throw(self, *error: Any) -> Any:
        return self._inner().throw(*error)

    def close(self) -> None:
        self._used = True
        if self._coroutine is not None:
            self._coroutine.close()

    def __repr__(self) -> str:
        return f"<Call {self._name}()>"

    def __del__(self) -> None:
        if not getattr(self, "_used", True):
            words = f"{self._name}() was never waited for: await it, or ask for its result()"
            warnings.warn(words, RuntimeWarning, stacklevel=2)


def _wait(gate: threading.Lock, deadline: float | None) -> bool:
    """Waits for a lock, for no longer than a deadline; signals are heard. Was it there in time?"""
    while True:
        left = _LOOK if deadline is None else deadline - time.monotonic()
        if gate.acquire(timeout=max(min(left, _LOOK), 0)):
            return True
        if left <= 0:
            return False


class _Bell:
    """Wakes a task of an event loop from another thread."""

    __slots__ = ("_loop", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
        self._loop = loop
        self._waiter = waiter

    def __call__(self) -> None:
        self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        if not self._waiter.done():
            self._waiter.set_result(None)


def identity(value: T) -> T:
    """Returns its argument: the conversion of an answer that needs none."""
    return value
