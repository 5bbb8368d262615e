"""Places workers on a Ray cluster for an engine that does not know Ray.

Started by the engine as a child process. Orders come in on standard input, a line of JSON each:

    {"order": "open", "address", "namespace", "runtime_env", "version"}         first, and once
    {"order": "start", "id", "env", "resources": {name: amount}, "placement"}
    {"order": "stop", "id"}

What happens goes out on standard output:

    {"event": "opened", "ip", "nodes"} or {"event": "failed", "what", "hint"}
    {"event": "waits", "id", "why"}             there is no place for it yet
    {"event": "placed", "id", "ip", "node", "pid"}
    {"event": "ended", "id", "how", "blame"}    after a start, exactly once, also after a stop
    {"event": "nodes", "nodes", "said"}         machines came or went

Workers belong to this process: when it ends, however, Ray ends them. It ends with its standard
input, so that nothing outlives the engine. What workers print comes here through Ray, and goes to
standard error.
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

#: How often it is looked why somebody still waits, and what machines there are. Ray has no event
#: for either.
LOOK = 1.0
IDLE_LOOK = 5.0

#: How many looks a worker may be on its way before that is called waiting. One that has a place,
#: and whose process is being started, looks the same from here as one that has none.
PLACING = 5

#: How long leaving the cluster may take.
FAREWELL = 10.0

Order = dict[str, Any]
Say = Callable[..., None]


class LaunchedActor:
    """A worker that was ordered."""

    def __init__(self, handle: Any, demand: dict[str, float]) -> None:
        self.handle = handle
        self.demand = demand
        self.is_placed = False
        #: What was last said about its wait, and how often it was looked at.
        self.why: str | None = None
        self.looks = 0


class RayLauncher:
    """Does what it is told, on a cluster that it is connected to."""

    def __init__(self, ray: Any, say: Say, version: str) -> None:
        self.ray = ray
        self.say = say
        self.version = version
        self.workers: dict[int, LaunchedActor] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.nodes: set[str] = set()
        self.looks = asyncio.Event()
        self.over = asyncio.Event()
        ray.cloudpickle.register_pickle_by_value(actor)
        self.kind = ray.remote(actor.Worker)

    def hear(self, order: Order) -> None:
        """Takes an order."""
        number = order["id"]
        if order["order"] == "start":
            try:
                worker = self._place(order)
            except Exception as error:
                self.say(
                    "ended", id=number, how=messages.clipped(str(error)), blame=messages.NOBODY
                )
                return
            self.workers[number] = worker
            self.looks.set()
            task = asyncio.get_running_loop().create_task(self._lead(number, worker, order["env"]))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        elif order["order"] == "stop" and number in self.workers:
            # Its end is told by whoever leads it.
            self.ray.kill(self.workers[number].handle, no_restart=True)

    async def _lead(self, number: int, worker: LaunchedActor, env: dict[str, str]) -> None:
        """Leads a worker to its end."""
        how, blame = "nobody needs it any more", messages.NOBODY
        try:
            place = await _of(worker.handle.where.remote(self.version))
            worker.is_placed = True
            self.say("placed", id=number, **place)
            how = await _of(worker.handle.work.remote(env))
        except Exception as error:
            how, blame = messages.ended(error)
        finally:
            del self.workers[number]
            # One that has said its last word still has its process.
            self.ray.kill(worker.handle, no_restart=True)
            self.say("ended", id=number, how=how, blame=blame)

    def _place(self, order: Order) -> LaunchedActor:
        demand = {name: float(amount) for name, amount in order["resources"].items()}
        others = {name: one for name, one in demand.items() if name not in ("CPU", "GPU") and one}
        handle = self.kind.options(
            num_cpus=demand.get("CPU", 0.0),
            num_gpus=demand.get("GPU", 0.0),
            resources=others,
            scheduling_strategy="SPREAD" if order["placement"] == "spread" else "DEFAULT",
            # Replacements are ordered by the engine, which knows what ran where.
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=1,
        ).remote()
        return LaunchedActor(handle, demand)

    async def look(self) -> None:
        """Says which machines come and go, and why workers wait, until it is cancelled."""
        while True:
            waits = any(not worker.is_placed for worker in self.workers.values())
            self.looks.clear()
            try:
                # Somebody who was just ordered is given a moment to be placed.
                await asyncio.wait_for(self.looks.wait(), LOOK if waits else IDLE_LOOK)
                await asyncio.sleep(LOOK)
            except asyncio.TimeoutError:
                pass
            try:
                nodes = await asyncio.to_thread(self.ray.nodes)
                free = await asyncio.to_thread(self.ray.available_resources)
            except Exception as error:
                said = f"Ray does not answer: {messages.clipped(str(error))}"
                for number, worker in self._unplaced():
                    self._tell_waiting(number, worker, said)
                continue
            self.tell_nodes(nodes)
            for number, worker in self._unplaced():
                why = messages.lacks(worker.demand, nodes)
                if why is None and worker.looks >= PLACING:
                    why = messages.waits(worker.demand, nodes, free)
                self._tell_waiting(number, worker, why)

    def _unplaced(self) -> list[tuple[int, LaunchedActor]]:
        return [(number, one) for number, one in self.workers.items() if not one.is_placed]

    def _tell_waiting(self, number: int, worker: LaunchedActor, why: str | None) -> None:
        worker.looks += 1
        if why is not None and why != worker.why:
            worker.why = why
            self.say("waits", id=number, why=why)

    def tell_nodes(self, nodes: Iterable[messages.Node]) -> None:
        """Says which machines came and went since the last time."""
        alive = {node["NodeID"]: node["NodeManagerAddress"] for node in nodes if node["Alive"]}
        gone = {node["NodeID"]: node for node in nodes if not node["Alive"]}
        said = [f"{alive[node]} came" for node in sorted(alive.keys() - self.nodes)]
        for node in sorted(self.nodes - alive.keys()):
            known = gone.get(node, {})
            why = messages.clipped(str(known.get("DeathReasonMessage") or "it was not said why"))
            said.append(f"{known.get('NodeManagerAddress', node)} left: {why}")
        if said and self.nodes:
            self.say("nodes", nodes=len(alive), said=said)
        self.nodes = set(alive)


async def _of(reference: Any) -> Any:
    """Waits for what a call of an actor returns, or raises."""
    return await asyncio.wrap_future(reference.future())


def connect(ray: Any, order: Order) -> None:
    """Connects to the cluster that is named, or to the one that there is."""
    # A cluster of its own is started only for who asks for it.
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
    """Says why there is no cluster, and what to do about it."""
    what = messages.clipped(str(error) or repr(error))
    if isinstance(error, MissingPackage):
        return {"what": f"{sys.executable} has no package `ray`", "hint": REMEDY}
    if isinstance(error, ConnectionError) and "find" in what:
        return {
            "what": "no Ray cluster was found on this machine",
            "hint": "start one with `ray start --head`, name it with cluster.address, or let the "
            "job have one of its own with `cluster.address: local`",
        }
    return {
        "what": f"the Ray cluster cannot be joined: {what}",
        "hint": "see that cluster.address is that of a running Ray with the same versions of Ray "
        "and Python, and that this machine is part of it",
    }


async def serve(ray: Any, say: Say, order: Order, orders: Orders) -> None:
    """Obeys until there are no more orders."""
    placer = RayLauncher(ray, say, order["version"])
    orders.into(asyncio.get_running_loop(), placer)
    nodes = ray.nodes()
    placer.tell_nodes(nodes)
    say("opened", ip=ray.util.get_node_ip_address(), nodes=len(placer.nodes))
    looking = asyncio.create_task(placer.look())
    await placer.over.wait()
    looking.cancel()


class Orders:
    """Reads orders in a thread of its own, so that their end is noticed whatever else is done."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._first = next(self._lines, None)
        self._lock = threading.Lock()
        self._early: list[Order] = []
        self._placer: tuple[asyncio.AbstractEventLoop, RayLauncher] | None = None
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def first(self) -> Order | None:
        """Returns the first order."""
        return None if self._first is None else json.loads(self._first)

    def into(self, loop: asyncio.AbstractEventLoop, placer: RayLauncher) -> None:
        """Has orders go to a placer from now on, with those that have come before."""
        with self._lock:
            self._placer = (loop, placer)
            for order in self._early:
                placer.hear(order)

    def _read(self) -> None:
        for line in self._lines:
            order = json.loads(line)
            with self._lock:
                if self._placer is None:
                    self._early.append(order)
                else:
                    loop, placer = self._placer
                    loop.call_soon_threadsafe(placer.hear, order)
        with self._lock:
            placer_now = self._placer
        if placer_now is None:
            # Still connecting: nothing has been placed.
            os._exit(0)
        loop, placer = placer_now
        loop.call_soon_threadsafe(placer.over.set)
        # The end of the engine is the end of its workers, also if Ray takes its time.
        threading.Event().wait(FAREWELL)
        os._exit(1)


def main() -> None:
    """Obeys the engine that started this process, and ends with it."""
    # Ctrl-C in a terminal is for the engine.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Standard output is for events alone; whatever else is printed goes the other way.
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lock = threading.Lock()

    def say(event: str, **what: Any) -> None:
        with lock:
            try:
                events.write(json.dumps({"event": event, **what}) + "\n")
            except OSError:
                # The engine is gone; the end of its orders is about to be read.
                pass

    orders = Orders(sys.stdin)
    order = orders.first()
    if order is None:
        return
    try:
        ray = package()
        connect(ray, order)
    except BaseException as error:
        say("failed", **failure(error))
        sys.exit(1)
    try:
        asyncio.run(serve(ray, say, order, orders))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
