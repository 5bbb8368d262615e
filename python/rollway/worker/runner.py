"""Runner: executes the runs of a task and reports each outcome."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rollway import _rollway
from rollway.client._gateway import ModelGateway
from rollway.errors import InvalidOutput
from rollway.experience import Experience
from rollway.models.base import Model, RunModel
from rollway.run_settings import RunSettings
from rollway.stages import ENCODING, RUNNING, RunStage
from rollway.status import Status
from rollway.task import Task
from rollway.worker.run_outcome import WORKFLOW, RunFailure, RunOutput, failure, outputs
from rollway.worker.threads import in_thread, loop_in_thread
from rollway.workflow import Executable, resolve

MODES = ("sequential", "asynchronous", "multi-threading")

#: Maximum number of runs whose stages are reported.
STAGES_MAX = 16

#: Callback for every ended run: its number and outcome.
Emit = Callable[[int, RunOutput | RunFailure], None]

#: Fields that must be equal for an instance to be reused through `reset`.
_ARGUMENTS = (
    "workflow_args",
    "rollout_args",
    "reward_fn",
    "reward_fn_args",
    "format_args",
    "is_eval",
)


@dataclass(slots=True)
class _Instance:
    """A workflow instance with its models."""

    executable: Executable
    task: Task
    object: Any
    model: RunModel
    auxiliary: list[RunModel]

    def begin(self, key: str | None) -> None:
        """Assigns its models to another run."""
        for model in (self.model, *self.auxiliary):
            model.begin(key)

    def serves(self, executable: Executable, task: Task) -> bool:
        """Returns whether `reset` suffices to use it for another task."""
        if not executable.can_reset or self.executable.source is not executable.source:
            return False
        return all(_equal(getattr(self.task, name), getattr(task, name)) for name in _ARGUMENTS)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        return False


class WorkflowRunner:
    """Executes tasks one at a time, without a scheduler:

    runner = rw.WorkflowRunner(rw.Config(), rw.models.Echo())
    status, experiences = runner.run_task(task, repeat_times=4)

    For models that are servers, the first task starts a gateway; it stops with the runner or at
    `close()`.
    """

    def __init__(
        self,
        config: Any,
        model: Model,
        auxiliary_models: list[Model] | None = None,
        runner_id: int | None = None,
    ) -> None:
        self.config = config
        self._gateway = ModelGateway(config, [model], [[other] for other in auxiliary_models or []])
        (self.model,) = self._gateway.models
        self.auxiliary_models = [engines[0] for engines in self._gateway.auxiliary]
        self.runner_id = runner_id
        mode = getattr(getattr(config, "explorer", None), "concurrent_mode", None) or MODES[0]
        if mode not in MODES:
            raise ValueError(f"concurrent_mode is one of {', '.join(MODES)}, not {mode!r}")
        self.concurrent_mode: str = mode
        self._settings = RunSettings.of_config(config)
        self._kept: _Instance | None = None
        #: Run keys of the current task, by run.
        self._keys: Mapping[int, str] = {}
        #: Instances in use, in the order in which they began.
        self._active: dict[int, _Instance] = {}
        #: Task, run and model version of the run that began last.
        self._latest: tuple[Task, int, int] | None = None
        #: Stages of the current runs, in the order in which they began.
        self._doings: dict[int, RunStage] = {}
        #: Workflow entries of the run that ended last.
        self._last_state: dict[str, Any] = {}
        self._begin_time = 0.0
        self._terminate_time: float | None = 0.0

    @property
    def state(self) -> dict[str, Any]:
        """State of the runner: the run that began last, with the entries of its workflow.

        The entries stay visible after the run, until the next one begins.
        """
        state: dict[str, Any] = {
            "workflow_id": None,
            "model_version": None,
            "begin_time": self._begin_time,
            "terminate_time": self._terminate_time,
        }
        if self._latest is not None:
            task, run, state["model_version"] = self._latest
            state["workflow_id"] = f"{task.batch_id}/{task.task_id}/{run}"
        state.update(self._stages())
        active = list(self._active.values())
        state.update(active[-1].model.state if active else self._last_state)
        return state

    def _stages(self) -> dict[str, Any]:
        """Returns stages and code locations of the runs, the longest first."""
        now = time.time()
        doings = sorted(self._doings.values(), key=lambda doing: doing.since)[:STAGES_MAX]
        stages = [
            {
                "run": one.run,
                "stage": one.stage,
                "stage_since": one.since,
                "place": one.code_location(now),
            }
            for one in doings
        ]
        if not stages:
            return {}
        return {**stages[0], "stages": stages} if len(stages) > 1 else stages[0]

    def run_task(
        self,
        task: Task,
        repeat_times: int = 1,
        run_id_base: int = 0,
        collect_partial_runs: bool = True,
    ) -> tuple[Status, list[Experience]]:
        """Executes `repeat_times` runs of a task, numbered from `run_id_base`.

        Returns the status and the experiences of successful runs; of an eval task only the status.
        Exceptions of the workflow are not raised. Without `collect_partial_runs` the first failure
        ends the others. In an event loop use `run_task_async`.
        """
        arguments = (task, repeat_times, run_id_base, collect_partial_runs)
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            return loop_in_thread(lambda: self.run_task_async(*arguments))
        return asyncio.run(self.run_task_async(*arguments))

    async def run_task_async(
        self,
        task: Task,
        repeat_times: int = 1,
        run_id_base: int = 0,
        collect_partial_runs: bool = True,
    ) -> tuple[Status, list[Experience]]:
        """As `run_task`, awaitable."""
        if repeat_times < 1:
            raise ValueError(f"repeat_times must be at least 1, not {repeat_times}")
        began = time.perf_counter()
        runs = range(run_id_base, run_id_base + repeat_times)
        ends: dict[int, RunOutput | RunFailure] = {}
        try:
            executable = resolve(task.workflow)
        except Exception as error:
            ends = dict.fromkeys(runs, failure(error))
        else:
            attempt, keys = self._gateway.open(runs)
            try:
                await self.execute(
                    executable,
                    task,
                    list(runs),
                    ends.__setitem__,
                    keys,
                    collect_partial_runs=collect_partial_runs,
                )
            finally:
                self._gateway.close(attempt)
        return _status(task, [ends[run] for run in runs], time.perf_counter() - began)

    def close(self) -> None:
        """Stops the gateway, if it was started."""
        self._gateway.stop()

    async def execute(
        self,
        executable: Executable,
        task: Task,
        runs: Sequence[int],
        emit: Emit,
        keys: Mapping[int, str] | None = None,
        run_id_base: int = 0,
        collect_partial_runs: bool = True,
    ) -> None:
        """Executes runs, each with its run key, and emits each outcome as it ends.

        Workflows see the run numbers plus `run_id_base`. A run of a train task without experiences
        has failed. Without `collect_partial_runs` the
        first failure ends the others. If cancelled, unfinished runs are cancelled; blocking code is
        awaited.
        """
        self._begin_time, self._terminate_time = time.time(), None
        if run_id_base:
            emit = _unshifted(emit, run_id_base)
            runs = [run + run_id_base for run in runs]
            keys = {run + run_id_base: key for run, key in (keys or {}).items()}
        self._keys = keys or {}
        fail_fast = None if collect_partial_runs else _FailFast(emit, runs)
        emit = emit if fail_fast is None else fail_fast.emit
        # Evaluation needs no experiences.
        report = emit if task.is_eval else _requiring_experiences(emit)
        try:
            if executable.can_repeat:
                await self._repeat(executable, task, runs, report)
            elif self.concurrent_mode == "sequential":
                for run in runs:
                    if fail_fast is None or not fail_fast.failed:
                        await self._execute_run(executable, task, run, report)
            else:
                started = [self._execute_run(executable, task, run, report) for run in runs]
                await _gather(started, fail_fast)
        finally:
            self._terminate_time = time.time()
        if fail_fast is not None:
            fail_fast.emit_rest()

    async def _execute_run(
        self, executable: Executable, task: Task, run: int, emit: Callable[..., None]
    ) -> None:
        """Performs one run."""
        began = time.perf_counter()
        end: RunOutput | RunFailure
        with RunStage(task, run, self._doings, self._settings) as at:
            try:
                mine = task.with_n(1)
                instance, returned = await self._perform(executable, mine, [run], at)
                self._keep(instance)
                at.set(ENCODING)
                experiences, reported = await outputs(returned, instance.model, task.is_eval)
                for experience in experiences:
                    experience.eid.run = run
                self._stamp(mine, instance.model, experiences)
                seconds = time.perf_counter() - began
                end = RunOutput.of(experiences, reported, seconds, instance.model)
            except BaseException as error:
                _reraise_exit(error)
                end = failure(error)
            emit(run, end)

    async def _repeat(
        self, executable: Executable, task: Task, runs: Sequence[int], emit: Callable[..., None]
    ) -> None:
        """Performs all runs in one call of a repeatable workflow."""
        with RunStage(task, runs[0], self._doings, self._settings) as at:
            await self._repeat_at(executable, task, runs, emit, at)

    async def _repeat_at(
        self,
        executable: Executable,
        task: Task,
        runs: Sequence[int],
        emit: Callable[..., None],
        at: RunStage,
    ) -> None:
        began = time.perf_counter()
        try:
            mine = task.with_n(len(runs))
            instance, returned = await self._perform(executable, mine, runs, at)
            self._keep(instance)
            at.set(ENCODING)
            experiences, reported = await outputs(returned, instance.model, task.is_eval)
            if reported is not None or returned is None:
                _check_assignable(experiences, runs)
            groups = _by_run(experiences, runs)
            self._stamp(mine, instance.model, experiences)
            seconds = time.perf_counter() - began
            model = instance.model
            ends = {run: RunOutput.of(groups[run], reported, seconds, model) for run in runs}
        except BaseException as error:
            _reraise_exit(error)
            for run in runs:
                emit(run, failure(error))
            return
        some = any(end.experiences for end in ends.values())
        for run, end in ends.items():
            if some and not end.experiences:
                emit(run, failure(InvalidOutput(f"the workflow returned nothing for run {run}")))
            else:
                emit(run, end)

    async def _perform(
        self, executable: Executable, task: Task, runs: Sequence[int], at: RunStage
    ) -> tuple[_Instance, Any]:
        """Creates an instance, calls it, and ends the sandboxes that it has left open."""
        try:
            return await self._called(executable, task, runs, at)
        finally:
            if at.resources:
                await at.release()

    def _called(
        self, executable: Executable, task: Task, runs: Sequence[int], at: RunStage
    ) -> Awaitable[tuple[_Instance, Any]]:
        """Creates an instance and calls it in the thread or loop of the concurrency mode."""
        if not executable.is_async:
            return in_thread(partial(self._call, executable, task, runs, at))
        if self.concurrent_mode == "multi-threading" and not executable.can_repeat:
            return in_thread(partial(self._call_async, executable, task, runs, at))
        return self._call_async(executable, task, runs, at)

    def _call(
        self, executable: Executable, task: Task, runs: Sequence[int], at: RunStage
    ) -> tuple[_Instance, Any]:
        at.set_executor()
        instance = self._begin(executable, task, runs)
        at.set(RUNNING)
        try:
            return instance, instance.object.run()
        finally:
            self._end(instance)

    async def _call_async(
        self, executable: Executable, task: Task, runs: Sequence[int], at: RunStage
    ) -> tuple[_Instance, Any]:
        at.set_executor(asyncio.current_task())
        instance = self._begin(executable, task, runs)
        at.set(RUNNING)
        try:
            return instance, await instance.object.run_async()
        finally:
            self._end(instance)

    def _end(self, instance: _Instance) -> None:
        self._last_state = dict(instance.model.state)
        del self._active[id(instance)]

    def _keep(self, instance: _Instance) -> None:
        """Keeps an instance after a successful run, if it can be reset."""
        if instance.executable.can_reset and self.concurrent_mode == "sequential":
            self._kept = instance

    def _begin(self, executable: Executable, task: Task, runs: Sequence[int]) -> _Instance:
        """Returns an instance for these runs and shows it in the runner's state."""
        # An instance that performs all runs uses the key of the first.
        first = runs[0]
        instance = self._instance(executable, task, self._keys.get(first))
        if executable.can_repeat:
            instance.object.set_repeat_times(len(runs), first)
        self._begin_time, self._latest = time.time(), (task, first, instance.model.model_version)
        self._active[id(instance)] = instance
        return instance

    def _instance(self, executable: Executable, task: Task, key: str | None) -> _Instance:
        """Returns the kept instance with the new task, or a new one.

        An instance is kept again only after its run succeeded.
        """
        kept, self._kept = self._kept, None
        if kept is not None and kept.serves(executable, task):
            kept.begin(key)
            # Workflows of the compatibility package take their own kind of tasks.
            adopt = getattr(kept.object, "adopt_task", None)
            given = task if adopt is None else adopt(task)
            kept.task, kept.object.task = task, given
            kept.object.reset(given)
            return kept
        model = self.model.bind(executable.is_async, key)
        others = self.auxiliary_models
        auxiliary = [other.bind(executable.is_async, key) for other in others] if others else []
        made = executable.make(task, model, auxiliary)
        return _Instance(executable, task, made, model, auxiliary)

    def _stamp(self, task: Task, model: RunModel, experiences: list[Experience]) -> None:
        for experience in experiences:
            experience.eid.batch = task.batch_id
            info = experience.info
            if experience.eid.task not in ("", task.task_id):
                info["sub_task"] = experience.eid.task
            experience.eid.task = task.task_id
            # Recorded turns carry their model version, if known.
            if experience.model_versions is None:
                info.setdefault("model_version", model.model_version)
            info["use_count"] = 0
            info["task_index"] = task.index


