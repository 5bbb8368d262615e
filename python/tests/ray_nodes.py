"""A Ray cluster of several nodes on this machine, whose nodes can be killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

#: A node that is killed is noticed soon; Ray's own settings wait for more than ten seconds.
SETTINGS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 2,
}

#: Object store memory of each node, in bytes; no payload uses it.
_STORE = 80 << 20

#: Timeout in seconds, generous for a busy machine.
_TIMEOUT = 120.0


def until(condition: Callable[[], Any], what: str) -> Any:
    """Waits until something is so, and returns what the condition returned."""
    deadline = time.monotonic() + _TIMEOUT
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"in vain: {what}")
        time.sleep(0.05)
    return found


def is_alive(pid: int) -> bool:
    """Tells whether there is such a process, and it is not only waiting to be reaped."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """Returns the processes that a process has started, and those that they have."""
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(name))
    found, new = [], [pid]
    while new:
        new = [child for one in new for child in parents.get(one, [])]
        found += new
    return found


def launchers(pid: int | None = None) -> list[int]:
    """Returns the launcher processes that a process has started; none: this one."""
    found = []
    for child in descendants(os.getpid() if pid is None else pid):
        try:
            with open(f"/proc/{child}/cmdline") as file:
                if "rollway.ray.launcher" in file.read():
                    found.append(child)
        except OSError:
            pass
    return found


class Nodes:
    """A cluster: a head without room for workers, and nodes with two processors each."""

    def __init__(self, nodes: int = 2) -> None:
        from ray.cluster_utils import Cluster

        head = {
            "num_cpus": 0,
            "object_store_memory": _STORE,
            "include_dashboard": False,
            "_system_config": SETTINGS,
        }
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.add() for _ in range(nodes)]

    @property
    def address(self) -> str:
        return self._cluster.address

    def add(self, **resources: float) -> Any:
        """Adds a node; it is there when this returns."""
        return self._cluster.add_node(num_cpus=2, object_store_memory=_STORE, resources=resources)

    def kill(self, node: Any) -> list[int]:
        """Kills all processes of a node at once, its daemon and every worker; returns which."""
        raylet = node.all_processes["raylet"][0].process.pid
        killed = [raylet, *descendants(raylet)]
        for pid in killed:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._cluster.remove_node(node, allow_graceful=False)
        return killed

    def close(self) -> None:
        self._cluster.shutdown()
