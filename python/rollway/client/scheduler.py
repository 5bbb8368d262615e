"""Scheduler: runs batches of tasks and collects their results."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rollway.client import _launch
from rollway.client._gateway import ModelGateway
from rollway.client._pending import PendingResult, identity, nothing
from rollway.client._runner_states import Row, RunnerStatesMixin
from rollway.client._servers import ServerAdministration
from rollway.client._task_states import (
    CompletedTaskResult,
    RunningTaskState,
    TaskDone,
    TaskWrapper,
    completed,
    done_callback,
    wrapper,
)
from rollway.client.runner_wrapper import RunnerWrapper
from rollway.config import Config
from rollway.errors import NotStarted
from rollway.experience import Experience
from rollway.models.base import Model
from rollway.status import Status
from rollway.task import Task

BatchId = int | str

#: Handling of running model calls during a weight update.
InFlight = Literal["drain", "keep", "abort"]

logger = logging.getLogger("rollway.scheduler")

#: Default seconds for running attempts to end at a stop.
STOP_TIMEOUT = 10.0


class Scheduler(RunnerStatesMixin, ServerAdministration):
    """Runs tasks on runners in worker processes:

        async with rw.Scheduler(rw.Config(), [rw.models.Echo()]) as scheduler:
            scheduler.schedule([rw.Task(workflow=solve, raw_task=row) for row in rows], batch_id=1)
            statuses, experiences = await scheduler.get_results(1)

    Waiting methods return a `PendingResult`: await it in async code, call `.result()` in a script.
    `with` and `async with` start and stop it. Tasks may be scheduled before the start; they wait.
    """

    def __init__(
        self,
        config: Config,
        rollout_model: Sequence[Model],
        auxiliary_models: Sequence[Sequence[Model]] | None = None,
    ) -> None:
        self.config = config
        self.rollout_model = rollout_model
        self.auxiliary_models = auxiliary_models or []
        self._launch_setup = _launch.LaunchSetup(config, rollout_model, auxiliary_models)
        self._engine: Any = None
        # Ends the thread that logs runner states; `None`: there is no such thread.
        self._quiet: threading.Event | None = None

    @classmethod
    def _shared(cls, engine: Any, config: Config, launch_setup: _launch.LaunchSetup) -> Scheduler:
        """Returns the scheduler of an engine that a coordinator owns."""
        shared = object.__new__(cls)
        shared.config, shared._launch_setup, shared._engine = config, launch_setup, engine
        shared.rollout_model = launch_setup.rollout_model
        shared.auxiliary_models = launch_setup.auxiliary_models
        shared._quiet = None
        return shared

    def _started(self) -> Any:
        if self._engine is None:
            raise NotStarted("not started: start() must be called first")
        return self._engine

    def _created(self) -> Any:
        """Returns the engine, which is created if there is none; it has no runners before start."""
        if self._engine is None:
            self._engine = self._launch_setup.scheduler(self._on_task_done())
        return self._engine

    def _on_task_done(self) -> Callable[..., None] | None:
        """Returns the callback for ended tasks; `None`: `task_done_callback` is not overridden."""
        hook = self.task_done_callback
        if getattr(hook, "__func__", None) is Scheduler.task_done_callback:
            return None
        return done_callback(hook, logger)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "task_done_callback" and self.__dict__.get("_engine") is not None:
            callback = done_callback(value, logger)
            PendingResult(
                "task_done_callback", lambda: self._engine.observe_tasks(callback), nothing
            ).result()

    def task_done_callback(self, async_task: TaskDone) -> None:
        """Hook for ended tasks: override it, or assign a function, also to `coordinator.scheduler`.

        It is called once per task that ends later, in order, in a separate thread, with a future
        that is done:
        `async_task.result()` is the status, the experiences as one payload, the runner id and the
        seconds. Exceptions are reported and have no effect. The scheduler completes tasks without
        it.
        """

    def _call(
        self, name: str, begin: Callable[[Any], Any], convert: Callable[[Any], Any]
    ) -> PendingResult:
        return PendingResult(name, lambda: begin(self._started()), convert)

    def start(self) -> PendingResult[None]:
        """Starts the runners; waits until each is ready or failed to start."""

        def begin() -> Any:
            return self._created().start()

        def ready(counts: tuple[int, int]) -> None:
            up, wanted = counts
            if up < wanted:
                logger.warning("%d of %d runners are ready", up, wanted)
            self._report()

        return PendingResult("start", begin, ready)

    def _report(self) -> None:
        """Starts the periodic log of runner states, if configured."""
        interval = float(self.config.explorer.runner_state_report_interval)
        if interval > 0 and self._quiet is None:
            self._quiet = threading.Event()
            args = (weakref.ref(self), self._quiet, interval)
            name = "rollway-states"
            threading.Thread(target=_report_states, args=args, name=name, daemon=True).start()

    def stop(self, timeout: float = STOP_TIMEOUT) -> PendingResult[dict[str, Any]]:
        """Stops; running attempts get `timeout` seconds to end. Returns the unfinished work.

        Finished results can still be collected. Without `start` it has no effect.
        """
        if self._quiet is not None:
            self._quiet.set()
            self._quiet = None
        if self._engine is None:
            return PendingResult("stop", lambda: _Ready({}), identity)
        return self._call("stop", lambda engine: engine.stop(float(timeout)), identity)

    def schedule(self, tasks: Sequence[Task], batch_id: BatchId) -> None:
        """Adds tasks to a batch; the first task decides whether it is an eval batch.

        By convention the id is the step for training and `"<step>/<name>"` for evaluation; lower
        steps are served first. Workflows of a script, a notebook or a test are pickled by value.
        Before `start()` the tasks wait.
        """
        self._schedule(_launch.pack(tasks), batch_id)

    def _schedule(self, packed: list[_launch.PackedTask], batch_id: BatchId) -> None:
        if packed:
            call = PendingResult(
                "schedule", lambda: self._created().schedule(packed, batch_id), nothing
            )
            call.result()

    def get_payload_results(
        self,
        batch_id: BatchId,
        min_num: int | None = None,
        timeout: float | None = None,
        clear_timeout_tasks: bool = True,
        return_partial_tasks: bool = False,
    ) -> PendingResult[tuple[list[Status], list[bytes]]]:
        """Waits for a batch and takes its results: statuses by task id, and experience payloads.

        `min_num` tasks suffice once `explorer.over_rollout.wait_after_min` has passed. `timeout`
        `None` waits while tasks keep ending, 0 does not wait. After `timeout` seconds the finished
        results are returned and unfinished tasks are cancelled, unless `clear_timeout_tasks` is
        false; `return_partial_tasks` keeps their finished runs.
        """
        return self._collect(
            "get_payload_results",
            (batch_id, min_num, timeout, clear_timeout_tasks, return_partial_tasks),
            _launch.collected,
        )

    def get_statuses(
        self,
        batch_id: BatchId,
        min_num: int | None = None,
        timeout: float | None = None,
        clear_timeout_tasks: bool = True,
        return_partial_tasks: bool = False,
    ) -> PendingResult[list[Status]]:
        """As `get_payload_results`; returns only the statuses."""
        return self._collect(
            "get_statuses",
            (batch_id, min_num, timeout, clear_timeout_tasks, return_partial_tasks),
            lambda answer: _launch.collected(answer)[0],
        )

    def get_results(
        self,
        batch_id: BatchId,
        min_num: int | None = None,
        timeout: float | None = None,
        clear_timeout_tasks: bool = True,
        return_partial_tasks: bool = False,
    ) -> PendingResult[tuple[list[Status], list[Experience]]]:
        """As `get_payload_results`, with the experiences decoded."""

        def decoded(answer: Any) -> tuple[list[Status], list[Experience]]:
            statuses, payloads = _launch.collected(answer)
            many = [Experience.deserialize_many(payload) for payload in payloads]
            return statuses, [experience for one in many for experience in one]

        how = (batch_id, min_num, timeout, clear_timeout_tasks, return_partial_tasks)
        return self._collect("get_results", how, decoded)

    def _collect(
        self, name: str, how: tuple[Any, ...], convert: Callable[[Any], Any]
    ) -> PendingResult[Any]:
        batch_id, min_num, timeout, clear, partial = how
        limit = None if timeout is None else float(timeout)
        return self._call(
            name, lambda engine: engine.collect(batch_id, min_num, limit, clear, partial), convert
        )

    def drain_batch_payload_results(
        self, batch_id: BatchId
    ) -> PendingResult[tuple[list[Status], list[bytes]]]:
        """Takes the current results of a batch without waiting."""
        name = "drain_batch_payload_results"
        return self._call(name, lambda engine: engine.drain(batch_id), _launch.collected)

    def discard_completed_results(self, batch_id: BatchId) -> None:
        """Drops the current results of a batch."""
        self._call("discard", lambda engine: engine.discard(batch_id), identity).result()

    def abort_batch(
        self, batch_id: BatchId, return_partial_tasks: bool = False, restart_runners: bool = True
    ) -> PendingResult[None]:
        """Aborts a batch. Its waiters end immediately; finished results stay.

        `restart_runners` replaces runners that do not cancel in time; otherwise they are awaited.
        """
        return self._call(
            "abort_batch",
            lambda engine: engine.abort(batch_id, return_partial_tasks, restart_runners),
            nothing,
        )

    def cancel_run(
        self, batch_id: BatchId, task_id: int, run_id: int, *, reason: str = "requested"
    ) -> PendingResult[bool]:
        """Cancels one run; returns whether it was active.

        Its task continues without it, and finished runs are kept. Runs of the same attempt are
        repeated without being charged. The run counts as cancelled (`requested`).
        """
        return self._call(
            "cancel_run",
            lambda engine: engine.cancel_run(batch_id, task_id, run_id, reason),
            identity,
        )

    def has_step(self, batch_id: BatchId) -> bool:
        """Returns whether a batch has unfinished tasks or results that were not taken."""
        if self._engine is None:
            return False
        return self._call("has_step", lambda engine: engine.has_step(batch_id), identity).result()

    def wait_all(
        self, timeout: float | None = None, clear_timeout_tasks: bool = True
    ) -> PendingResult[None]:
        """Waits until all tasks ended; results stay.

        Raises `TimeoutError` if no task ends for `timeout` seconds and cancels the unfinished
        tasks, unless `clear_timeout_tasks` is false.
        """
        limit = None if timeout is None else float(timeout)
        return self._call(
            "wait_all", lambda engine: engine.wait_all(limit, clear_timeout_tasks), nothing
        )

    def _model_gateway(self) -> ModelGateway:
        return self._launch_setup.model_gateway

    def update_weights(
        self, path: str, version: int, in_flight: InFlight = "drain"
    ) -> PendingResult[dict[str, Any]]:
        """Loads weights into the servers of the rollout model, one after the other.

        Running calls finish before (`drain`), continue with the new weights (`keep`), or are
        aborted (`abort`). Returns `version`, and the result of each server under `servers`; a
        server that does not report the new version is not routed any more.
        """
        gateway = self._launch_setup.model_gateway
        return self._call(
            "update_weights",
            lambda _: gateway.required().update_weights(path, version, in_flight),
            identity,
        )

    def dynamic_timeout(self, timeout: float | None = None) -> float:
        """Returns the current timeout of train attempts in seconds."""
        limit = None if timeout is None else float(timeout)
        call = self._call("dynamic_timeout", lambda engine: engine.dynamic_timeout(limit), identity)
        return call.result()

    def tasks(self, batch_id: BatchId) -> list[TaskWrapper]:
        """Returns the tasks of a batch whose results were not taken, by task id."""
        if self._engine is None:
            return []
        rows = self._call("tasks", lambda engine: engine.tasks(batch_id), identity).result()
        loaded: dict[bytes, Any] = {}
        return [wrapper(row, loaded) for row in rows]

    def completed_results(self, batch_id: BatchId) -> list[CompletedTaskResult]:
        """Returns the results of a batch that were not taken, by task id; they stay."""
        if self._engine is None:
            return []
        rows = self._call("tasks", lambda engine: engine.tasks(batch_id), identity).result()
        return [completed(row) for row in rows if row["status"] is not None]

    def running_tasks(self) -> list[RunningTaskState]:
        """Returns the task of every busy runner."""
        if self._engine is None:
            return []
        rows = self._call("running_tasks", lambda engine: engine.running_tasks(), identity).result()
        loaded: dict[bytes, Any] = {}
        return [RunningTaskState(wrapper(row, loaded), runner) for runner, row in rows]

    @property
    def runners(self) -> dict[int, RunnerWrapper]:
        """Handles of the runners by id; empty before the start."""
        return {runner: self.runner(runner) for runner in sorted(self.get_all_state())}

    def runner(self, runner_id: int) -> RunnerWrapper:
        """Returns the handle of a runner, to inspect or restart it, or to run one task."""
        return RunnerWrapper.of_pool(self._started(), self._launch_setup, runner_id)

    def _runners(self) -> PendingResult[list[Row]] | None:
        if self._engine is None:
            return None
        return self._call("runners", lambda engine: engine.runners(), identity)

    async def __aenter__(self) -> Scheduler:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __enter__(self) -> Scheduler:
        self.start().result()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop().result()


def _report_states(
    reference: weakref.ref[Scheduler], quiet: threading.Event, interval: float
) -> None:
    """Logs the runner states until `quiet` is set or the scheduler is deleted."""
    while not quiet.wait(interval):
        scheduler = reference()
        if scheduler is None:
            return
        try:
            scheduler.print_all_state()
        except Exception as error:
            logger.warning("cannot read runner states: %s", error)
        del scheduler


class _Ready:
    """A pending result that is available at once."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def poll(self, _wake: Any) -> tuple[Any]:
        return (self._value,)

    def close(self) -> None:
        pass
