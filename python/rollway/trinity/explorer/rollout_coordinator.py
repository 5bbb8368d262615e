"""The coordinator of rollout batches: submit, finalize, abort."""

from __future__ import annotations

from rollway.explorer.rollout_coordinator import (
    BatchId,
    BatchLifecycleState,
    BatchState,
    BatchType,
    ExperiencePipeline,
    RolloutCoordinator,
)

__all__ = [
    "BatchId",
    "BatchLifecycleState",
    "BatchState",
    "BatchType",
    "ExperiencePipeline",
    "RolloutCoordinator",
]
