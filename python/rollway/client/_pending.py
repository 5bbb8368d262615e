"""Pending results: awaitable in an event loop, blocking in a script."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

T = TypeVar("T")

# Maximum seconds of one wait for a lock. A signal that arrives just before the wait does not
# interrupt it, so signals are checked at this interval.
_SIGNAL_CHECK_INTERVAL = 0.2


class PendingResult(Coroutine[Any, Any, T], Generic[T]):
    """Result of a call that waits: awaited in async code, `result()` in a script:

        statuses = await scheduler.get_statuses(1)
        statuses = scheduler.get_statuses(1).result()

    It is a coroutine: `asyncio.create_task`, `gather` and `wait_for` accept it. A wait that ends by
    cancellation, Ctrl-C or a timeout leaves the results with the engine.
    """

    __slots__ = ("_begin", "_convert", "_coroutine", "_name", "_used")

    def __init__(self, name: str, begin: Callable[[], Any], convert: Callable[[Any], T]) -> None:
        self._name = name
        self._begin = begin
        self._convert = convert
        self._used = False
        self._coroutine: Coroutine[Any, Any, T] | None = None

    def result(self, timeout: float | None = None) -> T:
        """Waits for the result. Ctrl-C interrupts it; the GIL is released.

        Raises `TimeoutError` after `timeout` seconds; the call is then cancelled.
        """
        if self._used:
            raise RuntimeError(f"{self._name}() was waited for already")
        self._used = True
        deadline = None if timeout is None else time.monotonic() + timeout
        pending = self._begin()
        try:
            while True:
                wakeup = threading.Lock()
                wakeup.acquire()
                answer = pending.poll(wakeup.release)
                if answer is not None:
                    return self._convert(answer[0])
                if not _wait(wakeup, deadline):
                    raise TimeoutError(f"{self._name}() did not finish within {timeout} seconds")
        finally:
            pending.close()

    async def _drive(self) -> T:
        loop = asyncio.get_running_loop()
        pending = self._begin()
        try:
            while True:
                waiter = loop.create_future()
                answer = pending.poll(_Waker(loop, waiter))
                if answer is not None:
                    # No await after this point, so that the result cannot be lost.
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

    if not TYPE_CHECKING:  # type checkers find a forgotten `await` by themselves

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            raise AttributeError(
                f"`{self._name}()` has no result yet, and so no `{name}`: did you forget `await`? "
                "In code that is not async, call `.result()`"
            )

    def __repr__(self) -> str:
        return f"<Call {self._name}()>"

    def __del__(self) -> None:
        if not getattr(self, "_used", True):
            message = (
                f"{self._name}() was never awaited: use `await`, or `.result()` in code that is "
                "not async"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=2)


def _wait(wakeup: threading.Lock, deadline: float | None) -> bool:
    """Waits for a lock until a deadline, handling signals; returns whether it was acquired."""
    while True:
        left = _SIGNAL_CHECK_INTERVAL if deadline is None else deadline - time.monotonic()
        if wakeup.acquire(timeout=max(min(left, _SIGNAL_CHECK_INTERVAL), 0)):
            return True
        if left <= 0:
            return False


class _Waker:
    """Wakes a task of an event loop from another thread."""

    __slots__ = ("_loop", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
        self._loop = loop
        self._waiter = waiter

    def __call__(self) -> None:
        self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._waiter.done():
            self._waiter.set_result(None)


def nothing(_: Any) -> None:
    """Converts the result of a call without a value."""


def identity(value: T) -> T:
    """Returns its argument: no conversion."""
    return value
