"""The coordinator of rollout batches: submit, finalize, abort."""

from __future__ import annotations

from rollway.client.coordinator import (
    BatchLifecycleState,
    BatchState,
    BatchType,
    ExperiencePipeline,
    RolloutCoordinator,
)
from rollway.client.scheduler import BatchId

__all__ = [
    "BatchId",
    "BatchLifecycleState",
    "BatchState",
    "BatchType",
    "ExperiencePipeline",
    "RolloutCoordinator",
]
