"""The explorer: from tasks to delivered experiences, step after step, while weights change."""

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
from rollway.config import Config
from rollway.errors import Error, NotStarted, WorkflowUnavailable
from rollway.models.base import Model
from rollway.models.echo import Echo
from rollway.models.gateway import GatewayModel
from rollway.models.openai import OpenAI
from rollway.worker import setup, workflow_check
from rollway.workflow import known, lookup

#: Sees what happens to a job: `{"event": "step_done", "step": 3, "metrics": {…}, …}`.
OnEvent = Callable[[dict[str, Any]], Any]

#: What the keys of servers that were handed over are called in this process; workers get none.
_KEY = "ROLLWAY_MODEL_KEY_"
_numbers = itertools.count()


class Explorer(RunnerStatesMixin):
    """Runs the tasks of a configuration, step after step, and follows the trainer's weights::

        explorer = rw.Explorer(rw.Config.load("job.yaml"))
        await explorer.prepare()
        await explorer.explore()
        await explorer.shutdown()

    Methods that wait return a `PendingResult`: awaited in async code, `.result()` in a plain script. In a
    `with` or `async with` block it is prepared and shut down.

    Workflows are those that the configuration names: registered in this process (`@rw.workflow` in
    a script or a notebook), `package.module:name`, or built in. Models are those of the
    configuration, or objects: `rw.models.Tiny()`, `rw.models.OpenAI(…)`, `rw.models.Echo()`.

    `on_event` is called, in a thread of its own, with a dictionary for everything that happens:
    `event` is `began`, `step_begun`, `step_done`, `evaluated`, `synced`, `trained`, `note` or
    `alarm`.

    Ctrl-C, or cancelling the task, stops what is under way soon and cleanly; another explorer of
    the same job goes on from there.
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
        models = [rollout_model] if isinstance(rollout_model, Model) else rollout_model
        # A server in this process lives as long as somebody holds its model.
        self._models = None if models is None else list(models)
        self._auxiliary = [list(engines) for engines in auxiliary_models or []]
        if self._models is not None and not self._models:
            raise ValueError("there is no rollout model: leave it out to use the configuration's")
        self._on_event = on_event
        self._engine: Any = None
        self._keys: list[str] = []
        weakref.finalize(self, _forget, self._keys)

    # ---- life ------------------------------------------------------------------------------------

    def prepare(self) -> PendingResult[None]:
        """Gets everything ready: tasks, buffer, models, runners, and where the last process was.

        In mode `serve` it starts to serve. After an error it may be called again.
        """

        def begin() -> Any:
            if self._engine is None:
                self._engine = self._make()
            return self._engine.prepare()

        def ready(_: None) -> None:
            # The gateway has them.
            _forget(self._keys)

        return PendingResult("prepare", begin, ready)

    def shutdown(self, timeout: float = STOP_TIMEOUT) -> PendingResult[None]:
        """Stops what is under way, within `timeout` seconds, and closes everything."""
        if self._engine is None:
            return PendingResult("shutdown", lambda: _Ready(None), identity)
        return self._call("shutdown", lambda engine: engine.shutdown(float(timeout)), identity)

    def stop(self) -> None:
        """Has `explore`, `eval`, `benchmark` and `serve` end soon and cleanly, from any thread."""
        if self._engine is not None:
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

    # ---- what it does ----------------------------------------------------------------------------

    def explore(self) -> PendingResult[str]:
        """Explores until all steps are done, or the trainer is; returns the explorer's name."""
        return self._call("explore", lambda engine: engine.explore(), identity)

    def eval(self) -> PendingResult[list[dict[str, Any]]]:
        """Evaluates the weights that the models have on every set of `eval_tasksets`.

        Returns for each set `step`, `set`, `score` (the mean reward; none if no run succeeded),
        `tasks`, `failed` (tasks without a good run) and `metrics`.
        """
        return self._call("eval", lambda engine: engine.eval(), identity)

    def benchmark(self) -> PendingResult[list[dict[str, Any]]]:
        """Evaluates the checkpoints of the job: all, or the latest.

        Returns for each of them and each set what `eval` does; `step` says which checkpoint.
        """
        return self._call("benchmark", lambda engine: engine.benchmark(), identity)

    def serve(self) -> PendingResult[str]:
        """Serves agents elsewhere until `stop()` or `shutdown()`; mode `serve`. Returns the name.

        Agents find the server through the job's folder: `rw.ServeClient.of_job(e.job_dir)`.
        """
        return self._call("serve", lambda engine: engine.serve(), identity)

    def sync_weight(self) -> PendingResult[int]:
        """Takes the newest weights that the trainer has published; returns their version."""
        return self._call("sync_weight", lambda engine: engine.sync_weight(), identity)

    def save_checkpoint(self) -> PendingResult[None]:
        """Keeps where the explorer is, so that another process goes on from there."""
        return self._call("save_checkpoint", lambda engine: engine.save_checkpoint(), identity)

    def setup_weight_sync_group(
        self,
        master_address: str,
        master_port: int,
        state_dict_meta: Sequence[tuple[str, str, Sequence[int]]] | None = None,
    ) -> PendingResult[int]:
        """Has the servers of the trained model take weights over the trainer's group (`nccl`).

        Returns how many members the group has: the trainer first, then all GPUs of the servers,
        which join with the first update. `state_dict_meta` tells what will be sent, in order: name,
        type such as `bfloat16`, shape.
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
        """Returns a tensor of the weights that the models have, as they were published.

        NumPy has no bfloat16: such tensors are of the type of `ml_dtypes` if that is installed, and
        else widened to float32, which changes no value.
        """
        return self._call("get_weight", lambda engine: engine.get_weight(name), tensor)

    # ---- what can be seen of it ------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.config.explorer.name)

    @property
    def job_dir(self) -> pathlib.Path:
        """The job's folder, once it is prepared."""
        return self._prepared().job_dir

    @property
    def dashboard_url(self) -> str | None:
        """Where the dashboard is, with the token that opens it, once it is prepared.

        None with `dashboard.enable: false`, and if it could not be opened, which the log tells.
        """
        return self._prepared().dashboard_url

    def live_stats(self) -> PendingResult[dict[str, int]]:
        """Returns live numbers, also while it explores: runs by what they are at, runners, tokens.

        `pending`, `running`, `done`, `failed`, `cancelled`, `retried`, `runners`, `busy`,
        `prompt_tokens`, `answer_tokens`.
        """
        return self._call("live_stats", lambda engine: engine.live_stats(), identity)

    def cancel_run(
        self, batch_id: BatchId, task_id: int, run_id: int, *, reason: str = "asked for"
    ) -> PendingResult[bool]:
        """Cancels one run, also while `explore()` goes on; tells whether there was one to cancel.

        Its task goes on without it. See `RolloutCoordinator.cancel_run`.
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

    # ---- inside ----------------------------------------------------------------------------------

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
        # Sections that were set are whole again.
        config = _launch.placed(Config.from_dict(config.changed()))
        spawn, definitions = self._workers(config)
        if spawn is None:
            # Workers that the engine starts by itself find what this process finds.
            path = os.pathsep.join(os.path.abspath(path) for path in sys.path)
            hidden = dict.fromkeys(self._keys, "")
            config.explorer.env_vars = {"PYTHONPATH": path, **config.explorer.env_vars, **hidden}
        text = json.dumps(config.changed())
        ours = (operators.registered(), operators.maker(self._auxiliary))
        return _rollway.Explorer(text, self.config.folder, spawn, definitions, self._on_event, ours)

    def _workers(self, config: Config) -> tuple[_launch.Spawn | None, list[tuple[str, str, bytes]]]:
        """Returns how workers are started if they need something of this process."""
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
        spawn = _launch.spawn(config, *self._behind(config), folders, reward_fns)
        spawn[2].extend((key, "") for key in self._keys)
        return spawn, [
            (name, *_serialization.pickle_by_value(source)) for name, source in ours.items()
        ]

    def _behind(self, config: Config) -> tuple[list[Model], list[list[Model]]]:
        """Returns the models as workers have them: those that are servers, behind the gateway."""
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
        """Writes models that were handed over into the configuration."""
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
    """Returns a model as workers have it."""
    kind = section["engine_type"]
    if kind == "echo":
        return engines or [Echo()]
    return [GatewayModel(name, "vllm" if kind == "tiny" else kind, trained)]


def _settle(section: Any, engines: Sequence[Model], keys: list[str]) -> None:
    """Describes the engines of one model."""
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
    """Returns what the tasks of every set are run with, unless a row says otherwise."""
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
    """Raises what is wrong with workflows and reward functions, before anything is started."""
    problems = workflow_check.main({"sets": sets})["problems"]
    if problems:
        words = "\n".join(f"{one['what']}; {one['hint']}" for one in problems)
        raise WorkflowUnavailable(words, kind=problems[0]["kind"])


def _is_ours(source: Any) -> bool:
    """Tells whether something was registered by the user: workers have the rest."""
    return not str(getattr(source, "__module__", "")).startswith("rollway.")


def tensor(found: tuple[str, list[int], bytes]) -> np.ndarray:
    """Returns a tensor in the notation of safetensors as an array."""
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