def _unshifted(emit: Emit, run_id_base: int) -> Emit:
    """Returns a callback that subtracts `run_id_base` from run numbers."""
    return lambda run, end: emit(run - run_id_base, end)


def _requiring_experiences(emit: Emit) -> Emit:
    """Returns a callback that fails runs without experiences."""

    def checked(run: int, end: RunOutput | RunFailure) -> None:
        if isinstance(end, RunOutput) and not end.experiences:
            end = failure(InvalidOutput(end.nothing))
        emit(run, end)

    return checked


class _FailFast:
    """Ends the runs of a slice at the first failure, for `collect_partial_runs=False`."""

    __slots__ = ("_emit", "_first", "_open")

    def __init__(self, emit: Emit, runs: Sequence[int]) -> None:
        self._emit = emit
        self._open = dict.fromkeys(runs)
        self._first: int | None = None

    @property
    def failed(self) -> bool:
        """True after the first failed run."""
        return self._first is not None

    def emit(self, run: int, end: RunOutput | RunFailure) -> None:
        if isinstance(end, RunFailure) and self._first is None:
            self._first = run
        self._open.pop(run, None)
        self._emit(run, end)

    def emit_rest(self) -> None:
        """Emits the runs that were ended or not begun as failures."""
        message = f"ended because run {self._first} failed, and collect_partial_runs is false"
        for run in list(self._open):
            self._emit(run, RunFailure(WORKFLOW, message, is_consequence=True))


