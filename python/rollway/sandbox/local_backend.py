"""Local sandboxes: processes with a folder, an environment and limits of their own.

They protect against leaks and runaways, not against malice: their processes have the user and the
network of the worker.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from rollway.run_settings import LocalLimits
from rollway.sandbox.base import ExecResult, Lease
from rollway.sandbox.processes import MARK, kill_marked, run_process

#: Variable by which the engine ends the descendants of its workers.
_WORKER_MARK = "ROLLWAY_PROCESS_MARK"

#: Variables that sandboxes inherit.
_INHERITED = (
    *("PATH", "LANG", "LC_ALL", "TZ", _WORKER_MARK),
    # Roots with the certificate of the model gateway, see `rollway.worker.certificates`.
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
)

#: Waits for a line, so that limits apply before the command begins.
_GATED = ("/bin/sh", "-c", 'read -r _; exec "$@"', "sh")


class LocalBackend:
    """Processes on this machine. The sandbox has the folders `work`, `home` and `tmp`."""

    def __init__(
        self,
        limits: LocalLimits | None = None,
        env: Mapping[str, str] | None = None,
        parent: str | None = None,
    ) -> None:
        #: Folder in which that of the sandbox is created; `None`: the one for temporary files.
        self._parent = parent
        self._limits = limits or LocalLimits()
        self._env = dict(env or {})
        self._root = ""
        self._lease = ""
        self._numbers = itertools.count(1)
        self.folder = self.home = ""

    async def start(self, lease: Lease) -> Mapping[str, Any]:
        self._lease = lease.id
        self._root = _root(self._parent, lease.id)
        self.folder = os.path.join(self._root, "work")
        self.home = os.path.join(self._root, "home")
        for name in ("work", "home", "tmp"):
            os.makedirs(os.path.join(self._root, name), mode=0o700)
        return {"root": self._root}

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
        mark = f"{self._lease}.{next(self._numbers)}."
        return await run_process(
            [*_GATED, *command],
            env={**self._environment(), **env, MARK: mark},
            cwd=self._inside(cwd or "."),
            stdin=b"\n" + stdin,
            timeout=timeout,
            max_output_bytes=max_output_bytes,
            kill=lambda: kill_marked(mark),
            started=self._limit,
        )

    def _environment(self) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        inherited.setdefault("PATH", os.defpath)
        own = {"HOME": self.home, "TMPDIR": os.path.join(self._root, "tmp")}
        return {"LANG": "C.UTF-8", **inherited, **own, **self._env}

    def _limit(self, pid: int) -> None:
        limits = self._limits
        for kind, value in (
            (resource.RLIMIT_CPU, limits.cpu_time),
            (resource.RLIMIT_AS, limits.memory_bytes),
            (resource.RLIMIT_FSIZE, limits.file_bytes),
            (resource.RLIMIT_NPROC, limits.processes),
            (resource.RLIMIT_NOFILE, limits.open_files),
        ):
            if value is None:
                continue
            soft = max(int(value), 1)
            # At the soft limit of processor time a process gets SIGXCPU, at the hard one SIGKILL.
            most = soft + 1 if kind == resource.RLIMIT_CPU else soft
            # The limit of this process cannot be raised.
            _, hard = resource.prlimit(pid, kind)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(pid, kind, (min(soft, most), most))

    async def read_file(self, path: str, max_bytes: int) -> bytes:
        return await asyncio.to_thread(self._read, path, max_bytes)

    def _read(self, path: str, max_bytes: int) -> bytes:
        # Without waiting for the writer of a pipe.
        descriptor = os.open(self._inside(path), os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError(f"{path} is not a regular file")
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise ValueError(f"{path} is larger than {max_bytes} bytes")
        return data

    async def write_file(self, path: str, data: bytes) -> None:
        await asyncio.to_thread(self._write, path, data)

    def _write(self, path: str, data: bytes) -> None:
        target = self._inside(path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(data)

    def _inside(self, path: str) -> str:
        """Returns the real path; raises `ValueError` if it leaves the folder of the sandbox."""
        real = os.path.realpath(os.path.join(self.folder, path))
        if os.path.commonpath([real, os.path.realpath(self._root)]) != os.path.realpath(self._root):
            raise ValueError(f"{path} is outside of the sandbox")
        return real

    async def close(self) -> None:
        if self._lease:
            await asyncio.to_thread(_end, self._lease, self._root)

    @classmethod
    async def reap(cls, lease: Lease) -> None:
        root = lease.data.get("root") or _root(lease.data.get("parent"), lease.id)
        if os.path.basename(root) != os.path.basename(_root(None, lease.id)):
            raise ValueError(f"{root} is not the folder of the sandbox {lease.id}")
        await asyncio.to_thread(_end, lease.id, root)


def _root(parent: str | None, lease: str) -> str:
    return os.path.join(
        os.path.abspath(parent or tempfile.gettempdir()), f"rollway-sandbox-{lease}"
    )


def _end(lease: str, root: str) -> None:
    kill_marked(f"{lease}.")
    _remove(root)


def _remove(root: str) -> None:
    """Removes a folder, also one with folders that its owner cannot change."""

    def retry(function: Any, path: str, _: Any) -> None:
        for folder in (os.path.dirname(path), path):
            if os.path.isdir(folder) and not os.path.islink(folder):
                os.chmod(folder, 0o700)
        function(path)

    if os.path.lexists(root):
        shutil.rmtree(root, onerror=retry)
