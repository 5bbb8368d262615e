"""Child processes of sandboxes: bounded output, deadlines, and the end of all descendants.

Descendants are found by an environment variable that they inherit, also in sessions of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import IO

from rollway.sandbox.base import BoundedOutput, ExecResult

#: Environment variable of the mark; its value is `LEASE.NUMBER`.
MARK = "ROLLWAY_SANDBOX"

#: Repetitions of a search: processes may be started while it runs.
_MAX_SEARCHES = 50

#: Seconds between two searches.
_SEARCH_PAUSE = 0.02

#: Seconds for which output is read after the end of the command: a background process may keep
#: the pipe open.
_OUTPUT_GRACE = 0.5

_CHUNK_BYTES = 64 * 1024


def kill_marked(prefix: str) -> None:
    """Kills all processes whose mark begins with a prefix; raises `OSError` if some survive."""
    wanted = f"{MARK}={prefix}".encode()
    for _ in range(_MAX_SEARCHES):
        if not [pid for pid in _processes() if _kill_if_marked(pid, wanted)]:
            return
        time.sleep(_SEARCH_PAUSE)
    raise OSError(f"processes of the sandbox {prefix.partition('.')[0]} survived SIGKILL")


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _kill_if_marked(pid: int, wanted: bytes) -> bool:
    # The descriptor is opened first, so that the signal cannot reach a later process.
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
        if not any(variable.startswith(wanted) for variable in variables):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return True
    except OSError:
        # Ended meanwhile, or of another user.
        return False
    finally:
        os.close(descriptor)


async def run_process(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    stdin: bytes,
    timeout: float | None,
    max_output_bytes: int,
    kill: Callable[[], None],
    started: Callable[[int], None] = lambda _: None,
) -> ExecResult:
    """Runs a process as the leader of a session until its end or its timeout.

    `started` gets the process id before `stdin` is written. `kill` ends what is left at the
    timeout or if cancelled; it is called in a thread.
    """
    began = time.monotonic()
    outputs = BoundedOutput(max_output_bytes), BoundedOutput(max_output_bytes)
    process = subprocess.Popen(
        list(command),
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    async with contextlib.AsyncExitStack() as stack:
        exited = stack.enter_context(_exit_of(process))
        readers = [
            await stack.enter_async_context(_reading(pipe, output))
            for pipe, output in zip((process.stdout, process.stderr), outputs, strict=True)
        ]
        timed_out = is_done = False
        try:
            started(process.pid)
            await stack.enter_async_context(_writing(process.stdin, stdin))
            try:
                await asyncio.wait_for(asyncio.shield(exited), timeout)
            except asyncio.TimeoutError:
                timed_out = True
                await _end(process, kill)
            await asyncio.wait(readers, timeout=_OUTPUT_GRACE)
            is_done = True
        finally:
            if not is_done:
                await asyncio.shield(_end(process, kill))
    return ExecResult(
        exit_code=process.wait(),
        stdout=outputs[0].text(),
        stderr=outputs[1].text(),
        timed_out=timed_out,
        stdout_dropped=outputs[0].dropped,
        stderr_dropped=outputs[1].dropped,
        duration=time.monotonic() - began,
    )


async def _end(process: subprocess.Popen[bytes], kill: Callable[[], None]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await asyncio.to_thread(kill)
    await asyncio.to_thread(process.wait)


@contextlib.contextmanager
def _exit_of(process: subprocess.Popen[bytes]) -> Iterator[asyncio.Future[None]]:
    """Yields a future that is done when the process has ended.

    Unlike asyncio's own, it does not wait for background processes that hold a pipe open.
    """
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[None] = loop.create_future()
    descriptor = os.pidfd_open(process.pid)

    def done() -> None:
        loop.remove_reader(descriptor)
        if not exited.done():
            exited.set_result(None)

    loop.add_reader(descriptor, done)
    try:
        yield exited
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        exited.cancel()


@contextlib.asynccontextmanager
async def _reading(pipe: IO[bytes] | None, output: BoundedOutput) -> AsyncIterator[asyncio.Task]:
    """Reads a pipe in a task until its end; closes the pipe."""
    stream = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(stream)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)

    async def read() -> None:
        while data := await stream.read(_CHUNK_BYTES):
            output.add(data)

    task = asyncio.ensure_future(read())
    try:
        yield task
    finally:
        task.cancel()
        transport.close()


@contextlib.asynccontextmanager
async def _writing(pipe: IO[bytes] | None, data: bytes) -> AsyncIterator[None]:
    """Writes data to a pipe and closes it; the process may end without reading them."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(_InputProtocol, pipe)
    transport.write(data)
    # Closed when all is written.
    transport.write_eof()
    try:
        yield
    finally:
        if not protocol.is_closed:
            transport.abort()


class _InputProtocol(asyncio.BaseProtocol):
    """Notes the end of a pipe."""

    is_closed = False

    def connection_lost(self, _: Exception | None) -> None:
        self.is_closed = True
