"""Cost of workers on a Ray cluster, compared with bare Ray actor calls and the reference.

    python python/bench/ray_cluster.py

One cluster of three nodes on this machine serves all figures. The reference's were measured on a
machine of this kind with 2 cores, its results going through Ray; bare actor calls
are the limit of that design.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import sys
import time

import rollway as rw

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from engine import REFERENCE, megabytes, nothing, row  # noqa: E402
from ray_nodes import Nodes, until  # noqa: E402

REPEATS = 3
TASKS = 6000
CALLS = 2000
RUNNERS = (2, 4, 8)


def scheduler(address: str, runners: int, per_worker: int = 4) -> rw.Scheduler:
    config = rw.Config()
    config.cluster.backend = "ray"
    config.cluster.address = address
    config.explorer.runner_per_model = runners
    config.explorer.runner_per_worker = per_worker
    config.explorer.supervision.restart_backoff = 0.01
    return rw.Scheduler(config, [rw.models.Echo()])


def round_of(busy: rw.Scheduler, batch: int, number: int = TASKS) -> float:
    """Returns how many tasks that do nothing end in a second."""
    tasks = [rw.Task(workflow=nothing, raw_task={}, is_eval=True) for _ in range(number)]
    began = time.perf_counter()
    busy.schedule(tasks, batch)
    statuses = busy.get_statuses(batch).result()
    rate = number / (time.perf_counter() - began)
    assert all(status.ok for status in statuses)
    return rate


def throughput(address: str, runners: int) -> list[float]:
    with scheduler(address, runners) as busy:
        until(lambda: serving(busy) == runners, "all runners are there")
        # The first round warms up.
        return [round_of(busy, batch) for batch in range(REPEATS + 1)][1:]


def bare(address: str, actors: int) -> list[float]:
    """Returns how many calls of actors that do nothing Ray itself makes in a second."""
    import ray

    ray.init(address=address, logging_level="WARNING")

    @ray.remote(num_cpus=0.5, scheduling_strategy="SPREAD")
    class Actor:
        def nothing(self, task):
            return 1.0

    crowd = [Actor.remote() for _ in range(actors)]
    ray.get([actor.nothing.remote({}) for actor in crowd])
    rates = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        ray.get([crowd[call % actors].nothing.remote({}) for call in range(CALLS)])
        rates.append(CALLS / (time.perf_counter() - began))
    ray.shutdown()
    return rates


def pids(busy: rw.Scheduler) -> set[int]:
    """Returns the processes of all workers."""
    states = busy.get_all_state().values()
    return {int(state["node"].split()[-1]) for state in states if state.get("node")}


def serving(busy: rw.Scheduler) -> int:
    states = busy.get_all_state().values()
    return sum(state["state"] in ("idle", "busy") for state in states)


def node_loss(nodes: Nodes) -> list[float]:
    """Returns how long after the loss of a node all runners serve again, in seconds."""
    times = []
    with scheduler(nodes.address, 8) as busy:
        until(lambda: serving(busy) == 8, "all runners are there")
        round_of(busy, 0, 100)
        for _ in range(REPEATS):
            # There is room enough elsewhere: what is measured is not how a machine is started.
            nodes.nodes.append(nodes.add())
            lost = next(node for node in nodes.nodes if _has_worker(node, pids(busy)))
            nodes.nodes.remove(lost)
            began = time.perf_counter()
            nodes.kill(lost)
            until(lambda: serving(busy) < 8, "the loss is noticed")
            until(lambda: serving(busy) == 8, "all runners serve again")
            times.append(time.perf_counter() - began)
    return times


def _has_worker(node: object, workers: set[int]) -> bool:
    from ray_nodes import descendants

    raylet = node.all_processes["raylet"][0].process.pid  # type: ignore[attr-defined]
    return bool(workers & set(descendants(raylet)))


def main() -> None:
    print(f"{'load of the machine':<46}{os.getloadavg()[0]:>10.2f}{'':>11}  at the beginning")
    print(f"{'':<46}{'best':>10}{'median':>11}")
    nodes = Nodes()
    try:
        for runners, reference in zip(RUNNERS, REFERENCE["eval"], strict=True):
            calls = bare(nodes.address, runners)
            row(f"calls of {runners} bare actors", calls, "calls/s")
            rates = throughput(nodes.address, runners)
            median = statistics.median(rates)
            against = (
                f"{median / statistics.median(calls):.0f} times bare Ray, "
                f"{median / reference:.0f} times the reference ({reference})"
            )
            row(f"no-op, {runners} runners", rates, "tasks/s", max, against)
        for per_worker in (1, 4):
            with scheduler(nodes.address, 4, per_worker) as idle:
                until(lambda: serving(idle) == 4, "all runners are there")  # noqa: B023
                round_of(idle, 0, 100)
                sizes = [megabytes(pid) for pid in pids(idle)]
            name = f"memory of a runner, {per_worker} in a process"
            row(name, [sum(sizes) / 4], "MB", min, "reference 940")
        row("loss of a node to full capacity", node_loss(nodes), "s", min)
    finally:
        nodes.close()
    print(f"{'load of the machine':<46}{os.getloadavg()[0]:>10.2f}{'':>11}  at the end")


if __name__ == "__main__":
    main()
