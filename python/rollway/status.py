"""Status of finished tasks."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Status:
    """Result of a task: counts of its runs, and metrics.

    `metrics` has one dictionary for the task when it comes from a scheduler, and one for every
    successful run when it comes from a `WorkflowRunner`. `failed_runs` and `cancelled_runs` count
    by kind, such as `{"timeout": 2}`; with `completed_runs` they add up to `total_runs`.
    """

    completed_runs: int
    total_runs: int
    metrics: list[dict[str, float]] = field(default_factory=list)
    message: str | None = None
    task_id: int | None = None
    failed_runs: dict[str, int] = field(default_factory=dict)
    cancelled_runs: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether all runs succeeded."""
        return self.completed_runs == self.total_runs
