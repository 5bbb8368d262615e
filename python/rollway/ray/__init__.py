"""Workers on a Ray cluster: Ray places their processes, everything else goes over the worker link.

The engine knows nothing of Ray. It starts `placer`, a process that connects to the cluster, places
workers where it is told to and says what becomes of them; `actor` is what a placed worker is. A
coordinator as a Ray actor is in `rollway.coordinator`.
"""

from __future__ import annotations

import sys
from typing import Any

from rollway.errors import MissingPackage

REMEDY = "pip install rollway[ray]"


def package() -> Any:
    """Returns the package `ray`, or says how it is to be had."""
    try:
        import ray
    except ImportError as error:
        raise MissingPackage(f"ray is not installed: {REMEDY}", package="ray") from error
    return ray


def connected() -> str | None:
    """Returns the address of the cluster that this process is connected to; none: to no cluster."""
    found = sys.modules.get("ray")
    if found is None or not found.is_initialized():
        return None
    from ray.util import client

    # Through Ray's client the cluster's own address need not be in reach.
    return None if client.ray.is_connected() else found.get_runtime_context().gcs_address