def _reraise_exit(error: BaseException) -> None:
    """Re-raises a cancellation of the current task, and an exit that a signal handler raised.

    One raised by user code is a failure.
    """
    if isinstance(error, SystemExit) and _from_signal_handler(error):
        raise error
    if not isinstance(error, asyncio.CancelledError):
        return
    current = asyncio.current_task()
    # Python 3.10 cannot distinguish them and treats all as cancellations of the task.
    if current is None or getattr(current, "cancelling", lambda: 1)():
        raise error


def _from_signal_handler(error: BaseException) -> bool:
    """Returns whether the handler of SIGTERM raised an exception, as Ray's does in its actors.

    The handler runs within whatever the main thread executes, such as a workflow.
    """
    handler = getattr(signal.getsignal(signal.SIGTERM), "__code__", None)
    frames = traceback.walk_tb(error.__traceback__)
    return handler is not None and any(frame.f_code is handler for frame, _ in frames)


async def _gather(runs: list[Any], fail_fast: _FailFast | None = None) -> None:
    """Awaits runs concurrently; if cancelled, cancels all of them and awaits their end.

    With `fail_fast` the first failure cancels the others.
    """
    tasks = [asyncio.ensure_future(run) for run in runs]
    cancelled = ended = False
    until = asyncio.ALL_COMPLETED if fail_fast is None else asyncio.FIRST_COMPLETED
    while waiting := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(waiting, return_when=until)
        except asyncio.CancelledError:
            cancelled = True
            for task in waiting:
                task.cancel()
        if fail_fast is not None and fail_fast.failed and not ended:
            ended = True
            for task in waiting:
                task.cancel()
    if cancelled:
        raise asyncio.CancelledError
    for task in tasks:
        if not task.cancelled():
            task.result()


