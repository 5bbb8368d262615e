"""Launcher of workers on a Ray cluster.

The engine starts it as a child process and sends commands on standard input, one JSON line each:

    {"order": "open", "address", "namespace", "runtime_env", "version"}         first, and once
    {"order": "start", "id", "env", "resources": {name: amount}, "placement"}
    {"order": "stop", "id"}

Events go to standard output:

    {"event": "opened", "ip", "nodes"} or {"event": "failed", "message", "hint"}
    {"event": "waits", "id", "reason"}          not placed yet
    {"event": "placed", "id", "ip", "node", "pid"}
    {"event": "ended", "id", "reason", "suspect"}      after a start, once, also after a stop
    {"event": "nodes", "nodes", "changes"}      nodes joined or left

Ray ends the workers with this process, which ends with its standard input, so that no worker
outlives the engine. Ray forwards the output of workers to standard error.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from rollway.errors import MissingPackage
from rollway.ray import REMEDY, actor, messages, package

#: Seconds between two checks of nodes and waiting workers. Ray has no events for them.
POLL_INTERVAL = 1.0
IDLE_POLL_INTERVAL = 5.0

#: Number of checks before an unplaced worker counts as waiting. Ray does not distinguish a worker
#: whose process is starting from one without a node.
MAX_PLACING_CHECKS = 5

#: Maximum seconds for leaving the cluster.
SHUTDOWN_TIMEOUT = 10.0

Order = dict[str, Any]
SendEvent = Callable[..., None]


class LaunchedActor:
    """A worker actor that was started."""

    def __init__(self, handle: Any, demand: dict[str, float]) -> None:
        self.handle = handle
        self.demand = demand
        self.is_placed = False
        #: Last reported reason of its wait, and the number of checks.
        self.reason: str | None = None
        self.checks = 0


class RayLauncher:
    """Starts and stops worker actors on the joined cluster."""

    def __init__(self, ray: Any, send: SendEvent, version: str) -> None:
        self.ray = ray
        self.send = send
        self.version = version
        self.workers: dict[int, LaunchedActor] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.nodes: set[str] = set()
        self.wake = asyncio.Event()
        self.over = asyncio.Event()
        ray.cloudpickle.register_pickle_by_value(actor)
        self.kind = ray.remote(actor.Worker)

    def execute(self, order: Order) -> None:
        """Executes a command."""
        number = order["id"]
        if order["order"] == "start":
            try:
                worker = self._place(order)
            except Exception as error:
                reason = messages.clipped(str(error))
                self.send("ended", id=number, reason=reason, suspect=messages.NO_SUSPECT)
                return
            self.workers[number] = worker
            self.wake.set()
            task = asyncio.get_running_loop().create_task(
                self._supervise(number, worker, order["env"])
            )
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        elif order["order"] == "stop" and number in self.workers:
            # `_supervise` reports its end.
            self.ray.kill(self.workers[number].handle, no_restart=True)

    async def _supervise(self, number: int, worker: LaunchedActor, env: dict[str, str]) -> None:
        """Reports the placement and the end of a worker."""
        reason, suspect = "no longer needed", messages.NO_SUSPECT
        try:
            location = await _result(worker.handle.location.remote(self.version))
            worker.is_placed = True
            self.send("placed", id=number, **location)
            reason = await _result(worker.handle.work.remote(env))
        except Exception as error:
            reason, suspect = messages.ended(error)
        finally:
            del self.workers[number]
            # The process of a worker that returned still exists.
            self.ray.kill(worker.handle, no_restart=True)
            self.send("ended", id=number, reason=reason, suspect=suspect)

    def _place(self, order: Order) -> LaunchedActor:
        demand = {name: float(amount) for name, amount in order["resources"].items()}
        others = {name: one for name, one in demand.items() if name not in ("CPU", "GPU") and one}
        handle = self.kind.options(
            num_cpus=demand.get("CPU", 0.0),
            num_gpus=demand.get("GPU", 0.0),
            resources=others,
            scheduling_strategy="SPREAD" if order["placement"] == "spread" else "DEFAULT",
            # The engine starts replacements.
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=1,
        ).remote()
        return LaunchedActor(handle, demand)

    async def poll(self) -> None:
        """Reports joining and leaving nodes, and why workers wait, until cancelled."""
        while True:
            waits = any(not worker.is_placed for worker in self.workers.values())
            self.wake.clear()
            try:
                # A new worker needs a moment to be placed.
                await asyncio.wait_for(
                    self.wake.wait(), POLL_INTERVAL if waits else IDLE_POLL_INTERVAL
                )
                await asyncio.sleep(POLL_INTERVAL)
            except asyncio.TimeoutError:
                pass
            try:
                nodes = await asyncio.to_thread(self.ray.nodes)
                free = await asyncio.to_thread(self.ray.available_resources)
            except Exception as error:
                reason = f"Ray does not respond: {messages.clipped(str(error))}"
                for number, worker in self._waiting_actors():
                    self._report_waiting(number, worker, reason)
                continue
            self.report_nodes(nodes)
            for number, worker in self._waiting_actors():
                reason = messages.cluster_too_small(worker.demand, nodes)
                if reason is None and worker.checks >= MAX_PLACING_CHECKS:
                    reason = messages.resources_in_use(worker.demand, nodes, free)
                self._report_waiting(number, worker, reason)

    def _waiting_actors(self) -> list[tuple[int, LaunchedActor]]:
        return [(number, one) for number, one in self.workers.items() if not one.is_placed]

    def _report_waiting(self, number: int, worker: LaunchedActor, reason: str | None) -> None:
        worker.checks += 1
        if reason is not None and reason != worker.reason:
            worker.reason = reason
            self.send("waits", id=number, reason=reason)

    def report_nodes(self, nodes: Iterable[messages.Node]) -> None:
        """Reports the nodes that joined or left since the last call."""
        alive = {node["NodeID"]: node["NodeManagerAddress"] for node in nodes if node["Alive"]}
        removed = {node["NodeID"]: node for node in nodes if not node["Alive"]}
        changes = [f"{alive[node]} joined" for node in sorted(alive.keys() - self.nodes)]
        for node in sorted(self.nodes - alive.keys()):
            known = removed.get(node, {})
            reason = messages.clipped(str(known.get("DeathReasonMessage") or "reason unknown"))
            changes.append(f"{known.get('NodeManagerAddress', node)} left: {reason}")
        if changes and self.nodes:
            self.send("nodes", nodes=len(alive), changes=changes)
        self.nodes = set(alive)


async def _result(reference: Any) -> Any:
    """Awaits the result of an actor call."""
    return await asyncio.wrap_future(reference.future())


def connect(ray: Any, order: Order) -> None:
    """Joins the named cluster, or the local one."""
    # Starts a new cluster only with address `local`.
    address = order.get("address") or "auto"
    ray.init(
        address=address,
        namespace=order.get("namespace"),
        runtime_env=order.get("runtime_env") or None,
        log_to_driver=True,
        logging_level="WARNING",
        include_dashboard=False if address == "local" else None,
    )


def failure(error: BaseException) -> dict[str, str]:
    """Returns the reason of a failed connection, and the remedy."""
    message = messages.clipped(str(error) or repr(error))
    if isinstance(error, MissingPackage):
        return {"message": f"{sys.executable} has no package `ray`", "hint": REMEDY}
    if isinstance(error, ConnectionError) and "find" in message:
        return {
            "message": "no Ray cluster was found on this machine",
            "hint": "start one with `ray start --head`, name it with cluster.address, or let the "
            "job have one of its own with `cluster.address: local`",
        }
    return {
        "message": f"the Ray cluster cannot be joined: {message}",
        "hint": "check that cluster.address is that of a running Ray with the same versions of Ray "
        "and Python, and that this machine is part of it",
    }


async def serve(ray: Any, send: SendEvent, order: Order, orders: CommandReader) -> None:
    """Executes commands until standard input ends."""
    launcher = RayLauncher(ray, send, order["version"])
    orders.into(asyncio.get_running_loop(), launcher)
    nodes = ray.nodes()
    launcher.report_nodes(nodes)
    send("opened", ip=ray.util.get_node_ip_address(), nodes=len(launcher.nodes))
    polling = asyncio.create_task(launcher.poll())
    await launcher.over.wait()
    polling.cancel()


class CommandReader:
    """Reads commands in a thread, so that the end of standard input is always noticed."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._first = next(self._lines, None)
        self._lock = threading.Lock()
        self._early: list[Order] = []
        self._launcher: tuple[asyncio.AbstractEventLoop, RayLauncher] | None = None
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def first(self) -> Order | None:
        """Returns the first command."""
        return None if self._first is None else json.loads(self._first)

    def into(self, loop: asyncio.AbstractEventLoop, launcher: RayLauncher) -> None:
        """Passes all commands, including earlier ones, to a launcher."""
        with self._lock:
            self._launcher = (loop, launcher)
            for order in self._early:
                launcher.execute(order)

    def _read(self) -> None:
        for line in self._lines:
            order = json.loads(line)
            with self._lock:
                if self._launcher is None:
                    self._early.append(order)
                else:
                    loop, launcher = self._launcher
                    loop.call_soon_threadsafe(launcher.execute, order)
        with self._lock:
            current = self._launcher
        if current is None:
            # Still connecting: no worker was started.
            os._exit(0)
        loop, launcher = current
        loop.call_soon_threadsafe(launcher.over.set)
        # Workers end with the engine, even if Ray is slow.
        threading.Event().wait(SHUTDOWN_TIMEOUT)
        os._exit(1)


def main() -> None:
    """Serves the engine that started this process until standard input ends."""
    # Ctrl-C in a terminal is for the engine.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Standard output carries events only; other output goes to standard error.
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lock = threading.Lock()

    def send(event: str, **fields: Any) -> None:
        with lock:
            try:
                events.write(json.dumps({"event": event, **fields}) + "\n")
            except OSError:
                # The engine is gone; standard input ends as well.
                pass

    orders = CommandReader(sys.stdin)
    order = orders.first()
    if order is None:
        return
    try:
        ray = package()
        connect(ray, order)
    except BaseException as error:
        send("failed", **failure(error))
        sys.exit(1)
    try:
        asyncio.run(serve(ray, send, order, orders))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
