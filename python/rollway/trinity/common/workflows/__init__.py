"""Workflows."""

from __future__ import annotations

from typing import Any

from rollway.trinity.common.workflows.step_wise_workflow import (
    AsyncRewardPropagationWorkflow,
    AsyncStepWiseRewardWorkflow,
    RewardPropagationWorkflow,
    StepWiseRewardWorkflow,
)
from rollway.trinity.common.workflows.workflow import (
    AsyncMathBoxedWorkflow,
    AsyncMathWorkflow,
    AsyncSimpleWorkflow,
    MathBoxedWorkflow,
    MathWorkflow,
    MultiTurnWorkflow,
    SimpleWorkflow,
    Task,
    Workflow,
    WorkflowWithRecording,
)
from rollway.trinity.utils.registry import Registry
from rollway.workflow import register

__all__ = [
    "WORKFLOWS",
    "AsyncRewardPropagationWorkflow",
    "AsyncStepWiseRewardWorkflow",
    "MathWorkflow",
    "MultiTurnWorkflow",
    "RewardPropagationWorkflow",
    "SimpleWorkflow",
    "StepWiseRewardWorkflow",
    "Task",
    "Workflow",
    "WorkflowWithRecording",
]

_HERE = f"{__name__}.workflow"


def _register(name: str, source: Any) -> None:
    register(name, source)


#: Workflows by name. Registered ones can be named in configurations.
WORKFLOWS = Registry(
    "workflows",
    default_mapping={
        "simple_workflow": f"{_HERE}.SimpleWorkflow",
        "math_workflow": f"{_HERE}.MathWorkflow",
    },
    on_register=_register,
)

# `simple_workflow` and `math_workflow` are names of `rollway` too; in configurations they mean its
# own, which do the same.
for _name, _source in (
    ("async_simple_workflow", AsyncSimpleWorkflow),
    ("async_math_workflow", AsyncMathWorkflow),
    ("math_boxed_workflow", MathBoxedWorkflow),
    ("async_math_boxed_workflow", AsyncMathBoxedWorkflow),
):
    WORKFLOWS.register_module(_name, _source)