def _check_assignable(turns: list[Experience], runs: Sequence[int]) -> None:
    """Rejects turns of a repeatable workflow that cannot be assigned to runs.

    Its runs share a key, so only the samples of one call, one per run, can be assigned.
    """
    if not turns or len(runs) == 1:
        return
    calls = {_call_of(turn) for turn in turns}
    if len(turns) != len(runs) or (len(calls) > 1 and None not in calls):
        raise InvalidOutput(
            f"the workflow performs {len(runs)} runs in one call and returned no experiences: its "
            f"{len(turns)} recorded turns cannot be assigned to runs, unless they are the samples "
            f"of one call with n={len(runs)}; return experiences with eid.run, or leave out "
            "can_repeat"
        )


def _call_of(turn: Experience) -> str | None:
    """Returns the model call of a turn's first part; `None`: unknown."""
    names = turn.info.get("message_ids")
    return str(names[0]).partition("/")[0] if names else None


def _by_run(experiences: list[Experience], runs: Sequence[int]) -> dict[int, list[Experience]]:
    """Groups the experiences of a repeatable workflow by run.

    The workflow numbers them from `run_id_base`; unnumbered experiences, one per run, are taken in
    order.
    """
    stamped = [experience.eid.run for experience in experiences]
    if len(runs) > 1 and len(stamped) == len(runs) and not any(stamped):
        stamped = list(range(runs[0], runs[0] + len(runs)))
    elif len(runs) == 1 and not any(stamped):
        stamped = [runs[0]] * len(stamped)
    groups: dict[int, list[Experience]] = {run: [] for run in runs}
    for experience, number in zip(experiences, stamped, strict=True):
        position = number - runs[0]
        if not 0 <= position < len(runs):
            raise InvalidOutput(
                f"an experience is numbered as run {number}, but the runs were "
                f"{runs[0]} to {runs[0] + len(runs) - 1}"
            )
        experience.eid.run = runs[position]
        groups[runs[position]].append(experience)
    return groups


def _status(
    task: Task, ends: list[RunOutput | RunFailure], seconds: float
) -> tuple[Status, list[Experience]]:
    good = [end for end in ends if isinstance(end, RunOutput)]
    bad = [end for end in ends if isinstance(end, RunFailure)]
    failed: dict[str, int] = {}
    for end in bad:
        failed[end.kind] = failed.get(end.kind, 0) + 1
    message = None
    if bad:
        counts = f"{len(good)}/{len(ends)} runs completed successfully."
        cause = next((end for end in bad if not end.is_consequence), bad[0])
        message = f"{counts} First error: {cause.kind}: {cause.message}"
    status = Status(
        completed_runs=len(good),
        total_runs=len(ends),
        metrics=[end.metrics for end in good] or [_rollway.run_metrics([], seconds)],
        message=message,
        task_id=task.task_id if isinstance(task.task_id, int) else None,
        failed_runs=failed,
    )
    delivered = [] if task.is_eval else [exp for end in good for exp in end.experiences]
    return status, delivered
