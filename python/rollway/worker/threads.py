"""Execution in separate threads, awaited from an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any

from rollway.worker.execution_marks import ExecutionMark


class _Cell:
    """Result of a thread, and access to the coroutine in it."""

    def __init__(self) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.task: asyncio.Task[Any] | None = None
        self.cancelled = False

    def run(self, function: Callable[[], Any]) -> None:
        try:
            if inspect.iscoroutinefunction(function):
                self.value = asyncio.run(self._main(function))
            else:
                self.value = function()
        except BaseException as error:
            self.error = error

    async def _main(self, function: Callable[[], Any]) -> Any:
        self.loop, self.task = asyncio.get_running_loop(), asyncio.current_task()
        if self.cancelled:
            raise asyncio.CancelledError
        return await function()

    def cancel(self) -> None:
        """Cancels a coroutine; a plain function cannot be cancelled and is awaited."""
        self.cancelled = True
        if self.loop is not None and self.task is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.task.cancel)


async def in_thread(function: Callable[[], Any]) -> Any:
    """Runs a function, or a coroutine function in a new event loop, in a new thread.

    If cancelled, it raises after the thread has ended.
    """
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    cell = _Cell()
    mark = ExecutionMark()

    def body() -> None:
        with mark:
            cell.run(function)
        # If the loop is closed, nothing waits for the result.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(ended.set_result, None)

    # Context variables of the run apply in the new thread.
    run = contextvars.copy_context().run
    threading.Thread(target=run, args=(body,), name="rollway-run", daemon=True).start()
    cancelled = False
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            cancelled = True
            cell.cancel()
    if cancelled:
        raise asyncio.CancelledError
    if cell.error is not None:
        raise cell.error
    return cell.value


def loop_in_thread(function: Callable[[], Any]) -> Any:
    """Runs a coroutine function in a new event loop and thread, and waits."""
    cell = _Cell()
    thread = threading.Thread(
        target=lambda: cell.run(lambda: asyncio.run(function())), name="rollway-loop", daemon=True
    )
    thread.start()
    thread.join()
    if cell.error is not None:
        raise cell.error
    return cell.value
