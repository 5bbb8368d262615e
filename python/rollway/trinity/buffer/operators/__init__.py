"""Operators of the experience pipeline."""

from __future__ import annotations

from rollway import operators as rollway_operators
from rollway.trinity.buffer.operators.experience_operator import (
    ExperienceOperator,
    ExperienceOperatorV1,
)
from rollway.trinity.utils.registry import Registry

__all__ = ["EXPERIENCE_OPERATORS", "OPERATORS", "ExperienceOperator", "ExperienceOperatorV1"]

#: Operators by name. Registered ones can be named in configurations.
EXPERIENCE_OPERATORS = Registry(
    "experience_operators",
    on_register=lambda name, source: rollway_operators.operator(name)(source),
)
OPERATORS = EXPERIENCE_OPERATORS
