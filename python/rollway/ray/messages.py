"""What Ray says, in words for people: why a worker is not placed yet, and how one ended."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

#: How much of what Ray says is passed on.
_LONGEST = 600

#: Whose fault an end was: of nothing that a worker did, or perhaps of the code that it executed.
NOBODY = "nobody"
WORKER = "worker"

Node = Mapping[str, Any]
Demand = Mapping[str, float]


def clipped(text: str) -> str:
    """Returns what is readable of a text, on one line."""
    plain = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"


def amounts(demand: Demand) -> str:
    """Returns resources as people write them."""
    wanted = [f"{amount:g} {name}" for name, amount in demand.items() if amount]
    return ", ".join(wanted) or "no resources"


def lacks(demand: Demand, nodes: Sequence[Node]) -> str | None:
    """Says that no machine is large enough for a worker that needs this much; none: one is."""
    alive, large = _large(demand, nodes)
    if not large:
        least = min((_lacking(demand, has) for has in alive), key=len, default=[])
        lacks = f"; the nearest lacks {', '.join(least)}" if least else ""
        return f"no node of the cluster has {amounts(demand)}, of {len(alive)} nodes{lacks}"
    return None


def waits(demand: Demand, nodes: Sequence[Node], free: Demand) -> str:
    """Says why a worker that needs this much, and that a machine could have, is not there yet."""
    if not _fits(demand, free):
        _, large = _large(demand, nodes)
        left = amounts({name: free.get(name, 0.0) for name, amount in demand.items() if amount})
        return (
            f"{_nodes(len(large))} of the cluster could give {amounts(demand)}, but all is in "
            f"use: {left} left"
        )
    return "it is being placed, or the environment for it is being set up"


def ended(error: BaseException) -> tuple[str, str]:
    """Says how a worker ended, and whose fault that may be."""
    import ray.exceptions

    if isinstance(error, ray.exceptions.RayTaskError):
        return clipped(str(error.cause)), NOBODY
    text = str(getattr(error, "error_msg", None) or error)
    if "node has died" in text:
        return "its node died" + _after(text, "unexpectedly: "), NOBODY
    if "killed by `ray.kill`" in text:
        return "it was ended by ray.kill", NOBODY
    if "low on memory" in text or "OUT_OF_MEMORY" in text:
        return "Ray ended it because its node ran out of memory", WORKER
    if "worker process has died" in text:
        return "its process died" + _after(text, "Worker exit detail: "), WORKER
    return clipped(text), NOBODY


def _after(text: str, mark: str) -> str:
    _, found, rest = text.partition(mark)
    # The rest is advice that has nothing to do with it.
    return f" ({clipped(rest.partition('Some common causes')[0])})" if found else ""


def _large(demand: Demand, nodes: Sequence[Node]) -> tuple[list[Demand], list[Demand]]:
    """Returns what machines have, all of them and those that could have this worker."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    return alive, [has for has in alive if _fits(demand, has)]


def _fits(demand: Demand, has: Demand) -> bool:
    return not _lacking(demand, has)


def _lacking(demand: Demand, has: Demand) -> list[str]:
    return [name for name, amount in demand.items() if has.get(name, 0.0) < amount]


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"
