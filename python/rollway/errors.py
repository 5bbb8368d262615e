"""Errors of the package, as types with data.

Every error derives from `Error` and, where Python has a built-in for the case, from that
too. `code` is a stable name, the same in logs and metrics; the data are attributes:

    try:
        await coordinator.finalize_train_batch(7)
    except rw.NotRegistered as error:
        print(error.code, error.batch_id)      # not_registered 7
"""

from __future__ import annotations

from typing import Any


class Error(Exception):
    """Base class of all errors of this package.

    `message` is the text of the error, unless the data contain a `message` of their own.
    """

    code: str = "error"
    message: str

    def __init__(self, text: str = "", /, **data: Any) -> None:
        super().__init__(text)
        self.message = text
        self.data = data
        for name, value in data.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args[0], self.data)


def _restore(kind: type[Error], text: str, data: dict[str, Any]) -> Error:
    return kind(text, **data)


class AlreadyActive(Error, ValueError):
    """The batch id is already in use. Has `batch_id`."""

    code = "already_active"


class NotRegistered(Error, KeyError):
    """No submitted batch has this id. Has `batch_id`."""

    code = "not_registered"


class WrongBatchType(Error, ValueError):
    """The batch has the other batch type. Has `batch_id`, `batch_type` and `expected`."""

    code = "wrong_batch_type"


class NotCollectable(Error, ValueError):
    """The batch must be finalized, not collected: a coordinator owns it. Has `batch_id`."""

    code = "not_collectable"


class NoRuns(Error, ValueError):
    """A task has `repeat_times` 0. Has `task`, its position in the list."""

    code = "no_runs"


class LimitExceeded(Error, ValueError):
    """A configured limit is exceeded. Has `limit`, `value` and `max`."""

    code = "limit"


class NotStarted(Error, RuntimeError):
    """`start()` or `prepare()` was not called."""

    code = "not_started"


class Stopped(Error, RuntimeError):
    """The scheduler is stopped or stopping."""

    code = "stopped"


class TimedOut(Error, TimeoutError):
    """Too few tasks finished within the timeout. Results are kept; the call can be repeated.

    Has `batch_id`, `state`, `finished`, `needed`, `expected` and `serving`.
    """

    code = "timed_out"


class WaitAllTimedOut(Error, TimeoutError):
    """`wait_all` reached its timeout. Has `pending` and `running`."""

    code = "wait_all_timed_out"


class TasksCancelled(Error, RuntimeError):
    """All tasks ended, but too many were cancelled.

    Has `batch_id`, `finished`, `needed` and `expected`. The batch can be aborted, keeping its
    results.
    """

    code = "tasks_cancelled"


class Aborted(Error, RuntimeError):
    """The batch was aborted. Has `batch_id` and `reason`."""

    code = "aborted"


class BatchFailed(Error, RuntimeError):
    """A run failed with a kind that fails its batch. Has `batch_id`, `kind` and `message`."""

    code = "batch_failed"


class SinkFailed(Error, RuntimeError):
    """The sink did not store the experiences. They are kept; the same call delivers them again.

    Has `batch_id` and `message`.
    """

    code = "sink_failed"


class TooFewSucceeded(Error, RuntimeError):
    """Too few tasks have a successful run. Has `batch_id`, `succeeded` and `needed`."""

    code = "too_few_succeeded"


class Closed(Error, RuntimeError):
    """The connection to the engine is closed."""

    code = "closed"


class NoPipeline(Error, RuntimeError):
    """No experience pipeline: not prepared, or the job only evaluates."""

    code = "no_pipeline"


class PipelineFailed(Error, RuntimeError):
    """The pipeline failed to process experiences."""

    code = "pipeline_failed"


class LedgerFailed(Error, RuntimeError):
    """The ledger is locked, damaged, full, not writable, or belongs to another job."""

    code = "ledger_failed"


class ForkError(Error, RuntimeError):
    """The engine was started before a fork; its threads do not exist in this process."""

    code = "forked"


class ConfigError(Error, ValueError):
    """Invalid configuration. Has `problems`: a list of messages, each with key and line."""

    code = "config"


class UnknownWorkflow(Error, ValueError):
    """No workflow of that name is registered. Has `name` and `known`."""

    code = "unknown_workflow"


class InvalidWorkflow(Error, TypeError):
    """The object is not a workflow."""

    code = "invalid_workflow"


class UnknownRewardFn(Error, ValueError):
    """No reward function of that name is registered. Has `name` and `known`."""

    code = "unknown_reward_fn"


