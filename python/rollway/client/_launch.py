"""Launch of worker processes: models, start command, encoded tasks, decoded statuses."""

from __future__ import annotations

import base64
import copy
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle

from rollway import _rollway, _serialization, ray
from rollway.client._gateway import ModelGateway
from rollway.config import Config
from rollway.errors import Error
from rollway.models.base import Model
from rollway.run_settings import settings_of
from rollway.status import Status
from rollway.task import Task
from rollway.worker.setup import SETUP, start_arguments

#: Maximum size of the setup: Linux limits an environment variable to 128 KiB.
_MAX_SETUP_BYTES = 120 * 1024


#: Interpreter arguments that start the Ray launcher.
RAY_LAUNCHER = start_arguments("rollway.ray.launcher")


def model_list(models: Sequence[Model] | Model) -> list[Model]:
    """Returns models as a list; refuses other objects, such as addresses."""
    listed = [models] if isinstance(models, (Model, str)) else list(models)
    for model in listed:
        if not callable(getattr(model, "bind", None)):
            raise TypeError(
                f"{model!r} is no model: pass an object such as "
                "rw.models.OpenAI('http://host:8000/v1', model='NAME', engine='vllm')"
            )
    return listed


class LaunchSetup:
    """Number of runners, models and start command of the worker processes."""

    def __init__(
        self,
        config: Config,
        rollout_model: Sequence[Model] | Model,
        auxiliary_models: Sequence[Sequence[Model]] | None,
    ) -> None:
        models = model_list(rollout_model)
        if not models:
            raise ValueError("no rollout model given: pass at least one")
        self.config = config
        self.rollout_model = models
        self.config_json = with_ray_address(config).to_json()
        self.runners = len(models) * int(config.explorer.runner_per_model)
        auxiliary = [model_list(engines) for engines in auxiliary_models or []]
        self.auxiliary_models = auxiliary
        self.model_gateway = ModelGateway(config, models, auxiliary)
        self.spawn = spawn(config, self.model_gateway.models, self.model_gateway.auxiliary)

    def scheduler(self, on_task_done: Callable[..., None] | None) -> Any:
        """Returns a new engine without runners; its `start()` starts them."""
        return _rollway.Scheduler(
            self.config_json,
            self.runners,
            self.spawn,
            self.model_gateway.start(),
            on_task_done,
        )


def with_ray_address(config: Config) -> Config:
    """Returns the configuration, with the address of this process's Ray cluster if none is set."""
    if config.cluster.backend != "ray":
        return config
    ray.package()
    here = ray.connected()
    if config.cluster.address is not None or here is None:
        return config
    config = copy.deepcopy(config)
    config.cluster.address = here
    return config


#: Start command of workers: program, arguments, environment.
Spawn = tuple[str, list[str], list[tuple[str, str]]]


def spawn(
    config: Config,
    models: Sequence[Model],
    auxiliary: Sequence[Sequence[Model]],
    folders: Sequence[str] = (),
    reward_fns: Mapping[str, Any] | None = None,
    job_dir: str | None = None,
) -> Spawn:
    """Returns the start command of workers with these models.

    `folders` are added to `sys.path`; `reward_fns` are registered in the workers; `job_dir` is the
    folder of the job, if there is one.
    """
    setup = {
        "models": list(models),
        "auxiliary": [list(engines) for engines in auxiliary],
        "concurrent_mode": config.explorer.concurrent_mode,
        "settings": settings_of(config, job_dir),
        "sys_path": [*folders, *(os.path.abspath(path) for path in sys.path)],
        "reward_fns": {
            name: _serialization.pickle_by_value(fn)[1] for name, fn in (reward_fns or {}).items()
        },
    }
    text = base64.b85encode(cloudpickle.dumps(setup)).decode()
    if len(text) > _MAX_SETUP_BYTES:
        raise Error(
            f"pickled models and reward functions have {len(text)} bytes, maximum "
            f"{_MAX_SETUP_BYTES}: load large data inside the worker instead"
        )
    env = [(str(key), str(value)) for key, value in dict(config.explorer.env_vars).items()]
    return sys.executable, start_arguments(), [*env, (SETUP, text)]


PackedTask = tuple[str, tuple[str, bytes] | None, int, bool, bytes]


def pack(tasks: Sequence[Task], options: dict[str, Any] | None = None) -> list[PackedTask]:
    """Encodes tasks for the engine; raises if one of them is invalid.

    `options` are the `RUN_OPTIONS` of all of them.
    """
    definitions: dict[Any, _serialization.WorkflowDefinition] = {}
    packed = []
    for position, task in enumerate(tasks):
        if not isinstance(task, Task):
            raise TypeError(f"task {position} must be a rollway.Task, not {type(task).__name__}")
        key = task.workflow if isinstance(task.workflow, str) else id(task.workflow)
        if key not in definitions:
            definitions[key] = _serialization.define(task.workflow)
        definition = definitions[key]
        body = (definition.encoding, definition.body) if definition.body else None
        repeat = _repeat_times(position, task.repeat_times)
        encoded = _serialization.encode_task(task, options)
        packed.append((definition.name, body, repeat, bool(task.is_eval), encoded))
    return packed


def _repeat_times(position: int, value: Any) -> int:
    if value is None or isinstance(value, bool) or int(value) != value or not 0 <= value < 2**32:
        raise ValueError(f"task {position}: repeat_times must be a positive number, not {value!r}")
    return int(value)


def status(row: tuple[Any, ...]) -> Status:
    """Builds a `Status` from a row of the engine."""
    task_id, completed, total, metrics, message, failed, cancelled = row
    made = object.__new__(Status)
    # Bypasses the constructor of the frozen class, which takes three times as long.
    made.__dict__.update(
        completed_runs=completed,
        total_runs=total,
        metrics=[metrics],
        message=message,
        task_id=task_id,
        failed_runs=failed,
        cancelled_runs=cancelled,
    )
    return made


def collected(answer: tuple[list[Any], list[bytes]]) -> tuple[list[Status], list[bytes]]:
    """Converts the result of a collecting call."""
    rows, payloads = answer
    return [status(row) for row in rows], payloads
