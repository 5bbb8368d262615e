"""Metrics of tasks, combined into metrics of batches."""

from __future__ import annotations

from rollway.metrics import gather_eval_metrics, gather_metrics

__all__ = ["gather_eval_metrics", "gather_metrics"]
