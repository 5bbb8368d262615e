"""Leases: files that name every sandbox before it exists, so that another process can end it.

The folder belongs to a job; each machine has its own part of it:

- `ID.lease`: one sandbox, with its deadline and its owner.
- `owners/TOKEN`: locked by the process that owns sandboxes, for as long as it lives.
- `admission`: locked while a sandbox is admitted; state of the rate limit.
- `reaper`: locked by the reaper, the process that ends sandboxes without an owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import json
import logging
import os
import secrets
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from rollway.errors import SandboxError
from rollway.run_settings import SandboxSettings
from rollway.sandbox.base import Lease
from rollway.worker.setup import start_arguments

logger = logging.getLogger("rollway.sandbox")

#: Ending of the name of a lease.
SUFFIX = ".lease"

#: Largest lease that is read.
_MAX_LEASE_BYTES = 1024 * 1024

#: First and longest pause between two attempts to be admitted, in seconds.
_ADMISSION_PAUSES = (0.02, 0.5)

#: Variables that the reaper does not inherit: the engine ends the descendants of its workers by
#: the first.
_NOT_INHERITED = ("ROLLWAY_PROCESS_MARK", "ROLLWAY_SANDBOX")


@dataclass(frozen=True)
class StoredLease:
    """A lease as it is written."""

    lease: Lease
    #: Token of the owner.
    owner: str
    #: Backend as `package.module:name`, and the folders in which it is looked for.
    backend: str
    sys_path: tuple[str, ...]

    def to_json(self) -> str:
        """Encodes the lease."""
        one = self.lease
        return json.dumps(
            {
                "id": one.id,
                "deadline": one.deadline,
                "data": dict(one.data),
                "owner": self.owner,
                "backend": self.backend,
                "sys_path": list(self.sys_path),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> StoredLease:
        """Decodes a lease; raises `ValueError`, `KeyError` or `TypeError` if it is invalid."""
        values = json.loads(text)
        lease = Lease(str(values["id"]), float(values["deadline"]), dict(values["data"]))
        path = tuple(str(folder) for folder in values["sys_path"])
        return cls(lease, str(values["owner"]), str(values["backend"]), path)

    def backend_type(self) -> Any:
        """Imports the backend."""
        sys.path.extend(folder for folder in self.sys_path if folder not in sys.path)
        module, _, name = self.backend.partition(":")
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found


class LeaseFolder:
    """Leases of one job on this machine."""

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        root = settings.folder or default_folder()
        self.path = os.path.join(root, _machine())
        try:
            _create_private(root)
            _create_private(self.path)
            _create_private(os.path.join(self.path, "owners"))
        except OSError as error:
            raise SandboxError(f"the folder of leases cannot be used: {error}") from error

    async def admit(self, stored: StoredLease, deadline: float) -> None:
        """Writes a lease as soon as the limits of number and rate permit it.

        Raises `SandboxError` at the deadline, in seconds of the monotonic clock.
        """
        pause, longest = _ADMISSION_PAUSES
        while not self._try_admit(stored):
            if time.monotonic() >= deadline:
                raise SandboxError(
                    f"no sandbox could be started within {self.settings.start_timeout:g} s: "
                    f"{len(self.names())} of at most {self.settings.max_sandboxes} exist "
                    "(explorer.sandbox.max_sandboxes, starts_per_second)"
                )
            await asyncio.sleep(min(pause, max(deadline - time.monotonic(), 0)))
            pause = min(pause * 2, longest)
        self._start_reaper()

    def _try_admit(self, stored: StoredLease) -> bool:
        with self._admission() as file:
            if len(self.names()) >= self.settings.max_sandboxes:
                return False
            if not _take_token(file, self.settings.starts_per_second):
                return False
            self.write(stored)
        return True

    @contextlib.contextmanager
    def _admission(self) -> Iterator[IO[str]]:
        with open(os.path.join(self.path, "admission"), "a+", opener=_private) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def write(self, stored: StoredLease) -> None:
        """Writes a lease durably."""
        path = self._file(stored.lease.id)
        with open(f"{path}.new", "w", opener=_private) as file:
            file.write(stored.to_json())
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)

    def remove(self, lease_id: str) -> None:
        """Removes the lease of an ended sandbox."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(lease_id))

    def names(self) -> list[str]:
        """Returns the ids of all leases."""
        names = os.listdir(self.path)
        return [name[: -len(SUFFIX)] for name in names if name.endswith(SUFFIX)]

    def read(self, lease_id: str) -> StoredLease | None:
        """Reads a lease; `None`: it was removed. Raises `ValueError` if it is invalid."""
        try:
            with open(self._file(lease_id)) as file:
                text = file.read(_MAX_LEASE_BYTES)
        except FileNotFoundError:
            return None
        try:
            return StoredLease.from_json(text)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self._file(lease_id)} is not a lease: {error!r}") from None

    def _file(self, lease_id: str) -> str:
        return os.path.join(self.path, lease_id + SUFFIX)

    def owner_lives(self, token: str) -> bool:
        """Returns whether the process that owns sandboxes lives; forgets it if not.

        An empty token is that of no process.
        """
        if not token:
            return False
        path = os.path.join(self.path, "owners", os.path.basename(token))
        try:
            with open(path) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
                return False
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False

    def owners(self) -> list[str]:
        """Returns the tokens of all owners, also of those that have ended."""
        return os.listdir(os.path.join(self.path, "owners"))

    @contextlib.contextmanager
    def if_unused(self) -> Iterator[bool]:
        """Holds back new sandboxes; yields whether there is neither a lease nor an owner."""
        with self._admission():
            alive = any([self.owner_lives(token) for token in self.owners()])
            yield not alive and not self.names()

    def lock_reaper(self) -> IO[str] | None:
        """Takes the lock of the reaper; `None`: another process has it."""
        file = open(os.path.join(self.path, "reaper"), "a+", opener=_private)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def recover(self) -> None:
        """Starts the reaper if leases are left from earlier."""
        if self.names():
            self._start_reaper()

    def _start_reaper(self) -> None:
        file = self.lock_reaper()
        if file is None:
            return
        # Two reapers at once are no harm: one of them ends at once.
        file.close()
        settings = json.dumps([self.path, self.settings.check_interval])
        env = {name: text for name, text in os.environ.items() if name not in _NOT_INHERITED}
        arguments = [*start_arguments("rollway.sandbox.reaper"), settings]
        with open(os.path.join(self.path, "reaper.log"), "w", opener=_private) as log:
            reaper = subprocess.Popen(
                [sys.executable, *arguments],
                env=env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # Collects the exit code, so that no zombie stays.
        threading.Thread(target=reaper.wait, name="rollway-reaper", daemon=True).start()


_owner: dict[tuple[int, str], tuple[str, IO[str]]] = {}
_owner_lock = threading.Lock()


def owner_token(folder: LeaseFolder) -> str:
    """Returns the token of this process; its file stays locked until the process ends."""
    key = (os.getpid(), folder.path)
    with _owner_lock:
        if key not in _owner:
            token = f"{os.getpid()}-{secrets.token_hex(8)}"
            path = os.path.join(folder.path, "owners", token)
            # Locked before it has its name, so that it is never seen unlocked.
            file = open(f"{folder.path}/{token}.new", "w", opener=_private)
            fcntl.flock(file, fcntl.LOCK_EX)
            os.rename(file.name, path)
            _owner[key] = token, file
        return _owner[key][0]


def recover(settings: SandboxSettings) -> None:
    """Ends the sandboxes that an earlier process of the job has left."""
    if not os.path.isdir(settings.folder or default_folder()):
        return
    try:
        LeaseFolder(settings).recover()
    except SandboxError as error:
        # Workflows without sandboxes do not need it.
        logger.warning("%s", error)


def default_folder() -> str:
    """Returns the folder of the leases of jobs without a folder, which belongs to the user."""
    return os.path.join(tempfile.gettempdir(), f"rollway-leases-{os.getuid()}")


def _take_token(file: IO[str], rate: float) -> bool:
    """Token bucket with room for the starts of one second."""
    room = max(rate, 1.0)
    now = time.time()
    file.seek(0)
    try:
        tokens, since = json.loads(file.read())
        elapsed = now - float(since)
        # A clock that was set back does not block starts.
        tokens = min(room, float(tokens) + max(elapsed, 0.0) * rate)
    except (TypeError, ValueError):
        tokens = room
    taken = tokens >= 1.0
    file.truncate(0)
    json.dump([tokens - 1.0 if taken else tokens, now], file)
    return taken


def _create_private(path: str) -> None:
    """Creates a folder that only this user can change; raises if others can."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    status = os.stat(path)
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} can be changed by other users")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _machine() -> str:
    name = socket.gethostname()
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip(".") or "machine"


def lease_data(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the data of a backend; raises `TypeError` unless they are plain."""
    return dict(json.loads(json.dumps(dict(values))))
