"""Explorer: runs the tasks of a job step by step, with changing weights."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rollway import _rollway, _serialization, operators, rewards
from rollway.client import _launch
from rollway.client._pending import PendingResult, identity
from rollway.client._runner_states import Row, RunnerStatesMixin
from rollway.client.scheduler import STOP_TIMEOUT, BatchId, _Ready
from rollway.config import Config, job_finished
from rollway.errors import Error, NotStarted, WorkflowUnavailable
from rollway.models.base import Model
from rollway.models.echo import Echo
from rollway.models.gateway import GatewayModel
from rollway.models.openai import OpenAI
from rollway.worker import setup, workflow_check
from rollway.workflow import known, lookup

#: Callback for job events: `{"event": "step_done", "step": 3, "metrics": {…}, …}`.
OnEvent = Callable[[dict[str, Any]], Any]

#: Variables with the API keys of servers passed as objects; workers do not get them.
_KEY = "ROLLWAY_MODEL_KEY_"
_numbers = itertools.count()


class Explorer(RunnerStatesMixin):
    """Runs the tasks of a configuration step by step and loads the trainer's weights:

        explorer = rw.Explorer(rw.Config.load("job.yaml"))
        await explorer.prepare()
        await explorer.explore()
        await explorer.shutdown()

    Waiting methods return a `PendingResult`: await it in async code, call `.result()` in a script.
    `with` and `async with` call `prepare` and `shutdown`.

    The configuration names the workflows: registered in this process (`@rw.workflow` in a script or
    a notebook), `package.module:name`, or built in. Models come from the configuration or are
    objects: `rw.models.Tiny()`, `rw.models.OpenAI(…)`, `rw.models.Echo()`.

    `on_event` is called in a separate thread with a dictionary for every event: `event` is `began`,
    `step_begun`, `step_done`, `evaluated`, `synced`, `trained`, `info` or `alarm`.

    Ctrl-C and cancellation of the task stop it gracefully; another explorer of the same job
    resumes.
    """

    def __init__(
        self,
        config: Config,
        rollout_model: Sequence[Model] | Model | None = None,
        auxiliary_models: Sequence[Sequence[Model]] | None = None,
        *,
        on_event: OnEvent | None = None,
    ) -> None:
        self.config = config
        # Servers in this process stop with the last reference to their model.
        self._models = None if rollout_model is None else _launch.model_list(rollout_model)
        self._auxiliary = [_launch.model_list(engines) for engines in auxiliary_models or []]
        if self._models is not None and not self._models:
            raise ValueError("there is no rollout model: leave it out to use the configuration's")
        self._on_event = on_event
        self._engine: Any = None
        self._is_stopped = False
        self._keys: list[str] = []
        weakref.finalize(self, _forget, self._keys)

    def prepare(self) -> PendingResult[None]:
        """Prepares tasks, buffer, models, runners and the saved state of the job.

        In mode `serve` the server starts. It may be called again after an error.
        """

        def begin() -> Any:
            if self._engine is None:
                self._engine = self._make()
            return self._engine.prepare()

        def ready(_: None) -> None:
            # The gateway has read the keys.
            _forget(self._keys)

        return PendingResult("prepare", begin, ready)

    def shutdown(self, timeout: float = STOP_TIMEOUT) -> PendingResult[None]:
        """Stops running work within `timeout` seconds and releases all resources."""
        if self._engine is None:
            return PendingResult("shutdown", lambda: _Ready(None), identity)
        return self._call("shutdown", lambda engine: engine.shutdown(float(timeout)), identity)

    def stop(self) -> None:
        """Stops `explore`, `eval`, `benchmark` and `serve` gracefully; callable from any thread."""
        if self._engine is not None:
            self._is_stopped = True
            self._engine.stop()

    async def __aenter__(self) -> Explorer:
        await self.prepare()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    def __enter__(self) -> Explorer:
        self.prepare().result()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown().result()

    def explore(self) -> PendingResult[str]:
        """Explores until all steps or the trainer are done; returns the explorer's name.

        In mode `both` the trainer of the configuration is started and ends with it: the embedded
        one, or the program of `trainer.command`. If there is none, this is logged, and a trainer
        that is started from outside is expected.
        """

        def explored(name: str) -> str:
            if not self._is_stopped:
                job_finished(str(self.config.name))
            return name

        return self._call("explore", lambda engine: engine.explore(), explored)

    def eval(self) -> PendingResult[list[dict[str, Any]]]:
        """Evaluates the loaded weights on every set of `eval_tasksets`.

        Returns for each set `step`, `set`, `score` (mean reward; `None`: no run succeeded),
        `tasks`, `failed` (tasks without a successful run) and `metrics`.
        """
        return self._call("eval", lambda engine: engine.eval(), identity)

    def benchmark(self) -> PendingResult[list[dict[str, Any]]]:
        """Evaluates all checkpoints of the job, or the latest.

        Returns for each checkpoint and set a row as `eval`; `step` identifies the checkpoint.
        """
        return self._call("benchmark", lambda engine: engine.benchmark(), identity)

    def serve(self) -> PendingResult[str]:
        """Serves agents until `stop()` or `shutdown()` (mode `serve`); returns the name.

        Agents find the server through the job's folder: `rw.ServeClient.of_job(e.job_dir)`.
        """
        return self._call("serve", lambda engine: engine.serve(), identity)

    def sync_weight(self) -> PendingResult[int]:
        """Loads the newest published weights; returns their version."""
        return self._call("sync_weight", lambda engine: engine.sync_weight(), identity)

    def save_checkpoint(self) -> PendingResult[None]:
        """Saves the state of the explorer, from which another process resumes."""
        return self._call("save_checkpoint", lambda engine: engine.save_checkpoint(), identity)

    def setup_weight_sync_group(
        self,
        master_address: str,
        master_port: int,
        state_dict_meta: Sequence[tuple[str, str, Sequence[int]]] | None = None,
    ) -> PendingResult[int]:
        """Lets the servers of the trained model receive weights over the trainer's `nccl` group.

        Returns the size of the group: the trainer, then all GPUs of the servers, which join with
        the first update. `state_dict_meta` lists the tensors in order: name, type such as
        `bfloat16`, shape.
        """
        tensors = [
            (str(name), str(dtype).removeprefix("torch."), [int(size) for size in shape])
            for name, dtype, shape in state_dict_meta or []
        ]
        return self._call(
            "setup_weight_sync_group",
            lambda engine: engine.setup_weight_sync_group(master_address, master_port, tensors),
            identity,
        )

    def get_weight(self, name: str) -> PendingResult[np.ndarray]:
        """Returns a tensor of the loaded weights, as published.

        bfloat16 tensors have the type of `ml_dtypes` if that is installed; otherwise they are
        converted to float32 without loss.
        """
        return self._call("get_weight", lambda engine: engine.get_weight(name), tensor)

    @property
    def name(self) -> str:
        """Name of the explorer."""
        return str(self.config.explorer.name)

    @property
    def job_dir(self) -> pathlib.Path:
        """Folder of the job; available after `prepare`."""
        return self._prepared().job_dir

    @property
    def dashboard_url(self) -> str | None:
        """Address of the dashboard with its token; available after `prepare`.

        `None`: `dashboard.enable: false`, or it could not be opened (see the log).
        """
        return self._prepared().dashboard_url

    def live_stats(self) -> PendingResult[dict[str, int]]:
        """Returns live statistics of runs, runners and tokens, also during `explore()`.

        `pending`, `running`, `done`, `failed`, `cancelled`, `retried`, `runners`, `busy`,
        `prompt_tokens`, `completion_tokens`.
        """
        return self._call("live_stats", lambda engine: engine.live_stats(), identity)

    def cancel_run(
        self, batch_id: BatchId, task_id: int, run_id: int, *, reason: str = "requested"
    ) -> PendingResult[bool]:
        """Cancels one run, also during `explore()`; returns whether it was active.

        See `RolloutCoordinator.cancel_run`.
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

    def _prepared(self) -> Any:
        if self._engine is None:
            raise NotStarted("not prepared: prepare() must be called first")
        return self._engine

    def _call(
        self, name: str, begin: Callable[[Any], Any], convert: Callable[[Any], Any]
    ) -> PendingResult:
        return PendingResult(name, lambda: begin(self._prepared()), convert)

    def _make(self) -> Any:
        config = Config.from_dict(self.config.changed())
        self._settle(config)
        if config.explorer.python is None:
            config.explorer.python = sys.executable
        # Completes the sections that were set.
        config = _launch.with_ray_address(Config.from_dict(config.changed()))
        spawn, definitions = self._workers(config)
        if spawn is None:
            # Workers that the engine starts inherit this process's module path.
            path = os.pathsep.join(os.path.abspath(path) for path in sys.path)
            hidden = dict.fromkeys(self._keys, "")
            config.explorer.env_vars = {"PYTHONPATH": path, **config.explorer.env_vars, **hidden}
        # The default name of this process is not that of the engine.
        text = json.dumps({"name": str(config.name), **config.changed()})
        ours = (operators.registered(), operators.maker(self._auxiliary))
        return _rollway.Explorer(text, self.config.folder, spawn, definitions, self._on_event, ours)

    def _workers(self, config: Config) -> tuple[_launch.Spawn | None, list[tuple[str, str, bytes]]]:
        """Returns the start command of workers if they need objects of this process."""
        sets = _sets(config)
        rows = any(one["rows_name_workflows"] for one in sets)
        ours = {
            name: source
            for name in known()
            if (rows or any(one["workflow"] == name for one in sets))
            and _is_ours(source := lookup(name))
        }
        reward_fns = {
            name: source for name in rewards.known() if _is_ours(source := rewards.lookup(name))
        }
        if not ours and not reward_fns and self._is_served():
            return None, []
        folders = [] if self.config.folder is None else [self.config.folder]
        setup.find_first([*folders, *sys.path])
        _check(sets)
        spawn = _launch.spawn(
            config, *self._model_objects(config), folders, reward_fns, config.job_dir
        )
        spawn[2].extend((key, "") for key in self._keys)
        return spawn, [
            (name, *_serialization.pickle_by_value(source)) for name, source in ours.items()
        ]

    def _model_objects(self, config: Config) -> tuple[list[Model], list[list[Model]]]:
        """Returns the models for workers; servers are replaced by gateway models."""
        rollout = config.explorer.rollout_model
        name = rollout.name or rollout.model_path or "policy"
        models = _served(name, rollout, self._models, trained=True)
        auxiliary = []
        for position, section in enumerate(config.explorer.auxiliary_models):
            engines = self._auxiliary[position] if self._auxiliary else None
            name = section["name"] or str(position)
            auxiliary.append(_served(name, section, engines, trained=False))
        return models, auxiliary

    def _is_served(self) -> bool:
        given = [*(self._models or []), *(one for many in self._auxiliary for one in many)]
        return all(isinstance(model, OpenAI) for model in given)

    def _settle(self, config: Config) -> None:
        """Writes model objects into the configuration."""
        if self._models is not None:
            _settle(config.explorer.rollout_model, self._models, self._keys)
        if self._auxiliary:
            described = []
            for engines in self._auxiliary:
                section: dict[str, Any] = {}
                _settle(section, engines, self._keys)
                described.append(section)
            config.explorer.auxiliary_models = described


