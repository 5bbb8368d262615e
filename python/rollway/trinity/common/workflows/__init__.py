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
    "AsyncMathBoxedWorkflow",
    "AsyncMathWorkflow",
    "AsyncSimpleWorkflow",
    "MathBoxedWorkflow",
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


#: Workflows by name. Registered ones can be named in configurations. There `simple_workflow` and
#: `math_workflow` mean those of `rollway`, which do the same.
WORKFLOWS = Registry(
    "workflows",
    default_mapping={
        "simple_workflow": f"{_HERE}.SimpleWorkflow",
        "math_workflow": f"{_HERE}.MathWorkflow",
        "async_simple_workflow": f"{_HERE}.AsyncSimpleWorkflow",
        "async_math_workflow": f"{_HERE}.AsyncMathWorkflow",
        "math_boxed_workflow": f"{_HERE}.MathBoxedWorkflow",
        "async_math_boxed_workflow": f"{_HERE}.AsyncMathBoxedWorkflow",
    },
    on_register=_register,
)
