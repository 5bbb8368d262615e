"""Workers on a Ray cluster: Ray places their processes, the worker protocol carries the rest.

The engine does not use Ray itself. It starts `launcher`, a process that joins the cluster, starts
and stops workers (`actor`) and reports their state. `coordinator` is a `RolloutCoordinator` as a
Ray actor.
"""

from __future__ import annotations

import sys
from typing import Any

from rollway.errors import MissingPackage

REMEDY = "pip install rollway[ray]"


def package() -> Any:
    """Returns the package `ray`; raises `MissingPackage`."""
    try:
        import ray
    except ImportError as error:
        raise MissingPackage(f"ray is not installed: {REMEDY}", package="ray") from error
    return ray


def connected() -> str | None:
    """Returns the address of the cluster that this process has joined; `None`: none."""
    found = sys.modules.get("ray")
    if found is None or not found.is_initialized():
        return None
    from ray.util import client

    # With Ray's client, the cluster's own address may not be reachable.
    return None if client.ray.is_connected() else found.get_runtime_context().gcs_address
