"""Cost of the engine with Python workers, compared with the bare transport and the reference.

    cargo xtask bench python

Every figure is measured three times. The reference's were measured on a machine of this kind with 2
cores; whatever else a machine does shows in all figures but those of memory.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable

import rollway as rw
from rollway.client._pending import PendingResult, identity

REPEATS = 3
TASKS = 6000
RUNNERS = (2, 4, 8)
IN_FLIGHT = 256

#: No-op tasks per second of the reference, by runners: without, and at best with, experiences.
REFERENCE = {"eval": (142, 172, 264), "train": (92, 154, 121)}


async def nothing(task, model):
    return 1.0


async def one_experience(task, model):
    return [rw.Experience(tokens=[1, 2, 3], prompt_length=1, reward=1.0)]


async def moment(task, model):
    # The same clock in all processes of a machine.
    return time.monotonic()


async def stays(task, model):
    await model.chat([{"role": "user", "content": "a question"}])
    with open(task.raw_task, "ab", buffering=0) as file:  # noqa: ASYNC230
        file.write(b".")
    await asyncio.Event().wait()


def scheduler(runners: int, mode: str = "sequential") -> rw.Scheduler:
    config = rw.Config()
    config.explorer.runner_per_model = runners
    config.explorer.concurrent_mode = mode
    config.explorer.supervision.restart_backoff = 0.01
    return rw.Scheduler(config, [rw.models.Echo()])


def workers() -> list[int]:
    """Returns the processes that this one has started."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        known = file.read().split()
    # The engine starts them from threads of its own.
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/children") as file:
            known += file.read().split()
    return sorted({int(pid) for pid in known})


