"""Status of finished tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollway import _rollway


@dataclass(frozen=True, init=False)
class Status:
    """Result of a task: counts of its runs, and metrics.

    `metrics` has one dictionary for the task when it comes from a scheduler, and one for every
    successful run when it comes from a `WorkflowRunner`. `failed_runs` and `cancelled_runs` count
    by kind, such as `{"timeout": 2}`; with `completed_runs` they add up to `total_runs`.

    The form of 2025 is accepted as well and stands for a single run:

        Status(ok=True, metric={"reward": 1.0})
        Status(False, {}, "the model does not answer")
    """

    completed_runs: int
    total_runs: int
    metrics: list[dict[str, float]]
    message: str | None
    task_id: int | None
    failed_runs: dict[str, int]
    cancelled_runs: dict[str, int]

    def __init__(
        self,
        completed_runs: int | bool | None = None,
        total_runs: int | Mapping[str, float] | None = None,
        metrics: Sequence[Mapping[str, float]] | str | None = None,
        message: str | None = None,
        task_id: int | None = None,
        failed_runs: Mapping[str, int] | None = None,
        cancelled_runs: Mapping[str, int] | None = None,
        *,
        ok: bool | None = None,
        metric: Mapping[str, float] | None = None,
    ) -> None:
        if isinstance(completed_runs, bool):
            # Positional arguments of 2025: ok, metric, message.
            ok, completed_runs = completed_runs, None
            if isinstance(total_runs, Mapping):
                metric, total_runs = total_runs, None
            if isinstance(metrics, str):
                message, metrics = metrics, None
        if ok is not None:
            if completed_runs is not None or total_runs is not None:
                raise TypeError("Status takes either ok or completed_runs and total_runs")
            completed_runs, total_runs = int(ok), 1
        if completed_runs is None or total_runs is None:
            raise TypeError("Status needs completed_runs and total_runs, or ok")
        if metric is not None:
            if metrics:
                raise TypeError("Status takes either metric or metrics")
            metrics = [metric]
        values: dict[str, Any] = {
            "completed_runs": completed_runs,
            "total_runs": total_runs,
            "metrics": list(metrics or []),
            "message": message,
            "task_id": task_id,
            "failed_runs": dict(failed_runs or {}),
            "cancelled_runs": dict(cancelled_runs or {}),
        }
        self.__dict__.update(values)

    @property
    def ok(self) -> bool:
        """`True` if all runs succeeded."""
        return self.completed_runs == self.total_runs

    @property
    def metric(self) -> dict[str, float]:
        """Metrics as one dictionary: those of several runs are combined as for a train task."""
        if len(self.metrics) == 1:
            return dict(self.metrics[0])
        return _rollway.calculate_task_level_metrics(list(self.metrics), False)
