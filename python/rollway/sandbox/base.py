"""Interface of sandboxes, and of the backends that provide them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

#: Command of a sandbox: program and arguments, or a line for its shell.
Command = Sequence[str] | str


@dataclass(frozen=True)
class ExecResult:
    """End of a command in a sandbox."""

    #: Exit code; negative: the signal that ended the command.
    exit_code: int
    stdout: str
    stderr: str
    #: True if the command was ended at its timeout.
    timed_out: bool = False
    #: Bytes that were omitted from the middle of the outputs.
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    #: Seconds that the command took.
    duration: float = 0.0

    @property
    def ok(self) -> bool:
        """True if the command ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out


@dataclass(frozen=True)
class Lease:
    """Right to one sandbox until a deadline. Written to a file before the sandbox exists."""

    #: Random id; backends use it as a name, so that a sandbox is found without further data.
    id: str
    #: Unix time at which the sandbox is ended.
    deadline: float
    #: Data of the backend with which another process can end the sandbox.
    data: Mapping[str, Any]


@runtime_checkable
class SandboxBackend(Protocol):
    """Provider of one sandbox. Implement it to use sandboxes of another kind.

    Any exception of `start`, and `OSError` or `rw.SandboxError` of the others, is a failure of the
    infrastructure: the run is retried, and the task is not charged.
    """

    #: Working folder of commands, and of relative paths.
    folder: str
    #: Home folder of programs, apart from the working folder.
    home: str

    async def start(self, lease: Lease) -> Mapping[str, Any]:
        """Starts the sandbox; returns data for `reap`."""
        ...

    async def exec(
        self,
        command: Sequence[str],
        *,
        timeout: float | None,
        env: Mapping[str, str],
        cwd: str | None,
        stdin: bytes,
        max_output_bytes: int,
    ) -> ExecResult:
        """Executes a command; at its timeout or if cancelled, it ends the command."""
        ...

    async def read_file(self, path: str, max_bytes: int) -> bytes:
        """Reads a file; raises `FileNotFoundError`, or `ValueError` if it is larger."""
        ...

    async def write_file(self, path: str, data: bytes) -> None:
        """Writes a file and its parent folders."""
        ...

    async def close(self) -> None:
        """Ends the sandbox and everything in it; also one that started only in part."""
        ...

    @classmethod
    async def reap(cls, lease: Lease) -> None:
        """Ends a sandbox whose owner is gone; one that does not exist is no error.

        `lease.data` is empty if the owner died while the sandbox started.
        """
        ...


class BoundedOutput:
    """Beginning and end of an output; the middle is dropped and counted."""

    def __init__(self, max_bytes: int) -> None:
        self._head_bytes = max_bytes // 2
        self._tail_bytes = max_bytes - self._head_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0

    def add(self, data: bytes) -> None:
        """Appends a part of the output."""
        self._size += len(data)
        room = self._head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: -self._tail_bytes or None]

    @property
    def dropped(self) -> int:
        """Number of omitted bytes."""
        return self._size - len(self._head) - len(self._kept_tail())

    def text(self) -> str:
        """Returns the kept parts as text, with a note between them if bytes are missing."""
        head, tail = bytes(self._head), self._kept_tail()
        if not self.dropped:
            return (head + tail).decode(errors="replace")
        note = f"\n[… {self.dropped} bytes omitted …]\n"
        return head.decode(errors="replace") + note + tail.decode(errors="replace")

    def _kept_tail(self) -> bytes:
        return bytes(self._tail[-self._tail_bytes :]) if self._tail_bytes else b""
