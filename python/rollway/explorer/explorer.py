"""The explorer: explores, evaluates and serves the tasksets of a job."""

from __future__ import annotations

from rollway.client.explorer import Explorer

__all__ = ["Explorer"]
