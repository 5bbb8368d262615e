"""The runner of workflows without a scheduler, and the status of tasks."""

from __future__ import annotations

from rollway.explorer.workflow_runner import (
    Status,
    WorkflowRunner,
)

__all__ = [
    "Status",
    "WorkflowRunner",
]
