"""Reaper: ends sandboxes without an owner or past their deadline; one process per machine and job.

It outlives the job, so that nothing is left after `kill -9`, and ends when no sandbox and no owner
is left. If it is killed too, the next worker of the job starts another one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import IO

from rollway.run_settings import SandboxSettings
from rollway.sandbox.leases import LeaseFolder, StoredLease

#: Time for the end of one sandbox, in seconds.
_REAP_TIMEOUT = 60.0

#: Longest delay before a failed end is repeated, in seconds.
_MAX_BACKOFF = 60.0

#: Sandboxes that are ended at the same time.
_MAX_CONCURRENT = 16

#: Time after the deadline that a living owner has to end its sandbox itself, in seconds.
_OWNER_GRACE = 5.0


class Reaper:
    """Checks the leases of a folder until it is unused."""

    def __init__(self, folder: LeaseFolder) -> None:
        self._folder = folder
        #: Failures of each lease, and the time of the next attempt.
        self._failed: dict[str, tuple[int, float]] = {}

    async def run(self, interval: float, lock: IO[str]) -> None:
        """Checks the leases until there is neither a lease nor an owner; then frees the lock."""
        while True:
            await self._check()
            with self._folder.if_unused() as unused:
                if unused:
                    # Here, so that the next sandbox sees that it needs a new reaper.
                    lock.close()
                    return
            await asyncio.sleep(interval)

    async def _check(self) -> None:
        slots = asyncio.Semaphore(_MAX_CONCURRENT)
        names = self._folder.names()
        self._failed = {name: self._failed[name] for name in names if name in self._failed}
        owners: dict[str, bool] = {}
        due = [one for name in names if (one := self._due(name, owners)) is not None]
        await asyncio.gather(*(self._reap(one, slots) for one in due))

    def _due(self, name: str, owners: dict[str, bool]) -> StoredLease | None:
        """Returns a lease whose sandbox must be ended now."""
        if self._failed.get(name, (0, 0.0))[1] > time.monotonic():
            return None
        try:
            stored = self._folder.read(name)
            if stored is None:
                return None
            if stored.owner not in owners:
                owners[stored.owner] = self._folder.owner_lives(stored.owner)
        except (OSError, ValueError) as error:
            self._note(name, error)
            return None
        grace = _OWNER_GRACE if owners[stored.owner] else 0.0
        expired = time.time() >= stored.lease.deadline + grace
        return stored if expired or not owners[stored.owner] else None

    async def _reap(self, stored: StoredLease, slots: asyncio.Semaphore) -> None:
        lease = stored.lease
        async with slots:
            try:
                await asyncio.wait_for(stored.backend_type().reap(lease), _REAP_TIMEOUT)
            except Exception as error:
                self._note(lease.id, error)
                return
        self._folder.remove(lease.id)
        print(f"{_clock()} {lease.id}: ended", flush=True)

    def _note(self, name: str, error: Exception) -> None:
        failures = self._failed.get(name, (0, 0.0))[0] + 1
        delay = min(2.0 ** min(failures - 1, 16), _MAX_BACKOFF)
        self._failed[name] = failures, time.monotonic() + delay
        # Once per doubling: the log stays short.
        if failures & (failures - 1) == 0:
            print(f"{_clock()} {name}: attempt {failures} failed: {error!r}", flush=True)


def _clock() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def main() -> None:
    """Runs the reaper of the folder in the arguments, unless there is one."""
    path, interval = json.loads(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    root, _ = os.path.split(path)
    folder = LeaseFolder(SandboxSettings(folder=root))
    lock = folder.lock_reaper()
    if lock is not None:
        asyncio.run(Reaper(folder).run(max(float(interval), 0.01), lock))