def _served(name: str, section: Any, engines: list[Model] | None, trained: bool) -> list[Model]:
    """Returns the model for workers."""
    kind = section["engine_type"]
    if kind == "echo":
        return engines or [Echo()]
    return [GatewayModel(name, "vllm" if kind == "tiny" else kind, trained)]


def _settle(section: Any, engines: Sequence[Model], keys: list[str]) -> None:
    """Writes the engines of one model into the configuration."""
    servers = [engine for engine in engines if isinstance(engine, OpenAI)]
    section["engine_num"] = len(engines)
    if not servers:
        section["engine_type"] = "echo"
        section["base_url"] = []
        return
    if len(servers) < len(engines):
        raise Error("some engines of a model are servers and some are not: they cannot be one")
    kinds = {(engine.engine, engine.name, engine.api_key) for engine in servers}
    if len(kinds) > 1:
        raise Error(
            "the servers of a model are of one kind, name and key; these are of "
            f"{len(kinds)}: {', '.join(sorted(f'{kind} {name}' for kind, name, _ in kinds))}"
        )
    ((kind, name, api_key),) = kinds
    section["engine_type"] = kind
    section["base_url"] = [engine.base_url for engine in servers]
    if name:
        section["model_path"] = name
    if api_key:
        key = f"{_KEY}{next(_numbers)}"
        os.environ[key] = api_key
        keys.append(key)
        section["api_key_env"] = key


