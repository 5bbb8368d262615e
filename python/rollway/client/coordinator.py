"""Coordinator of rollout batches: submit, finalize into a sink, abort."""

from __future__ import annotations

import asyncio
import enum
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rollway import _rollway, operators
from rollway.client import _launch
from rollway.client._gateway import ModelGateway
from rollway.client._pending import PendingResult, identity, nothing
from rollway.client._runner_states import Row, RunnerStatesMixin
from rollway.client._servers import ServerAdministration
from rollway.client.scheduler import STOP_TIMEOUT, BatchId, InFlight, Scheduler, _Ready
from rollway.config import Config
from rollway.errors import NoPipeline, NotStarted
from rollway.experience import Experience
from rollway.models.base import Model
from rollway.ray import coordinator as ray_coordinator
from rollway.status import Status
from rollway.task import Task

BatchType = Literal["train", "eval"]

#: Stores the payloads of a batch and returns metrics; id `None`: payloads of no batch.
Deliver = Callable[[BatchId | None, list[bytes]], "dict[str, float] | None"]


class BatchLifecycleState(str, enum.Enum):
    """State of a submitted batch."""

    PENDING = "pending"
    RUNNING = "running"
    FINALIZING = "finalizing"
    FINALIZED = "finalized"
    ABORTED = "aborted"


@dataclass
class BatchState:
    """A train or eval batch at one moment.

    The core owns this state: `coordinator.pending_batches` fills it when it is read, and changes of
    the object have no effect. `statuses` are those of the ended tasks, by task id. `finalize_lock`
    is not held by the coordinator: the core answers concurrent finalizers with one result.
    """

    batch_id: BatchId
    batch_type: BatchType
    expected_task_count: int
    statuses: dict[int | str, Any] = field(default_factory=dict)
    min_wait_num: int | None = None
    state: BatchLifecycleState = BatchLifecycleState.PENDING
    final_result: dict[str, Any] | None = None
    finalize_lock: asyncio.Lock = field(default_factory=asyncio.Lock, compare=False, repr=False)

    @property
    def completed_task_count(self) -> int:
        """Number of ended tasks."""
        return len(self.statuses)


class ExperiencePipeline:
    """The pipeline of a coordinator, which opens and closes it."""

    def __init__(self, coordinator: RolloutCoordinator) -> None:
        self._coordinator = coordinator

    def process_serialized_chunks(
        self, payloads: Sequence[bytes]
    ) -> PendingResult[dict[str, float]]:
        """Stores the experiences of payloads; returns the metrics of the pipeline."""
        return self._coordinator.process_experiences(payloads)

    def process(self, experiences: Sequence[Experience]) -> PendingResult[dict[str, float]]:
        """Stores experiences; returns the metrics of the pipeline."""
        return self.process_serialized_chunks([Experience.serialize_many(experiences)])

    def take_feedback(self) -> list[dict[int, dict[str, list[Any]]]]:
        """Returns and removes the feedback for task selectors."""
        return self._coordinator.take_feedback()


@dataclass(frozen=True)
class RestoredBatch:
    """A batch restored from the ledger; finalize or abort it."""

    batch_type: str
    tasks: int
    #: Number of runs that had ended and are not repeated.
    ended_runs: int


@dataclass(frozen=True)
class Restored:
    """State restored from the ledger."""

    #: Unfinished batches by id, in the order of submission.
    batches: dict[BatchId, RestoredBatch]
    #: Ids of the last finished batches.
    ended: list[BatchId]
    #: Newest recorded model version.
    version: int


class MemorySink:
    """Sink that keeps experiences in memory until `take()`.

    While it is full, finalizing fails; nothing is dropped.
    """

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._payloads: list[bytes] = []
        self._bytes = 0

    def __call__(self, batch_id: BatchId | None, payloads: list[bytes]) -> dict[str, float]:
        size = sum(map(len, payloads))
        with self._lock:
            if self._payloads and self._bytes + size > self.max_bytes:
                raise BufferError(
                    f"{self._bytes} bytes of experiences in memory, maximum {self.max_bytes}: "
                    "remove them with coordinator.sink.take()"
                )
            self._payloads.extend(payloads)
            self._bytes += size
        return {"pipeline/payload_count": float(len(payloads))}

    def take(self) -> list[Experience]:
        """Returns and removes all experiences."""
        with self._lock:
            payloads, self._payloads, self._bytes = self._payloads, [], 0
        many = [Experience.deserialize_many(payload) for payload in payloads]
        return [experience for one in many for experience in one]


