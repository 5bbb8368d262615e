"""Messages about Ray workers: why one waits, and how one ended."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

#: Maximum length of a message of Ray.
_MAX_SHOWN_CHARS = 600

#: Possible cause of an end: none in the worker, or the code that it executed.
NO_SUSPECT = "none"
WORKER = "worker"

Node = Mapping[str, Any]
Demand = Mapping[str, float]


def clipped(text: str) -> str:
    """Returns a text on one line, without escape sequences, truncated."""
    plain = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
    return plain if len(plain) <= _MAX_SHOWN_CHARS else plain[: _MAX_SHOWN_CHARS - 1] + "…"


def format_resources(demand: Demand) -> str:
    """Formats resources."""
    wanted = [f"{amount:g} {name}" for name, amount in demand.items() if amount]
    return ", ".join(wanted) or "no resources"


def cluster_too_small(demand: Demand, nodes: Sequence[Node]) -> str | None:
    """Returns the message that no node is large enough; `None`: one is."""
    alive, large = _large(demand, nodes)
    if not large:
        least = min((_missing_resources(demand, has) for has in alive), key=len, default=[])
        wanted = format_resources(demand)
        lacks = f"; the nearest lacks {', '.join(least)}" if least else ""
        return f"no node of the cluster has {wanted}, of {len(alive)} nodes{lacks}"
    return None


def resources_in_use(demand: Demand, nodes: Sequence[Node], free: Demand) -> str:
    """Returns why a worker is not placed although a node is large enough."""
    if not _fits(demand, free):
        _, large = _large(demand, nodes)
        free_resources = {name: free.get(name, 0.0) for name, amount in demand.items() if amount}
        return (
            f"{_nodes(len(large))} of the cluster could give {format_resources(demand)}, but all is"
            f" in use: {format_resources(free_resources)} left"
        )
    return "it is being placed, or the environment for it is being set up"


def ended(error: BaseException) -> tuple[str, str]:
    """Returns how a worker ended, and its possible cause."""
    import ray.exceptions

    if isinstance(error, ray.exceptions.RayTaskError):
        return clipped(str(error.cause)), NO_SUSPECT
    text = str(getattr(error, "error_msg", None) or error)
    if "node has died" in text:
        return "its node died" + _after(text, "unexpectedly: "), NO_SUSPECT
    if "killed by `ray.kill`" in text:
        return "it was ended by ray.kill", NO_SUSPECT
    if "low on memory" in text or "OUT_OF_MEMORY" in text:
        return "Ray ended it because its node ran out of memory", WORKER
    if "worker process has died" in text:
        return "its process died" + _after(text, "Worker exit detail: "), WORKER
    return clipped(text), NO_SUSPECT


def _after(text: str, mark: str) -> str:
    _, found, rest = text.partition(mark)
    # The rest is generic advice.
    return f" ({clipped(rest.partition('Some common causes')[0])})" if found else ""


def _large(demand: Demand, nodes: Sequence[Node]) -> tuple[list[Demand], list[Demand]]:
    """Returns the resources of all nodes, and of those that are large enough."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    return alive, [has for has in alive if _fits(demand, has)]


def _fits(demand: Demand, has: Demand) -> bool:
    return not _missing_resources(demand, has)


def _missing_resources(demand: Demand, has: Demand) -> list[str]:
    return [name for name, amount in demand.items() if has.get(name, 0.0) < amount]


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"