class InvalidRewardFn(Error, TypeError):
    """The object is not a reward function, or does not accept these arguments."""

    code = "invalid_reward_fn"


class InvalidOutput(Error, ValueError):
    """A workflow returned a value that is not an experience."""

    code = "invalid_output"


class InvalidPayload(Error, ValueError):
    """The bytes are not an experience payload."""

    code = "invalid_payload"


class BufferError(Error, RuntimeError):
    """An experience buffer failed. Has `storage`. Data already read is kept."""

    code = "buffer"


class BufferUnavailable(BufferError, ConnectionError):
    """The buffer or its server does not respond; the call can be repeated."""

    code = "buffer_unavailable"


class BufferFull(BufferError):
    """The buffer reached its limit."""

    code = "buffer_full"


class BufferDamaged(BufferError):
    """The buffer contains invalid data."""

    code = "buffer_damaged"


class BufferUnsupported(BufferError, ValueError):
    """The buffer does not support the operation."""

    code = "buffer_unsupported"


class ModelUnavailable(Error, ConnectionError):
    """No inference server responded; the configuration decides whether the run is retried."""

    code = "model_unavailable"


class ModelError(Error, RuntimeError):
    """A model rejected a call. Has `status` and `type`, as in the OpenAI API."""

    code = "model_error"


class SandboxError(Error, RuntimeError):
    """A sandbox failed: infrastructure; the run is retried, the task is not charged."""

    code = "sandbox"


class RunTimeout(Error, TimeoutError):
    """A deadline within a run passed; the run fails as after the timeout of its attempt."""

    code = "timeout"


class SandboxExpired(RunTimeout):
    """The lease of a sandbox ended while it was in use. Has `seconds`."""

    code = "sandbox_expired"


class UnknownSandbox(Error, ValueError):
    """No kind of sandbox is registered under that name. Has `name` and `known`."""

    code = "unknown_sandbox"


class StageTimeout(RunTimeout):
    """A stage of a run exceeded its deadline. Has `stage` and `seconds`."""

    code = "stage_timeout"


class AgentFailed(Error, RuntimeError):
    """The program of an agent failed. Has `outcome` and `exit_code`."""

    code = "agent_failed"


class SetupFailed(Error, RuntimeError):
    """A command that prepares a sandbox failed. Has `exit_code`."""

    code = "setup_failed"


class WorkflowUnavailable(Error, ImportError):
    """A configured workflow or reward function cannot be imported. Has `kind`."""

    code = "workflow_unavailable"


class TasksetError(Error, ValueError):
    """The taskset is empty or cannot be read."""

    code = "taskset"


class ExplorerError(Error, RuntimeError):
    """The explorer did not start, or ended before its job was done. Finished work is kept."""

    code = "explorer"


class NoWeights(ExplorerError, TimeoutError):
    """The trainer published no weights in time. Has `step` and `at_least`, the version."""

    code = "no_weights"


class TrainerFailed(ExplorerError):
    """The trainer ended with an error."""

    code = "trainer_failed"


class TooFewTasks(ExplorerError):
    """A batch has fewer tasks than the configuration requires. Has `step`."""

    code = "too_few_tasks"


class WeightsError(Error, ValueError):
    """The weights cannot be read or do not fit the model."""

    code = "weights"


class ClusterUnavailable(Error, ConnectionError):
    """The cluster for the workers cannot be joined."""

    code = "cluster"


class MissingPackage(Error, ImportError):
    """An optional package is not installed. Has `package`."""

    code = "missing_package"


class Unsupported(Error, NotImplementedError):
    """A method of Trinity-RFT has no counterpart. Has `name`."""

    code = "unsupported"


class SynchronizerError(Error, RuntimeError):
    """The synchronizer of a job is not reachable or rejects the weights."""

    code = "synchronizer"


def _subclasses(kind: type[Error]) -> list[type[Error]]:
    below = [sub for direct in kind.__subclasses__() for sub in _subclasses(direct)]
    return [kind, *below]


_BY_CODE: dict[str, type[Error]] = {kind.code: kind for kind in _subclasses(Error)}


def make(code: str, message: str, data: dict[str, Any]) -> Error:
    """Returns the error with this code; called by the extension."""
    if code == TimedOut.code:
        # The first sentence is that of Trinity-RFT, which programs compare.
        head, _, rest = message.partition(": ")
        message = f"{head[:1].upper()}{head[1:]}. {rest[:1].upper()}{rest[1:]}".rstrip()
    error = _BY_CODE.get(code, Error)(message, **data)
    if type(error) is Error:
        error.code = code
    return error