class _Once:
    """Sink around a function or object; a batch that is delivered twice is stored once."""

    #: Number of remembered batches; repeated deliveries follow immediately.
    REMEMBERED = 1024

    def __init__(self, sink: Any) -> None:
        self._deliver: Deliver = getattr(sink, "deliver", sink)
        self._process = getattr(sink, "process", lambda payloads: self._deliver(None, payloads))
        self._taken: dict[tuple[Any, int], dict[str, float]] = {}

    def __call__(
        self, batch_id: BatchId | None, batch_key: int | None, payloads: list[bytes]
    ) -> dict[str, float]:
        if batch_key is None:
            return dict(self._process(payloads) or {})
        key = (batch_id, batch_key)
        if key not in self._taken:
            metrics = dict(self._deliver(batch_id, payloads) or {})
            self._taken[key] = metrics
            while len(self._taken) > self.REMEMBERED:
                self._taken.pop(next(iter(self._taken)))
        return self._taken[key]


class RolloutCoordinator(RunnerStatesMixin, ServerAdministration):
    """Owns batches from submit to finalize:

        async with rw.RolloutCoordinator(config, [rw.models.Echo()]) as coordinator:
            await coordinator.submit_batch(batch_id=1, tasks=tasks, batch_type="train")
            result = await coordinator.finalize_train_batch(1)
            print(result["metrics"]["rollout/reward/mean"])

    Waiting methods return a `PendingResult`: await it in async code, call `.result()` in a script.

    Experiences of train batches go through the operators of `data_processor.experience_pipeline`
    into `buffer.trainer_input.experience_buffer`, and are durable when finalizing returns. `sink`
    replaces both: a function of a batch id and a list of payloads that returns metrics or `None`,
    such as `rw.MemorySink()`, or an object with such a function as `deliver`, and `process` for
    payloads of no batch. Mode `bench` has neither.

    Mode `serve` has no runners and no scheduler: only `process_experiences` works.

    `running`, `scheduler` and `experience_pipeline` are set by `prepare` and reset by `shutdown`,
    after which it can be prepared again. `pending_batches` are the batches that are neither
    finalized nor aborted.

    With the pipeline, a ledger (`ledger.enable`) in the job's folder keeps acknowledged state when
    this process dies. The next coordinator of the job restores it: see `restored`.
    """

    def __init__(
        self,
        config: Config,
        rollout_model: Sequence[Model],
        auxiliary_models: Sequence[Sequence[Model]] | None = None,
        *,
        sink: Any = None,
    ) -> None:
        self.config = config
        self.rollout_model = rollout_model
        self.auxiliary_models = auxiliary_models or []
        self.detailed_stats = bool(config.monitor.detailed_stats)
        self.logger = logging.getLogger(f"rollway.{config.explorer.name}_rollout_coordinator")
        #: True from `prepare` to `shutdown`.
        self.running = False
        #: Scheduler of the runners; `None`: not prepared, or mode `serve`.
        self.scheduler: Scheduler | None = None
        #: `None`: not prepared, or mode `bench`.
        self.experience_pipeline: ExperiencePipeline | None = None
        self._launch_setup = _launch.LaunchSetup(config, rollout_model, auxiliary_models)
        self.sink: Any = None if config.mode == "bench" else sink
        self._engine: Any = None
        #: True after `shutdown`: the engine still answers questions about its batches.
        self._is_shut_down = False

    def _prepared(self) -> Any:
        if self._engine is None:
            raise NotStarted("not prepared: prepare() must be called first")
        return self._engine

    def _with_runners(self) -> Any:
        """Returns the engine; raises in mode `serve`."""
        if self.config.mode == "serve":
            raise NotStarted("mode serve has no scheduler: batches cannot be submitted")
        return self._prepared()

    @property
    def pending_batches(self) -> dict[BatchId, BatchState]:
        """Batches that are neither finalized nor aborted, in the order of submission."""
        if self._engine is None:
            return {}
        rows = self._call(
            "pending_batches", lambda engine: engine.pending_batches(), identity
        ).result()
        return {row["batch_id"]: _batch_state(row) for row in rows}

    def _call(
        self, name: str, begin: Callable[[Any], Any], convert: Callable[[Any], Any]
    ) -> PendingResult:
        return PendingResult(name, lambda: begin(self._prepared()), convert)

    def prepare(self) -> PendingResult[None]:
        """Opens the buffer, starts the runners, and waits until each is ready or failed to start.

        It may be called again after an error, and after `shutdown()`.
        """

        def begin() -> Any:
            if self._is_shut_down:
                self._engine, self._is_shut_down = None, False
            if self._engine is None:
                launch, sink, ours = self._launch_setup, None, None
                if self.sink is not None:
                    sink = _Once(self.sink)
                elif self.config.mode != "bench":
                    ours = (operators.registered(), operators.maker(launch.model_gateway.auxiliary))
                self._engine = _rollway.Coordinator(
                    launch.config_json,
                    launch.runners,
                    launch.spawn,
                    sink,
                    ours,
                    launch.model_gateway.start(),
                )
            if self.config.mode == "serve":
                return self._engine.prepare_pipeline()
            return self._engine.prepare()

        def ready(counts: tuple[int, int]) -> None:
            up, wanted = counts
            if up < wanted:
                self.logger.warning("%d of %d runners are ready", up, wanted)
            self.running = True
            if self.config.mode != "bench":
                self.experience_pipeline = ExperiencePipeline(self)
            if self.config.mode != "serve" and self.scheduler is None:
                engine = self._engine.scheduler()
                self.scheduler = Scheduler._shared(engine, self.config, self._launch_setup)

        return PendingResult("prepare", begin, ready)

    def shutdown(self, timeout: float = STOP_TIMEOUT) -> PendingResult[dict[str, Any]]:
        """Stops. Running attempts and deliveries get `timeout` seconds to end.

        Batches that are not finalized by then are aborted; the result lists them, and under
        `pipeline_error` an error of closing the pipeline. The ledger keeps their state, and the
        next coordinator of the job resumes them.
        """
        if self._engine is None:
            return PendingResult("shutdown", lambda: _Ready({}), identity)

        def done(report: dict[str, Any]) -> dict[str, Any]:
            self.running, self._is_shut_down = False, True
            self.scheduler = self.experience_pipeline = None
            return report

        return self._call("shutdown", lambda engine: engine.shutdown(float(timeout)), done)

    @property
    def restored(self) -> Restored:
        """State restored from the ledger of an earlier process of the job."""
        batches, ended, version = self._prepared().restored
        going_on = {batch: RestoredBatch(*rest) for batch, *rest in batches}
        return Restored(going_on, list(ended), version)

    def note_version(self, version: int) -> PendingResult[None]:
        """Records the model version in the ledger; it never decreases."""
        return self._call("note_version", lambda engine: engine.note_version(version), nothing)

    def _model_gateway(self) -> ModelGateway:
        return self._launch_setup.model_gateway

    def update_weights(
        self, path: str, version: int, in_flight: InFlight = "drain"
    ) -> PendingResult[dict[str, Any]]:
        """As `Scheduler.update_weights`; records the loaded version in the ledger."""
        gateway = self._launch_setup.model_gateway
        return self._call(
            "update_weights",
            lambda engine: engine.update_weights(gateway.required(), path, version, in_flight),
            identity,
        )

    def submit_batch(
        self,
        *,
        batch_id: BatchId,
        tasks: Sequence[Task],
        batch_type: BatchType,
        min_wait_num: int | None = None,
    ) -> PendingResult[None]:
        """Registers a batch and runs its tasks; a refused batch has no effect."""
        if batch_type not in ("train", "eval"):
            raise ValueError(f"batch_type is 'train' or 'eval', not {batch_type!r}")
        packed = _launch.pack(tasks)
        return PendingResult(
            "submit_batch",
            lambda: self._with_runners().submit(batch_id, packed, batch_type, min_wait_num),
            nothing,
        )

    def finalize_train_batch(
        self, batch_id: BatchId, *, timeout: float | None = None
    ) -> PendingResult[dict[str, Any]]:
        """Waits for a train batch, stores its experiences and ends it.

        Returns `batch_id`, `batch_type`, `finished_task_count`, `metrics` (with those of the
        pipeline), the numbers of `ok`, `partial`, `failed` and `cancelled` tasks
        (`failed_task_count` …), `failed_run_count`, `cancelled_run_count` and
        `dropped_payload_count` by reason, and more. `timeout` `None` waits while tasks keep ending,
        0 does not wait. It may be repeated: after a failure nothing is lost, after a success it
        returns the same result.
        """
        return self._finalize("finalize_train_batch", batch_id, "train", timeout)

    def finalize_eval_batch(
        self, batch_id: BatchId, *, timeout: float | None = None
    ) -> PendingResult[dict[str, Any]]:
        """Waits for an eval batch and ends it; `complete`: whether all results are present."""
        return self._finalize("finalize_eval_batch", batch_id, "eval", timeout)

    def _finalize(
        self, name: str, batch_id: BatchId, batch_type: BatchType, timeout: float | None
    ) -> PendingResult[dict[str, Any]]:
        limit = None if timeout is None else float(timeout)
        return PendingResult(
            name, lambda: self._with_runners().finalize(batch_id, batch_type, limit), _result
        )

    def abort_batch(
        self, batch_id: BatchId, *, reason: str, keep_partial_results: bool = False
    ) -> PendingResult[dict[str, Any] | None]:
        """Aborts a batch; `keep_partial_results` stores its finished runs.

        Returns its result; `None`: there was nothing to abort.
        """

        def aborted(answer: dict[str, Any] | None) -> dict[str, Any] | None:
            if answer is None:
                return None
            self.logger.warning("batch %s is aborted: %s", batch_id, reason)
            return _result(answer)

        return PendingResult(
            "abort_batch",
            lambda: self._with_runners().abort(batch_id, reason, keep_partial_results),
            aborted,
        )

    def cancel_run(
        self, batch_id: BatchId, task_id: int, run_id: int, *, reason: str = "requested"
    ) -> PendingResult[bool]:
        """Cancels one run; returns whether it was active.

        Its task continues without it, and finished runs are kept. Runs of the same attempt are
        repeated without being charged. The run counts as cancelled (`requested`), also after a
        restart.
        """
        return self._call(
            "cancel_run",
            lambda engine: engine.cancel_run(batch_id, task_id, run_id, reason),
            identity,
        )

    def _runners(self) -> PendingResult[list[Row]] | None:
        if self._engine is None:
            return None
        return self._call("runners", lambda engine: engine.runners(), identity)

    def process_experiences(self, payloads: Sequence[bytes]) -> PendingResult[dict[str, float]]:
        """Stores experiences of no batch; returns the metrics of the pipeline.

        Repeating it with the same payloads has no effect.
        """

        def begin() -> Any:
            if self._engine is None:
                raise NoPipeline("the experience pipeline is not initialized")
            return self._engine.process(list(payloads))

        return PendingResult("process_experiences", begin, identity)

    def take_feedback(self) -> list[dict[int, dict[str, list[Any]]]]:
        """Returns and removes the feedback for task selectors.

        One entry per batch with feedback, in order:
        `{taskset_id: {"indices": […], "values": […]}}`.
        """
        return self._prepared().take_feedback()

    def batch_state(self, batch_id: BatchId) -> BatchLifecycleState | None:
        """Returns the state of a batch; `None`: unknown, or removed."""
        found = self._call(
            "batch_state", lambda engine: engine.batch_state(batch_id), identity
        ).result()
        return None if found is None else BatchLifecycleState(found)

    @classmethod
    def get_actor(
        cls,
        config: Config,
        models: Sequence[Model],
        auxiliary_models: Sequence[Sequence[Model]] | None,
    ) -> Any:
        """Returns the handle of a Ray actor with the same methods, called by `.remote()`:

            coordinator = rw.RolloutCoordinator.get_actor(config, models, None)
            ray.get(coordinator.prepare.remote())

        A job has one such actor; further calls return the same. When its process or node dies, Ray
        restarts it, and it resumes its batches from the ledger if the job's folder is reachable.
        It raises the same errors as the methods here.
        """
        return ray_coordinator.start(cls, config, models, auxiliary_models)

    async def __aenter__(self) -> RolloutCoordinator:
        await self.prepare()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    def __enter__(self) -> RolloutCoordinator:
        self.prepare().result()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown().result()


def _batch_state(row: dict[str, Any]) -> BatchState:
    statuses: list[Status] = [_launch.status(status) for status in row["statuses"]]
    return BatchState(
        batch_id=row["batch_id"],
        batch_type=row["batch_type"],
        expected_task_count=row["expected_task_count"],
        statuses={status.task_id: status for status in statuses},
        min_wait_num=row["min_wait_num"],
        state=BatchLifecycleState(row["state"]),
    )


def _result(answer: dict[str, Any]) -> dict[str, Any]:
    statuses = [_launch.status(row) for row in answer["statuses"]]
    return {**answer, "statuses": {status.task_id: status for status in statuses}}
