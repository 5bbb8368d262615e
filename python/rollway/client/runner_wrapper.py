"""Handles of single runners."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Sequence
from typing import Any

from rollway.client import _launch
from rollway.client._pending import PendingResult, identity, nothing
from rollway.client._runner_states import as_states
from rollway.client._task_states import TaskWrapper, merge_payloads
from rollway.config import Config
from rollway.errors import Error
from rollway.experience import Experience
from rollway.models.base import Model
from rollway.status import Status
from rollway.task import Task

#: Seconds between two looks at a runner that is being restarted.
_POLL_INTERVAL = 0.05

#: Seconds for a running attempt to end when the worker process is stopped.
_STOP_TIMEOUT = 10.0

#: Seconds to wait for a task. Every attempt ends by its own timeout, so this one never passes.
_COLLECT_TIMEOUT = 365 * 86400.0


class RunnerWrapper:
    """A runner: its state, its restart, and single tasks on it:

        runner = RunnerWrapper(0, rw.models.Echo(), [], rw.Config())
        await runner.prepare()
        status, payload, runner_id, seconds = await runner.run_with_retry(
            TaskWrapper(task, batch_id=1), 4, 0, timeout=60, collect_partial_runs=True
        )

    It has a worker process of its own. The handle of a runner in a pool, `scheduler.runner(0)`,
    reads and restarts that runner. The pool decides what its runners execute, so single tasks of
    such a handle also run in a process of their own, which starts with the first of them.
    """

    def __init__(
        self,
        runner_id: int,
        rollout_model: Model,
        auxiliary_models: Sequence[Model],
        config: Config,
    ) -> None:
        self.runner_id = runner_id
        self.rollout_model = rollout_model
        self.auxiliary_models = list(auxiliary_models or [])
        self.config = config
        #: State at the last `update_state()`.
        self.state: dict[str, Any] = {}
        #: Engine of the pool that has the runner; `None`: the runner is not in a pool.
        self._pool: Any = None
        #: Engine with one runner, for single tasks.
        self._own: Any = None
        #: Timeout of an attempt in the own process.
        self._timeout: float | None = None
        self._calls = asyncio.Lock()

    @classmethod
    def of_pool(cls, engine: Any, launch: _launch.LaunchSetup, runner_id: int) -> RunnerWrapper:
        """Returns the handle of a runner in the pool of an engine."""
        model = launch.rollout_model[runner_id % len(launch.rollout_model)]
        auxiliary = [engines[0] for engines in launch.auxiliary_models if engines]
        handle = cls(runner_id, model, auxiliary, launch.config)
        handle._pool = engine
        return handle

    async def prepare(self) -> None:
        """Starts the worker process; without effect on a runner of a pool, which is started."""
        if self._pool is None:
            await self._started(self._timeout)

    async def close(self) -> None:
        """Stops the worker process of this handle; a runner of a pool stays."""
        own, self._own = self._own, None
        if own is not None:
            await PendingResult("stop", lambda: own.stop(_STOP_TIMEOUT), nothing)

    async def update_state(self) -> None:
        """Reads the runner's state into `state`; empty if it is not started."""
        pool, number = (self._own, 0) if self._pool is None else (self._pool, self.runner_id)
        self.state = {} if pool is None else await _state(pool, number)

    async def run_with_retry(
        self,
        task: TaskWrapper,
        repeat_times: int | None = None,
        run_id_base: int | None = None,
        timeout: float | None = None,
        collect_partial_runs: bool | None = None,
    ) -> Any:
        """Runs a task `repeat_times` times, numbered from `run_id_base`, with the usual retries.

        `timeout` limits each attempt (default: `explorer.max_timeout`). Without
        `collect_partial_runs` the first failed run of an attempt ends the others. Returns the
        status, the experiences as one payload, the runner id and the seconds.

        Called with the task alone, as in 2025, it takes the numbers from the wrapper and returns
        the status, the list of experiences and the runner id.
        """
        is_old_form = repeat_times is None
        repeat_times = task.repeat_times if repeat_times is None else repeat_times
        base = task.run_id_base if run_id_base is None else run_id_base
        options: dict[str, Any] = {}
        if base:
            options["run_id_base"] = base
        if collect_partial_runs is False:
            options["collect_partial_runs"] = False
        if task.task.task_id != "":
            options["task_id"] = task.task.task_id
        once = copy.copy(task.task)
        once.repeat_times = repeat_times
        began = time.perf_counter()
        async with self._calls:
            statuses, payloads = await self._run(once, task.batch_id, options, timeout)
        seconds = time.perf_counter() - began
        # The engine labels experiences with its own numbers.
        if options:
            payloads = [_relabelled(payload, options.get("task_id"), base) for payload in payloads]
        status = statuses[0]
        if isinstance(task.task.task_id, int):
            status = _with_task_id(status, task.task.task_id)
        if is_old_form:
            many = [Experience.deserialize_many(payload) for payload in payloads]
            return status, [experience for one in many for experience in one], self.runner_id
        return status, merge_payloads(payloads), self.runner_id, seconds

    async def restart_runner(self) -> None:
        """Replaces the runner by a new one and waits until it is ready.

        Runs that it executed for a pool are retried and not charged.
        """
        if self._pool is None:
            await self.close()
            await self._started(self._timeout)
            return
        before = await _state(self._pool, self.runner_id)
        restart = PendingResult(
            "restart_runner", lambda: self._pool.restart_runner(self.runner_id), identity
        )
        if not await restart:
            raise Error(f"runner {self.runner_id} is {before.get('state', 'unknown')}: not running")
        limit = float(self.config.explorer.supervision.start_timeout)
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            state = await _state(self._pool, self.runner_id)
            is_new = state.get("incarnation") != before.get("incarnation")
            if is_new and state.get("state") in ("idle", "busy"):
                return
            await asyncio.sleep(_POLL_INTERVAL)
        raise TimeoutError(f"runner {self.runner_id} is not ready {limit} s after its restart")

    async def _run(
        self, task: Task, batch_id: int | str, options: dict[str, Any], timeout: float | None
    ) -> tuple[list[Status], list[bytes]]:
        packed = _launch.pack([task], options)
        engine = await self._started(timeout)
        await PendingResult("schedule", lambda: engine.schedule(packed, batch_id), nothing)
        collect = PendingResult(
            "collect",
            lambda: engine.collect(batch_id, None, _COLLECT_TIMEOUT, True, False),
            _launch.collected,
        )
        return await collect

    async def _started(self, timeout: float | None) -> Any:
        """Returns the engine with one runner; another timeout starts a new process."""
        if self._own is not None and timeout not in (None, self._timeout):
            await self.close()
        if self._own is None:
            config = copy.deepcopy(self.config)
            config.explorer.runner_per_model = 1
            config.explorer.max_repeat_times_per_runner = None
            config.explorer.dynamic_timeout.enable = False
            config.explorer.runner_state_report_interval = 0
            if timeout is not None:
                config.explorer.max_timeout = float(timeout)
            auxiliary = [[model] for model in self.auxiliary_models]
            launch = _launch.LaunchSetup(config, [self.rollout_model], auxiliary)
            self._own = launch.scheduler(None)
            self._timeout = timeout
            await PendingResult("start", self._own.start, nothing)
        return self._own


async def _state(engine: Any, runner_id: int) -> dict[str, Any]:
    rows = await PendingResult("runners", engine.runners, identity)
    return as_states(rows).get(runner_id, {})


def _relabelled(payload: bytes, task_id: int | str | None, run_id_base: int) -> bytes:
    """Returns a payload whose experiences have the task id and the run numbers of the caller."""
    experiences = Experience.deserialize_many(payload)
    for experience in experiences:
        if task_id is not None:
            if experience.info.get("sub_task") == task_id:
                del experience.info["sub_task"]
            experience.eid.task = task_id
        experience.eid.run += run_id_base
    return Experience.serialize_many(experiences)


def _with_task_id(status: Status, task_id: int) -> Status:
    return Status(
        status.completed_runs,
        status.total_runs,
        status.metrics,
        status.message,
        task_id,
        status.failed_runs,
        status.cancelled_runs,
    )