def megabytes(pid: int | str) -> float:
    """Returns the memory that a process has to itself, with its share of what others use too."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        lines = dict(line.split(":", 1) for line in file if "kB" in line)
    return int(lines["Pss"].split()[0]) / 1024


def row(name: str, values: list[float], unit: str, best: Callable = max, against: str = "") -> None:
    median = statistics.median(values)
    print(f"{name:<46}{best(values):>10,.2f}{median:>11,.2f}  {unit:<9}{against}", flush=True)


def transport(echo: str, runners: int) -> list[float]:
    """A worker in Rust behind the same scheduler: what no worker can exceed."""
    with_echo = scheduler(runners)
    _program, _arguments, env = with_echo._launch_setup.spawn
    with_echo._launch_setup.spawn = (echo, [str(runners)], env)
    packed = [("rollway.conformance.succeed", None, 1, True, b"")] * TASKS
    rates = []
    with with_echo:
        engine = with_echo._started()
        for batch in range(REPEATS + 1):
            began = time.perf_counter()
            # Called before the next iteration changes `batch`.
            begin = lambda: engine.schedule(packed, batch)  # noqa: B023, E731
            PendingResult("schedule", begin, identity).result()
            with_echo.get_statuses(batch).result()
            rates.append(TASKS / (time.perf_counter() - began))
    return rates[1:]


def throughput(kind: str, runners: int) -> list[float]:
    workflow = nothing if kind == "eval" else one_experience
    rates = []
    with scheduler(runners) as busy:
        for batch in range(REPEATS + 1):
            tasks = [
                rw.Task(workflow=workflow, raw_task={}, is_eval=kind == "eval")
                for _ in range(TASKS)
            ]
            began = time.perf_counter()
            busy.schedule(tasks, batch)
            statuses, _payloads = busy.get_payload_results(batch).result()
            rates.append(TASKS / (time.perf_counter() - began))
            assert all(status.ok for status in statuses)
    # The first round warms up.
    return rates[1:]


def one_task(idle: rw.Scheduler, batch: int) -> float:
    """Returns how long a single task takes from `schedule` to its result, in milliseconds."""
    task = rw.Task(workflow=nothing, is_eval=True)
    began = time.perf_counter()
    idle.schedule([task], batch)
    (status,) = idle.get_statuses(batch).result()
    assert status.ok
    return (time.perf_counter() - began) * 1e3


def last_to_return(idle: rw.Scheduler, batch: int) -> float:
    """Returns how long after the last completion the collecting call returns, in milliseconds."""
    idle.schedule([rw.Task(workflow=moment, is_eval=True) for _ in range(16)], batch)
    statuses = idle.get_statuses(batch).result()
    now = time.monotonic()
    return (now - max(status.metrics[0]["reward/mean@1"] for status in statuses)) * 1e3


def replacement(idle: rw.Scheduler, batch: int) -> float:
    """Returns how long after the death of the only worker its replacement serves, in ms."""
    (worker,) = workers()
    began = time.perf_counter()
    os.kill(worker, signal.SIGKILL)
    while worker in workers():
        time.sleep(0.001)
    idle.schedule([rw.Task(workflow=nothing, is_eval=True)], batch)
    (status,) = idle.get_statuses(batch).result()
    assert status.ok
    return (time.perf_counter() - began) * 1e3


def in_flight(number: int) -> float:
    """Returns the memory of each of many runs that wait in one process, in kB."""
    with scheduler(1, "asynchronous") as busy, tempfile.NamedTemporaryFile() as file:
        busy.schedule([rw.Task(workflow=nothing, is_eval=True)], 0)
        busy.get_statuses(0).result()
        (worker,) = workers()
        before = megabytes(worker)
        busy.schedule([rw.Task(workflow=stays, raw_task=file.name, repeat_times=number)], 1)
        while os.path.getsize(file.name) < number:
            time.sleep(0.01)
        after = megabytes(worker)
        busy.abort_batch(1).result()
    return (after - before) * 1024 / number


def main() -> None:
    print(f"{'load of the machine':<46}{os.getloadavg()[0]:>10.2f}{'':>11}  at the beginning")
    print(f"{'':<46}{'best':>10}{'median':>11}")
    echo = os.environ.get("ROLLWAY_ECHO_BIN")
    if echo:
        for runners in RUNNERS:
            rates = transport(echo, runners)
            row(f"no-op, worker in Rust, {runners} runners", rates, "tasks/s", max, "the limit")
    for kind, references in REFERENCE.items():
        for runners, reference in zip(RUNNERS, references, strict=True):
            rates = throughput(kind, runners)
            against = f"reference {reference}: {statistics.median(rates) / reference:.0f} times"
            name = "no-op" if kind == "eval" else "one small experience"
            row(f"{name}, {runners} runners", rates, "tasks/s", max, against)
    with scheduler(4) as idle:
        for batch in range(200):
            one_task(idle, batch)
        rounds = [sorted(one_task(idle, batch) for batch in range(300)) for _ in range(REPEATS)]
        medians = [one[len(one) // 2] for one in rounds]
        row("one task on an idle pool, median", medians, "ms", min, "reference 100")
        row(
            "one task on an idle pool, p99",
            [one[len(one) * 99 // 100] for one in rounds],
            "ms",
            min,
        )
        waits = [
            statistics.median(last_to_return(idle, batch) for batch in range(100))
            for _ in range(REPEATS)
        ]
        row("last completion to return of the call", waits, "ms", min, "reference 16 to 136")
        deaths = [replacement(idle, batch) for batch in range(REPEATS)]
        row("death of a worker to its replacement serving", deaths, "ms", min)
    sizes = []
    for _ in range(REPEATS):
        with scheduler(8) as idle:
            one_task(idle, 0)
            sizes.append((megabytes("self"), [megabytes(worker) for worker in workers()]))
    row("memory of the parent", [parent for parent, _ in sizes], "MB", min)
    row("memory of a worker process", [max(each) for _, each in sizes], "MB", min)
    row(
        "memory of an idle runner", [sum(each) / 8 for _, each in sizes], "MB", min, "reference 150"
    )
    runs = [in_flight(IN_FLIGHT) for _ in range(REPEATS)]
    row(f"memory of each of {IN_FLIGHT} async runs", runs, "kB", min, "at most 2,048")
    print(f"{'load of the machine':<46}{os.getloadavg()[0]:>10.2f}{'':>11}  at the end")


if __name__ == "__main__":
    main()
