"""The experience pipeline."""

from __future__ import annotations

from rollway.client.coordinator import ExperiencePipeline

__all__ = ["ExperiencePipeline"]
