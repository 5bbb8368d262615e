"""Tasks in the scheduler, as data classes with the fields of Trinity-RFT.

The core owns this state; every object is a snapshot that is filled when it is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from rollway import _serialization
from rollway.client import _launch
from rollway.experience import Experience
from rollway.status import Status
from rollway.task import Task

BatchId = int | str


@dataclass
class TaskWrapper:
    """A task in the scheduler. Each task can run multiple times on the same or different runners.

    `sub_task_num` counts the slices of the task, `finished_sub_task_num` those whose runs have all
    ended. `metrics` and `experience_payloads` have one entry per successful run. `emitted`: the
    task has ended and its result can be taken.

    `run_id_base` and `repeat_times` are the fields of 2025: the first run of the slice and the
    number of its runs, for `RunnerWrapper.run_with_retry(task)`.
    """

    task: Task
    batch_id: BatchId
    sub_task_num: int = 1
    finished_sub_task_num: int = 0
    completed_runs: int = 0
    total_runs: int = 0
    metrics: list[dict[str, float]] = field(default_factory=list)
    experience_payloads: list[bytes] = field(default_factory=list)
    first_error: str | None = None
    emitted: bool = False
    run_id_base: int = 0
    repeat_times: int = 1


@dataclass
class CompletedTaskResult:
    """The result of an ended task that was not taken yet, with one payload per successful run."""

    batch_id: BatchId
    task_id: int | str
    status: Status
    experience_payloads: list[bytes] = field(default_factory=list)


@dataclass
class RunningTaskState:
    """A slice that a runner executes now.

    `restart_runner_on_cancel`: a runner that does not acknowledge a cancel in time is replaced.
    """

    task: TaskWrapper
    runner_id: int
    restart_runner_on_cancel: bool = True


class TaskDone(Future[tuple[Status, bytes, int | None, float]]):
    """An ended task, as `Scheduler.task_done_callback` gets it: a future that is done.

    `result()` returns the status, the experiences as one payload, the id of the last runner and
    the seconds of all attempts, as `RunnerWrapper.run_with_retry` does.
    """

    def __init__(
        self,
        batch_id: BatchId,
        status: Status,
        payloads: list[bytes],
        runner_id: int | None,
        seconds: float,
    ) -> None:
        super().__init__()
        self.batch_id = batch_id
        self.task_id = status.task_id
        self.experience_payloads = payloads
        self.set_result((status, merge_payloads(payloads), runner_id, seconds))

    def get_name(self) -> str:
        """Returns the batch id and the task id."""
        return f"{self.batch_id}/{self.task_id}"


def merge_payloads(payloads: Sequence[bytes]) -> bytes:
    """Returns the experiences of several payloads as one payload."""
    if len(payloads) == 1:
        return payloads[0]
    many = [Experience.deserialize_many(payload) for payload in payloads]
    return Experience.serialize_many([experience for one in many for experience in one])


def wrapper(row: dict[str, Any], loaded: dict[bytes, Any] | None = None) -> TaskWrapper:
    """Builds the wrapper of a task from a row of the engine.

    `loaded` caches workflows by their definition.
    """
    return TaskWrapper(
        task=_task(row, {} if loaded is None else loaded),
        batch_id=row["batch_id"],
        sub_task_num=row["slices"],
        finished_sub_task_num=row["ended_slices"],
        completed_runs=row["completed_runs"],
        total_runs=row["total_runs"],
        metrics=row["metrics"],
        experience_payloads=row["payloads"],
        first_error=row["first_error"],
        emitted=row["status"] is not None,
        repeat_times=row["total_runs"],
    )


def completed(row: dict[str, Any]) -> CompletedTaskResult:
    """Builds the result of an ended task from a row of the engine."""
    status = _launch.status(row["status"])
    return CompletedTaskResult(row["batch_id"], row["task_id"], status, row["payloads"])


def done_callback(callback: Callable[[TaskDone], Any], log: Any) -> Callable[..., None]:
    """Returns the function that the engine calls for every ended task."""

    def call(
        batch_id: BatchId,
        row: tuple[Any, ...],
        payloads: list[bytes],
        runner_id: int | None,
        seconds: float,
        dropped: int,
    ) -> None:
        if dropped:
            log.warning("task_done_callback is too slow: %d calls were dropped", dropped)
        callback(TaskDone(batch_id, _launch.status(row), payloads, runner_id, seconds))

    return call


def _task(row: dict[str, Any], loaded: dict[bytes, Any]) -> Task:
    workflow: Any = row["workflow"]
    encoding = "pickle"
    if row["definition"] is not None:
        kind, body, encoding = row["definition"]
        key = body or workflow.encode()
        if key not in loaded:
            try:
                loaded[key] = _serialization.load(workflow, kind, body).source
            except Exception:
                # Only workers can import it; its name identifies it here.
                loaded[key] = workflow
        workflow = loaded[key]
    fields = _serialization.decode_task(row["body"], encoding)
    fields.pop(_serialization.RUN_OPTIONS, None)
    fields["repeat_times"] = row["total_runs"]
    return Task.restored(
        workflow,
        {**fields, "is_eval": row["is_eval"]},
        batch_id=row["batch_id"],
        task_id=row["task_id"],
    )
