"""Worker for the conformance kit: `python -m rollway.worker.conformance`.

The kit (`docs/worker-protocol.md`) provides the address; this module provides the setup and the
three workflows that the kit requests by name.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from typing import Any

from rollway import _rollway, models
from rollway.client._launch import LaunchSetup
from rollway.config import Config
from rollway.experience import Experience
from rollway.worker import process
from rollway.workflow import register

#: Number of runners; the kit checks two concurrent ones.
RUNNERS = 2


async def succeed(task: Any, model: Any) -> list[Experience]:
    """Succeeds with one experience."""
    return [Experience(tokens=[1, 2], prompt_length=1, reward=1.0)]


async def fail(task: Any, model: Any) -> None:
    """Raises an exception."""
    raise ValueError("requested by the conformance kit")


async def wait(task: Any, model: Any) -> None:
    """Waits until it is cancelled."""
    await asyncio.Event().wait()


def main() -> None:
    """Connects to the kit that started this process."""
    for source in (succeed, fail, wait):
        register(f"rollway.conformance.{source.__name__}", source)
    _program, _arguments, environment = LaunchSetup(Config(), models.Echo(), None).spawn
    with tempfile.NamedTemporaryFile() as marks:
        marks.write(bytes(RUNNERS))
        marks.flush()
        _address, _secret, _token, runners, path = _rollway.worker_variables()
        os.environ.update({**dict(environment), runners: str(RUNNERS), path: marks.name})
        process.main()


if __name__ == "__main__":
    main()