def _forget(keys: list[str]) -> None:
    for key in keys:
        os.environ.pop(key, None)


def _sets(config: Config) -> list[dict[str, Any]]:
    """Returns the default workflow and reward function of every taskset."""
    given = config.buffer.explorer_input
    single = [] if given.taskset is None else [given.taskset]
    train = [("tasksets", one, None) for one in [*single, *given.tasksets]]
    of_evals = given.default_eval_workflow_type
    evals = [("eval_tasksets", one, of_evals) for one in given.eval_tasksets]
    return [
        {
            "place": f"buffer.explorer_input.{place}",
            "workflow": one["default_workflow_type"] or default or given.default_workflow_type,
            "workflow_args": one["workflow_args"],
            "reward_fn": one["default_reward_fn_type"] or given.default_reward_fn_type,
            "reward_fn_args": one["reward_fn_args"],
            "rows_name_workflows": one["format"]["workflow_key"] is not None,
            "rows_name_rewards": one["format"]["reward_fn_key"] is not None,
        }
        for place, one, default in [*train, *evals]
    ]


def _check(sets: list[dict[str, Any]]) -> None:
    """Raises if a workflow or reward function is invalid."""
    problems = workflow_check.main({"sets": sets})["problems"]
    if problems:
        words = "\n".join(f"{one['what']}; {one['hint']}" for one in problems)
        raise WorkflowUnavailable(words, kind=problems[0]["kind"])


def _is_ours(source: Any) -> bool:
    """Returns whether an object was registered by the user, not by this package."""
    return not str(getattr(source, "__module__", "")).startswith("rollway.")


def tensor(found: tuple[str, list[int], bytes]) -> np.ndarray:
    """Converts a tensor in safetensors notation to an array."""
    dtype, shape, data = found
    if dtype == "BF16":
        try:
            import ml_dtypes
        except ImportError:
            wide = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
            return wide.view(np.float32).reshape(shape)
        return np.frombuffer(data, ml_dtypes.bfloat16).reshape(shape)
    if dtype not in _DTYPES:
        raise Error(f"NumPy has no type for tensors of {dtype}")
    return np.frombuffer(data, _DTYPES[dtype]).reshape(shape)


_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
}
