"""A sandbox under its lease."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sys
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from rollway import stages
from rollway.errors import SandboxError, SandboxExpired
from rollway.run_settings import SandboxSettings
from rollway.sandbox.base import Command, ExecResult, Lease, SandboxBackend
from rollway.sandbox.leases import LeaseFolder, StoredLease, lease_data, owner_token

logger = logging.getLogger("rollway.sandbox")

#: Errors about the path of a file: those of the workflow, not of the sandbox.
_PATH_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


class Sandbox:
    """Isolated place for commands, outside of the worker; its lease bounds its lifetime:

        async with rw.sandbox.local(files={"a.py": "print(1)"}) as box:
            result = await box.exec(["python3", "a.py"], timeout=10)

    It is ended at the end of `async with`, at `close()`, and at the end of its run. If the worker
    or the job dies, another process ends it.
    """

    def __init__(
        self,
        backend: SandboxBackend,
        *,
        files: Mapping[str, str | bytes] | None = None,
        lease: float | None = None,
        settings: SandboxSettings | None = None,
    ) -> None:
        self.backend = backend
        self._reference = _reference(type(backend))
        self._files = dict(files or {})
        self._run = stages.current()
        run_settings = None if self._run is None else self._run.settings.sandbox
        self.settings = settings or run_settings or SandboxSettings()
        self._seconds = self.settings.lease if lease is None else lease
        self._folder: LeaseFolder | None = None
        self._lease: Lease | None = None
        self._is_closed = False

    @property
    def id(self) -> str | None:
        """Id of the lease; `None`: not started."""
        return None if self._lease is None else self._lease.id

    @property
    def folder(self) -> str:
        """Working folder of commands, as they see it."""
        return self.backend.folder

    @property
    def home(self) -> str:
        """Home folder of programs, apart from the working folder."""
        return self.backend.home

    async def start(self) -> Sandbox:
        """Starts the sandbox and writes its files; waits while too many exist.

        Raises `SandboxError`.
        """
        if self._lease is not None:
            raise SandboxError("the sandbox was started before: create another one")
        folder = LeaseFolder(self.settings)
        timeout = self.settings.start_timeout
        until = time.monotonic() + timeout
        lease = Lease(secrets.token_hex(12), time.time() + self._seconds, {})
        path = () if self._reference.startswith("rollway.") else tuple(sys.path)
        stored = StoredLease(lease, owner_token(folder), self._reference, path)
        await folder.admit(stored, until)
        self._folder, self._lease = folder, lease
        if self._run is not None:
            self._run.resources.add(self)
        try:
            data = await asyncio.wait_for(
                self.backend.start(lease), max(until - time.monotonic(), 0.01)
            )
            lease = Lease(lease.id, lease.deadline, lease_data(data))
            self._lease = lease
            folder.write(StoredLease(lease, stored.owner, stored.backend, path))
            for name, text in self._files.items():
                await self.write_file(name, text)
        except BaseException as error:
            await self.close()
            if isinstance(error, asyncio.TimeoutError):
                raise SandboxError(
                    f"the sandbox did not start within {timeout:g} s "
                    "(explorer.sandbox.start_timeout)"
                ) from None
            if isinstance(error, Exception) and not isinstance(error, (SandboxError, ValueError)):
                raise SandboxError(f"the sandbox did not start: {error!r}") from error
            raise
        return self

    async def exec(
        self,
        command: Command,
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str | bytes = b"",
        max_output_bytes: int | None = None,
    ) -> ExecResult:
        """Executes a command and waits for its end.

        A text is a line for `/bin/sh`. At the timeout the command is ended, and the result says
        so. Raises `SandboxExpired` at the deadline of the lease, `SandboxError` if the sandbox
        failed; an exit code other than 0 raises nothing.
        """
        lease = self._held()
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        left = lease.deadline - time.time()
        is_bounded = timeout is None or timeout >= left
        with self._failures("executing a command"):
            result = await self.backend.exec(
                words,
                timeout=max(left, 0.0) if is_bounded else timeout,
                env=dict(env or {}),
                cwd=cwd,
                stdin=stdin.encode() if isinstance(stdin, str) else stdin,
                max_output_bytes=(
                    self.settings.max_output_bytes if max_output_bytes is None else max_output_bytes
                ),
            )
        if time.time() >= lease.deadline:
            raise self._expired()
        return result

    async def read_file(self, path: str) -> bytes:
        """Reads a file; relative paths begin in the working folder."""
        self._held()
        with self._failures("reading a file"):
            return await self.backend.read_file(path, self.settings.max_file_bytes)

    async def read_text(self, path: str) -> str:
        """Reads a file as UTF-8; invalid bytes are replaced."""
        return (await self.read_file(path)).decode(errors="replace")

    async def write_file(self, path: str, data: str | bytes) -> None:
        """Writes a file and its parent folders."""
        self._held()
        content = data.encode() if isinstance(data, str) else data
        if len(content) > self.settings.max_file_bytes:
            raise ValueError(
                f"{path} has {len(content)} bytes, maximum {self.settings.max_file_bytes} "
                "(explorer.sandbox.max_file_bytes)"
            )
        with self._failures("writing a file"):
            await self.backend.write_file(path, content)

    async def close(self) -> None:
        """Ends the sandbox. If that fails, the reaper tries again; never raises for it."""
        if self._lease is None or self._folder is None or self._is_closed:
            return
        self._is_closed = True
        if self._run is not None:
            self._run.resources.discard(self)
        # Continues if the waiting coroutine is cancelled.
        await asyncio.shield(self._end(self._folder, self._lease))

    async def _end(self, folder: LeaseFolder, lease: Lease) -> None:
        try:
            await asyncio.wait_for(self.backend.close(), self.settings.close_timeout)
        except Exception as error:
            logger.warning("sandbox %s is left to the reaper: %r", lease.id, error)
            # Without an owner it is ended at the next check.
            path = () if self._reference.startswith("rollway.") else tuple(sys.path)
            folder.write(StoredLease(lease, "", self._reference, path))
            return
        folder.remove(lease.id)

    def _held(self) -> Lease:
        if self._lease is None:
            raise SandboxError("the sandbox was not started: use `async with`, or `start()`")
        if time.time() >= self._lease.deadline:
            raise self._expired()
        if self._is_closed:
            raise SandboxError("the sandbox is closed")
        return self._lease

    def _expired(self) -> SandboxExpired:
        return SandboxExpired(
            f"the lease of the sandbox ended after {self._seconds:g} s (explorer.sandbox.lease)",
            seconds=self._seconds,
        )

    @contextlib.contextmanager
    def _failures(self, what: str) -> Any:
        try:
            yield
        except SandboxError:
            raise
        except _PATH_ERRORS:
            raise
        except (OSError, asyncio.TimeoutError) as error:
            raise SandboxError(f"the sandbox failed while {what}: {error!r}") from error

    async def __aenter__(self) -> Sandbox:
        return await self.start() if self._lease is None else self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@contextlib.asynccontextmanager
async def started(sandbox: Sandbox) -> AsyncIterator[Sandbox]:
    """Starts a sandbox unless it was started; ends it only then."""
    if sandbox.id is not None:
        yield sandbox
        return
    async with sandbox:
        yield sandbox


def _reference(kind: type) -> str:
    """Returns a backend as `package.module:name`."""
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise TypeError(
            f"the sandbox backend {kind.__qualname__} must be defined in a module: if the worker "
            "dies, another process imports it to end the sandbox"
        )
    return f"{kind.__module__}:{kind.__qualname__}"
