"""What can go wrong, as types with data.

Every error derives from :class:`Error` and, where Python has a built-in for the case, from that
too. `code` is a stable name, the same in logs and metrics; the data are attributes::

    try:
        await coordinator.finalize_train_batch(7)
    except rw.NotRegistered as error:
        print(error.code, error.batch_id)      # not_registered 7
"""

from __future__ import annotations

from typing import Any


class Error(Exception):
    """The base of all errors of this package."""

    code: str = "error"

    def __init__(self, message: str = "", **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data = data
        for name, value in data.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (type(self), self.message, self.data)


def _remake(kind: type[Error], message: str, data: dict[str, Any]) -> Error:
    return kind(message, **data)


class AlreadyActive(Error, ValueError):
    """The batch id is in use. Has `batch_id`."""

    code = "already_active"


class NotRegistered(Error, KeyError):
    """There is no submitted batch of that id. Has `batch_id`."""

    code = "not_registered"


class WrongKind(Error, ValueError):
    """The batch is of the other kind. Has `batch_id`, `batch_type` and `expected`."""

    code = "wrong_kind"


class NotCollectable(Error, ValueError):
    """The batch was submitted: it is finalized, not collected. Has `batch_id`."""

    code = "not_collectable"


class NoRuns(Error, ValueError):
    """A task wants no runs. Has `task`, its position in the list."""

    code = "no_runs"


class LimitExceeded(Error, ValueError):
    """Something is larger than the configuration allows. Has `limit`, `value` and `max`."""

    code = "limit"


class NotStarted(Error, RuntimeError):
    """`start()` or `prepare()` was not called."""

    code = "not_started"


class Stopped(Error, RuntimeError):
    """The scheduler is stopped or being stopped."""

    code = "stopped"


class TimedOut(Error, TimeoutError):
    """Too little finished in time; nothing is lost, and one may wait again.

    Has `batch_id`, `state`, `finished`, `needed`, `expected` and `serving`.
    """

    code = "timed_out"


class StillBusy(Error, TimeoutError):
    """Time was up for `wait_all`. Has `pending` and `running`."""

    code = "still_busy"


class CutShort(Error, RuntimeError):
    """Every task has ended, but too many were cancelled.

    Has `batch_id`, `finished`, `needed` and `expected`. The batch can be aborted, keeping its
    results.
    """

    code = "cut_short"


class Aborted(Error, RuntimeError):
    """The batch was aborted. Has `batch_id` and `reason`."""

    code = "aborted"


class BatchFailed(Error, RuntimeError):
    """A run failed in a way that fails the batch. Has `batch_id`, `kind` and `words`."""

    code = "batch_failed"


class SinkFailed(Error, RuntimeError):
    """The experiences could not be stored; they are kept: finalize again.

    Has `batch_id` and `words`.
    """

    code = "sink_failed"


class TooFewSucceeded(Error, RuntimeError):
    """Too few tasks have a good run. Has `batch_id`, `succeeded` and `needed`."""

    code = "too_few_succeeded"


class Closed(Error, RuntimeError):
    """The engine is gone."""

    code = "closed"


class NoPipeline(Error, RuntimeError):
    """There is no pipeline for experiences: not prepared, or a job that only evaluates."""

    code = "no_pipeline"


class PipelineFailed(Error, RuntimeError):
    """The pipeline could not take experiences that were handed to it."""

    code = "pipeline_failed"


class LedgerFailed(Error, RuntimeError):
    """The ledger is in use, damaged or of another job, has no room, or cannot be written."""

    code = "ledger_failed"


class ForkError(Error, RuntimeError):
    """The engine was started before a fork: its threads do not exist in this process."""

    code = "forked"


class ConfigError(Error, ValueError):
    """The configuration is wrong. Has `problems`: a list of texts, each with its key and line."""

    code = "config"


class UnknownWorkflow(Error, ValueError):
    """No workflow of that name is registered. Has `name` and `known`."""

    code = "unknown_workflow"


class InvalidWorkflow(Error, TypeError):
    """What was given as a workflow cannot be one."""

    code = "invalid_workflow"


class UnknownRewardFn(Error, ValueError):
    """No reward function of that name is registered. Has `name` and `known`."""

    code = "unknown_reward_fn"


class InvalidRewardFn(Error, TypeError):
    """What was given as a reward function cannot be one, or not with these arguments."""

    code = "invalid_reward_fn"


class InvalidOutput(Error, ValueError):
    """A workflow returned what cannot be an experience."""

    code = "invalid_output"


class InvalidPayload(Error, ValueError):
    """Bytes that are no experiences."""

    code = "invalid_payload"


class BufferError(Error, RuntimeError):
    """Something is wrong with a buffer of experiences. Has `storage`. What was read is kept."""

    code = "buffer"


class BufferUnavailable(BufferError, ConnectionError):
    """The buffer, or the server that offers it, does not answer; it may be tried again."""

    code = "buffer_unavailable"


class BufferFull(BufferError):
    """A limit of the buffer is reached."""

    code = "buffer_full"


class BufferDamaged(BufferError):
    """The buffer holds something that was never written to it."""

    code = "buffer_damaged"


class BufferUnsupported(BufferError, ValueError):
    """The buffer cannot do what was asked."""

    code = "buffer_unsupported"


class ModelUnavailable(Error, ConnectionError):
    """No inference server answered; whether the run is tried again is for the configuration."""

    code = "model_unavailable"


class ModelError(Error, RuntimeError):
    """A model refused a call. Has `status` and `type`, as OpenAI's API has them."""

    code = "model_error"


class WorkflowUnavailable(Error, ImportError):
    """A workflow or a reward function that the configuration names cannot be had. Has `kind`."""

    code = "workflow_unavailable"


class TasksetError(Error, ValueError):
    """There are no tasks, or none that can be read."""

    code = "taskset"


class ExplorerError(Error, RuntimeError):
    """The explorer did not start, or ended before its job was done. What was done is kept."""

    code = "explorer"


class NoWeights(ExplorerError, TimeoutError):
    """The trainer published no weights in time. Has `step` and `at_least`, the version."""

    code = "no_weights"


class TrainerFailed(ExplorerError):
    """The trainer ended with an error."""

    code = "trainer_failed"


class BatchShort(ExplorerError):
    """A batch came up short, and may not. Has `step`."""

    code = "batch_short"


class WeightsError(Error, ValueError):
    """Weights that cannot be read, or are not those of the model."""

    code = "weights"


class ClusterUnavailable(Error, ConnectionError):
    """The cluster that workers are to be on cannot be joined."""

    code = "cluster"


class MissingPackage(Error, ImportError):
    """An optional package is not installed. Has `package`."""

    code = "missing_package"


class SynchronizerError(Error, RuntimeError):
    """The synchronizer of a job is not there, or does not take weights."""

    code = "synchronizer"


def _every(kind: type[Error]) -> list[type[Error]]:
    below = [sub for direct in kind.__subclasses__() for sub in _every(direct)]
    return [kind, *below]


_BY_CODE: dict[str, type[Error]] = {kind.code: kind for kind in _every(Error)}


def make(code: str, message: str, data: dict[str, Any]) -> Error:
    """Returns the error with this code; the extension raises its errors through here."""
    error = _BY_CODE.get(code, Error)(message, **data)
    if type(error) is Error:
        error.code = code
    return error
