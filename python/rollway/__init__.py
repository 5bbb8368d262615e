"""Rollway: a rollout engine for reinforcement fine-tuning of language models and agents.

A workflow, a few tasks, results:

    import rollway as rw

    @rw.workflow
    async def solve(task, model):
        reply = await model.chat([{"role": "user", "content": task.raw_task["question"]}])
        return float(reply.text.strip() == task.raw_task["answer"])

    with rw.Scheduler(rw.Config(), [rw.models.Echo()]) as scheduler:
        scheduler.schedule([rw.Task(workflow=solve, raw_task=row) for row in rows], batch_id=1)
        statuses, experiences = scheduler.get_results(1).result()
"""

from __future__ import annotations

import atexit

from rollway import (
    _logging,
    _rollway,
    errors,
    harness,
    metrics,
    models,
    rewards,
    sandbox,
    workflows,
)
from rollway.batch_id import sort_batch_id
from rollway.client._pending import PendingResult
from rollway.client._task_states import CompletedTaskResult, RunningTaskState, TaskWrapper
from rollway.client.coordinator import (
    BatchLifecycleState,
    BatchState,
    MemorySink,
    Restored,
    RestoredBatch,
    RolloutCoordinator,
)
from rollway.client.explorer import Explorer
from rollway.client.reader import ExperienceBatch, ExperienceReader, ExperienceServer
from rollway.client.runner_wrapper import RunnerWrapper
from rollway.client.scheduler import Scheduler
from rollway.client.serve import ServeClient, ServeError
from rollway.client.synchronizer import Synchronizer, latest_version, publish_weights
from rollway.config import Config
from rollway.errors import (
    Aborted,
    AgentFailed,
    AlreadyActive,
    BatchFailed,
    BufferDamaged,
    BufferError,
    BufferFull,
    BufferUnavailable,
    BufferUnsupported,
    Closed,
    ClusterUnavailable,
    ConfigError,
    Error,
    ExplorerError,
    ForkError,
    InvalidOutput,
    InvalidPayload,
    InvalidRewardFn,
    InvalidWorkflow,
    LedgerFailed,
    LimitExceeded,
    MissingPackage,
    ModelError,
    ModelUnavailable,
    NoPipeline,
    NoRuns,
    NotCollectable,
    NotRegistered,
    NotStarted,
    NoWeights,
    PipelineFailed,
    RunTimeout,
    SandboxError,
    SandboxExpired,
    SetupFailed,
    SinkFailed,
    StageTimeout,
    Stopped,
    SynchronizerError,
    TasksCancelled,
    TasksetError,
    TimedOut,
    TooFewSucceeded,
    TooFewTasks,
    TrainerFailed,
    UnknownRewardFn,
    UnknownSandbox,
    UnknownWorkflow,
    Unsupported,
    WaitAllTimedOut,
    WeightsError,
    WorkflowUnavailable,
    WrongBatchType,
)
from rollway.experience import Experience
from rollway.experience.custom_fields import CustomField
from rollway.experience.eid import EID, group_by
from rollway.model_types import BlockingModel, Model
from rollway.models.base import Reply
from rollway.operators import Operator, operator
from rollway.rewards import compute_reward, reward_fn
from rollway.stages import stage
from rollway.status import Status
from rollway.task import GenerationConfig, Task
from rollway.worker.runner import WorkflowRunner
from rollway.workflow import Workflow, register, workflow

__all__ = [
    "EID",
    "Aborted",
    "AgentFailed",
    "AlreadyActive",
    "BatchFailed",
    "BatchLifecycleState",
    "BatchState",
    "BlockingModel",
    "BufferDamaged",
    "BufferError",
    "BufferFull",
    "BufferUnavailable",
    "BufferUnsupported",
    "Closed",
    "ClusterUnavailable",
    "CompletedTaskResult",
    "Config",
    "ConfigError",
    "CustomField",
    "Error",
    "Experience",
    "ExperienceBatch",
    "ExperienceReader",
    "ExperienceServer",
    "Explorer",
    "ExplorerError",
    "ForkError",
    "GenerationConfig",
    "InvalidOutput",
    "InvalidPayload",
    "InvalidRewardFn",
    "InvalidWorkflow",
    "LedgerFailed",
    "LimitExceeded",
    "MemorySink",
    "MissingPackage",
    "Model",
    "ModelError",
    "ModelUnavailable",
    "NoPipeline",
    "NoRuns",
    "NoWeights",
    "NotCollectable",
    "NotRegistered",
    "NotStarted",
    "Operator",
    "PendingResult",
    "PipelineFailed",
    "Reply",
    "Restored",
    "RestoredBatch",
    "RolloutCoordinator",
    "RunTimeout",
    "RunnerWrapper",
    "RunningTaskState",
    "SandboxError",
    "SandboxExpired",
    "Scheduler",
    "ServeClient",
    "ServeError",
    "SetupFailed",
    "SinkFailed",
    "StageTimeout",
    "Status",
    "Stopped",
    "Synchronizer",
    "SynchronizerError",
    "Task",
    "TaskWrapper",
    "TasksCancelled",
    "TasksetError",
    "TimedOut",
    "TooFewSucceeded",
    "TooFewTasks",
    "TrainerFailed",
    "UnknownRewardFn",
    "UnknownSandbox",
    "UnknownWorkflow",
    "Unsupported",
    "WaitAllTimedOut",
    "WeightsError",
    "Workflow",
    "WorkflowRunner",
    "WorkflowUnavailable",
    "WrongBatchType",
    "compute_reward",
    "errors",
    "group_by",
    "harness",
    "latest_version",
    "metrics",
    "models",
    "operator",
    "publish_weights",
    "register",
    "reward_fn",
    "rewards",
    "sandbox",
    "sort_batch_id",
    "stage",
    "workflow",
    "workflows",
]

#: The version of the package and of the engine in it.
__version__ = _rollway.version()


_logging.install()
atexit.register(_rollway.shutdown)
