"""Models that workflows call."""

from __future__ import annotations

from rollway.models.base import Model as InferenceModel
from rollway.trinity.common.models.model import ModelWrapper

__all__ = ["InferenceModel", "ModelWrapper"]
