"""The scheduler: tasks in, results out, batch by batch."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rollway import _rollway
from rollway.client import _launch
from rollway.client._pending import PendingResult, identity
from rollway.client._runner_states import Row, RunnerStatesMixin
from rollway.config import Config
from rollway.errors import NotStarted
from rollway.experience import Experience
from rollway.models.base import Model
from rollway.status import Status
from rollway.task import Task

BatchId = int | str

#: What becomes of calls under way when weights are updated.
InFlight = Literal["drain", "keep", "abort"]

logger = logging.getLogger("rollway.scheduler")

#: How long attempts under way may take to end when nobody says otherwise.
STOP_TIMEOUT = 10.0


class Scheduler(RunnerStatesMixin):
    """Runs tasks on a pool of runners, each a process of its own::

        async with rw.Scheduler(rw.Config(), [rw.models.Echo()]) as scheduler:
            scheduler.schedule([rw.Task(workflow=solve, raw_task=row) for row in rows], batch_id=1)
            statuses, experiences = await scheduler.get_results(1)

    Methods that wait return a `PendingResult`: awaited in async code, `.result()` in a plain script, where
    `with` works too.
    """

    def __init__(
        self,
        config: Config,
        rollout_model: Sequence[Model],
        auxiliary_models: Sequence[Sequence[Model]] | None = None,
    ) -> None:
        self.config = config
        self._launch_setup = _launch.LaunchSetup(config, rollout_model, auxiliary_models)
        self._engine: Any = None
        # Set when the thread that prints states is to end; none: there is no such thread.
        self._quiet: threading.Event | None = None

    def _started(self) -> Any:
        if self._engine is None:
            raise NotStarted("not started: start() must be called first")
        return self._engine

    def _call(
        self, name: str, begin: Callable[[Any], Any], convert: Callable[[Any], Any]
    ) -> PendingResult:
        return PendingResult(name, lambda: begin(self._started()), convert)

    def start(self) -> PendingResult[None]:
        """Starts the runners and waits until each is ready or has failed to start."""

        def begin() -> Any:
            if self._engine is None:
                launch = self._launch_setup
                self._engine = _rollway.Scheduler(
                    launch.config_json,
                    launch.runners,
                    launch.spawn,
                    launch.model_gateway.start(),
                )
            return self._engine.start()

        def ready(counts: tuple[int, int]) -> None:
            up, wanted = counts
            if up < wanted:
                logger.warning("%d of %d runners are ready", up, wanted)
            self._report()

        return PendingResult("start", begin, ready)

    def _report(self) -> None:
        """Begins to print the state of runners now and then, if the configuration says so."""
        interval = float(self.config.explorer.runner_state_report_interval)
        if interval > 0 and self._quiet is None:
            self._quiet = threading.Event()
            args = (weakref.ref(self), self._quiet, interval)
            name = "rollway-states"
            threading.Thread(target=_report_states, args=args, name=name, daemon=True).start()

    def stop(self, timeout: float = STOP_TIMEOUT) -> PendingResult[dict[str, Any]]:
        """Stops. Attempts under way get `timeout` seconds to end; says what was left behind.

        Results that are there can still be collected. Stopping what was never started does nothing.
        """
        if self._quiet is not None:
            self._quiet.set()
            self._quiet = None
        if self._engine is None:
            return PendingResult("stop", lambda: _Ready({}), identity)
        return self._call("stop", lambda engine: engine.stop(float(timeout)), identity)

    def schedule(self, tasks: Sequence[Task], batch_id: BatchId) -> None:
        """Adds tasks to a batch. It is an eval batch if its first task is for eval.

        By convention the id is the step for training, `"<step>/<name>"` for evaluation; lower steps
        are served first. Workflows are taken as they are now: by value if they were defined in a
        script, a notebook or a test.
        """
        packed = _launch.pack(tasks)
        if packed:
            self._call(
                "schedule", lambda engine: engine.schedule(packed, batch_id), identity
            ).result()

    def get_payload_results(
        self,
        batch_id: BatchId,
        min_num: int | None = None,
        timeout: float | None = None,
        clear_timeout_tasks: bool = True,
        return_partial_tasks: bool = False,
    ) -> PendingResult[tuple[list[Status], list[bytes]]]:
        """Waits for a batch and takes its results: statuses by task id, and experiences as bytes.

        `min_num` tasks are enough once `explorer.over_rollout.wait_after_min` has passed. When
        `timeout` is over, whatever is there is returned; what is unfinished is then cancelled,
        unless `clear_timeout_tasks` is false, and yields the runs it finished if
        `return_partial_tasks`.
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
        """As `get_payload_results`, and returns only how the tasks ended."""
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
        # A time of 0 is no time that was given, as it always was.
        batch_id, min_num, timeout, clear, partial = how
        limit = float(timeout) if timeout else None
        return self._call(
            name, lambda engine: engine.collect(batch_id, min_num, limit, clear, partial), convert
        )

    def drain_batch_payload_results(
        self, batch_id: BatchId
    ) -> PendingResult[tuple[list[Status], list[bytes]]]:
        """Takes the results that a batch has now, without waiting."""
        name = "drain_batch_payload_results"
        return self._call(name, lambda engine: engine.drain(batch_id), _launch.collected)

    def discard_completed_results(self, batch_id: BatchId) -> None:
        """Drops the results that a batch has now."""
        self._call("discard", lambda engine: engine.discard(batch_id), identity).result()

    def abort_batch(
        self, batch_id: BatchId, return_partial_tasks: bool = False, restart_runners: bool = True
    ) -> PendingResult[None]:
        """Gives a batch up. Whoever waits for it is told at once; finished results stay.

        With `restart_runners`, runners that do not give up in time are replaced; without, they are
        waited for.
        """
        return self._call(
            "abort_batch",
            lambda engine: engine.abort(batch_id, return_partial_tasks, restart_runners),
            identity,
        )

    def cancel_run(
        self, batch_id: BatchId, task_id: int, run_id: int, *, reason: str = "asked for"
    ) -> PendingResult[bool]:
        """Cancels one run; tells whether there was one to cancel.

        Its task goes on without it. What other runs have finished stays; those that its runner was
        given with it are run again, and not charged. The run counts as cancelled, as `requested`.
        """
        return self._call(
            "cancel_run",
            lambda engine: engine.cancel_run(batch_id, task_id, run_id, reason),
            identity,
        )

    def has_step(self, batch_id: BatchId) -> bool:
        """Tells whether a batch has unfinished tasks or results that were not taken."""
        if self._engine is None:
            return False
        return self._call("has_step", lambda engine: engine.has_step(batch_id), identity).result()

    def wait_all(
        self, timeout: float | None = None, clear_timeout_tasks: bool = True
    ) -> PendingResult[None]:
        """Waits until no task is unfinished; results stay.

        `TimeoutError` if no task ends for `timeout` seconds; then what is unfinished is cancelled,
        unless `clear_timeout_tasks` is false.
        """
        limit = float(timeout) if timeout else None
        return self._call(
            "wait_all", lambda engine: engine.wait_all(limit, clear_timeout_tasks), identity
        )

    def update_weights(
        self, path: str, version: int, in_flight: InFlight = "drain"
    ) -> PendingResult[dict[str, Any]]:
        """Has the servers of the rollout model load weights, one after the other.

        What they have under way is let to its end before (`drain`), goes on with the new weights
        (`keep`), or is aborted (`abort`). Returns `version`, and under `servers` how each of them
        fared; a server whose version is not the new one afterwards is not used any more.
        """
        gateway = self._launch_setup.model_gateway
        return self._call(
            "update_weights",
            lambda _: gateway.required().update_weights(path, version, in_flight),
            identity,
        )

    def dynamic_timeout(self, timeout: float | None = None) -> float:
        """Returns how many seconds a train attempt may last at the moment."""
        limit = float(timeout) if timeout else None
        call = self._call("dynamic_timeout", lambda engine: engine.dynamic_timeout(limit), identity)
        return call.result()

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


def _report_states(known: weakref.ref[Scheduler], quiet: threading.Event, interval: float) -> None:
    """Prints the state of runners until it is to be quiet, or their scheduler is gone."""
    while not quiet.wait(interval):
        scheduler = known()
        if scheduler is None:
            return
        try:
            scheduler.print_all_state()
        except Exception as error:
            logger.warning("the state of runners is not known: %s", error)
        del scheduler


class _Ready:
    """An answer that is there already."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def poll(self, _wake: Any) -> tuple[Any]:
        return (self._value,)

    def close(self) -> None:
        pass
