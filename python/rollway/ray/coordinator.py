"""Coordinator as a named Ray actor, restarted by Ray when its process or node dies.

Its state is in the ledger, so that a new process resumes the same batches. Ray repeats the calls
that were running; each of them may be executed twice.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollway import _serialization
from rollway.client.scheduler import STOP_TIMEOUT
from rollway.config import Config
from rollway.models.base import Model
from rollway.ray import package
from rollway.task import Task

if TYPE_CHECKING:
    from rollway.client.coordinator import (
        BatchId,
        BatchLifecycleState,
        BatchType,
        Restored,
        RolloutCoordinator,
    )

#: Maximum number of concurrent calls.
CONCURRENCY = 1000


def start(
    coordinator: type[RolloutCoordinator],
    config: Config,
    models: Sequence[Model],
    auxiliary_models: Any,
) -> Any:
    """Returns the handle of a job's coordinator; starts an actor if there is none."""
    ray = package()
    namespace = config.cluster.namespace or f"{config.project}/{config.name}"
    if not ray.is_initialized():
        ray.init(address=config.cluster.address, namespace=namespace)
    # Workflows of scripts, notebooks and test files are sent as to workers.
    ray.util.register_serializer(
        Task, serializer=_serialization.sent, deserializer=_serialization.received
    )
    kind = ray.remote(Coordinator).options(
        name=f"{config.explorer.name}-coordinator",
        namespace=namespace,
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=CONCURRENCY,
    )
    return kind.remote(coordinator, config, models, auxiliary_models)


class Coordinator:
    """A `RolloutCoordinator` in a Ray actor; its methods are coroutine functions."""

    def __init__(
        self,
        coordinator: type[RolloutCoordinator],
        config: Config,
        models: Sequence[Model],
        auxiliary_models: Any,
    ) -> None:
        self._make = functools.partial(coordinator, config, models, auxiliary_models)
        self._coordinator = self._make()
        self._context = importlib.import_module("ray").get_runtime_context()
        #: Ray task ids of the calls that submitted batches in this process.
        self._submits: dict[BatchId, str] = {}
        self._is_over = False
        #: Restores the state of an earlier process; `None`: there was none.
        self._resuming: asyncio.Task[None] | None = None
        with warnings.catch_warnings():
            # Ray emits warnings about its own code.
            warnings.simplefilter("ignore")
            self._is_second = bool(self._context.was_current_actor_reconstructed)
        if self._is_second:
            self._resume()

    def _resume(self) -> None:
        self._resuming = asyncio.get_running_loop().create_task(self._prepare())

    async def _prepare(self) -> None:
        await self._coordinator.prepare()

    async def _restored_coordinator(self) -> RolloutCoordinator:
        """Returns the coordinator after its state was restored."""
        if self._resuming is not None:
            if self._resuming.done() and self._resuming.exception() is not None:
                self._resume()
            await asyncio.shield(self._resuming)
        return self._coordinator

    async def prepare(self) -> None:
        """As `RolloutCoordinator.prepare`; creates a new coordinator after a shutdown."""
        if self._is_over:
            self._coordinator, self._is_over = self._make(), False
            self._submits.clear()
        coordinator = await self._restored_coordinator()
        await coordinator.prepare()

    async def shutdown(self, timeout: float = STOP_TIMEOUT) -> dict[str, Any]:
        """As `RolloutCoordinator.shutdown`."""
        coordinator = await self._restored_coordinator()
        report = await coordinator.shutdown(timeout)
        self._is_over, self._resuming = True, None
        return report

    async def submit_batch(
        self,
        *,
        batch_id: BatchId,
        tasks: Sequence[Task],
        batch_type: BatchType,
        min_wait_num: int | None = None,
    ) -> None:
        """As `RolloutCoordinator.submit_batch`; idempotent if Ray repeats the call."""
        coordinator = await self._restored_coordinator()
        call = self._context.get_task_id()
        if self._submits.get(batch_id) == call:
            return
        if batch_id in self._submits or not self._is_known(batch_id, len(tasks), batch_type):
            await coordinator.submit_batch(
                batch_id=batch_id, tasks=tasks, batch_type=batch_type, min_wait_num=min_wait_num
            )
        self._submits[batch_id] = call

    def _is_known(self, batch_id: BatchId, tasks: int, batch_type: BatchType) -> bool:
        """Returns whether an earlier process of this actor had the batch.

        Its response may have been lost, so that the caller submits the batch again.
        """
        if not self._is_second:
            return False
        restored = self._coordinator.restored
        found = restored.batches.get(batch_id)
        same = found is not None and (found.tasks, found.batch_type) == (tasks, batch_type)
        return same or batch_id in restored.ended

    async def finalize_train_batch(self, batch_id: BatchId, **arguments: Any) -> dict[str, Any]:
        """As `RolloutCoordinator.finalize_train_batch`."""
        return await (await self._restored_coordinator()).finalize_train_batch(
            batch_id, **arguments
        )

    async def finalize_eval_batch(self, batch_id: BatchId, **arguments: Any) -> dict[str, Any]:
        """As `RolloutCoordinator.finalize_eval_batch`."""
        return await (await self._restored_coordinator()).finalize_eval_batch(batch_id, **arguments)

    async def abort_batch(self, batch_id: BatchId, **arguments: Any) -> dict[str, Any] | None:
        """As `RolloutCoordinator.abort_batch`."""
        return await (await self._restored_coordinator()).abort_batch(batch_id, **arguments)

    async def process_experiences(self, payloads: list[bytes]) -> dict[str, float]:
        """As `RolloutCoordinator.process_experiences`."""
        return await (await self._restored_coordinator()).process_experiences(payloads)

    async def update_weights(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        """As `RolloutCoordinator.update_weights`."""
        return await (await self._restored_coordinator()).update_weights(*arguments, **named)

    async def note_version(self, version: int) -> None:
        """As `RolloutCoordinator.note_version`."""
        await (await self._restored_coordinator()).note_version(version)

    async def take_feedback(self) -> list[dict[int, dict[str, list[Any]]]]:
        """As `RolloutCoordinator.take_feedback`."""
        return (await self._restored_coordinator()).take_feedback()

    async def batch_state(self, batch_id: BatchId) -> BatchLifecycleState | None:
        """As `RolloutCoordinator.batch_state`."""
        coordinator = await self._restored_coordinator()
        return await asyncio.to_thread(coordinator.batch_state, batch_id)

    async def restored(self) -> Restored:
        """As `RolloutCoordinator.restored`."""
        return (await self._restored_coordinator()).restored
