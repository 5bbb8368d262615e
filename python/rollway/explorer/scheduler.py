"""The scheduler of rollout tasks, its tasks and its runners."""

from __future__ import annotations

from rollway.batch_id import sort_batch_id
from rollway.client._task_states import (
    CompletedTaskResult,
    RunningTaskState,
    TaskDone,
    TaskWrapper,
)
from rollway.client.runner_wrapper import RunnerWrapper
from rollway.client.scheduler import BatchId, Scheduler
from rollway.metrics import bootstrap_metric, calculate_task_level_metrics

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
