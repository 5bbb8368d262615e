"""The scheduler of rollout tasks, its tasks and its runners."""

from __future__ import annotations

from rollway.explorer.scheduler import (
    BatchId,
    CompletedTaskResult,
    RunnerWrapper,
    RunningTaskState,
    Scheduler,
    TaskDone,
    TaskWrapper,
    bootstrap_metric,
    calculate_task_level_metrics,
    sort_batch_id,
)

__all__ = [
    "BatchId",
    "CompletedTaskResult",
    "RunnerWrapper",
    "RunningTaskState",
    "Scheduler",
    "TaskDone",
    "TaskWrapper",
    "bootstrap_metric",
    "calculate_task_level_metrics",
    "sort_batch_id",
]
