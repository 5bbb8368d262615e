"""The runner of workflows without a scheduler, and the status of tasks."""

from __future__ import annotations

from rollway.status import Status
from rollway.worker.runner import WorkflowRunner

__all__ = ["Status", "WorkflowRunner"]
