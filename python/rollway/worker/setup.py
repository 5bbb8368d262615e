"""Start line and setup of worker processes: models, module folders, reward functions."""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
from collections.abc import Sequence
from typing import Any

from rollway import rewards
from rollway.models.base import Model
from rollway.models.gateway import GatewayModel, connect

#: Variable with the pickled setup, if a Python process started the worker.
SETUP = "ROLLWAY_WORKER_SETUP"

#: Variable with the setup as JSON, if the engine alone started the worker: models, search path,
#: modules, stages and sandbox settings.
SETUP_JSON = "ROLLWAY_WORKER_SETUP_JSON"

#: Folder of this package, with a separator at the end.
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")

#: Folder that contains this package.
_ROOT = os.path.dirname(os.path.dirname(PACKAGE))


def start_arguments(module: str = "rollway.worker.process") -> list[str]:
    """Returns the interpreter arguments that call `main()` of a module of this package.

    Equivalent to `python -m MODULE`, except that the child imports the copy of the package that
    this process uses, even if the working directory contains another folder `rollway`.
    """
    code = f"import sys; sys.path[0] = {_ROOT!r}; from {module} import main; main()"
    return ["-c", code]


def setup(text: str, gateway: str | None = None) -> dict[str, Any]:
    """Decodes the setup of a Python parent and connects its models to the gateway."""
    decoded = pickle.loads(base64.b85decode(text))
    models = [*decoded["models"], *(one for many in decoded["auxiliary"] for one in many)]
    if gateway is not None:
        for model in models:
            connect(model, gateway)
    return decoded


def take(setup: dict[str, Any]) -> None:
    """Applies a setup: extends `sys.path` and registers the reward functions."""
    present = set(sys.path)
    sys.path.extend(path for path in setup["sys_path"] if path not in present)
    for name, body in setup["reward_fns"].items():
        rewards.reward_fn(name)(pickle.loads(body))


def setup_json(text: str, gateway: str | None = None) -> dict[str, Any]:
    """Decodes the setup of an engine without Python and connects its models to the gateway.

    The folder of the configuration and the job's working directory come first on `sys.path`.
    """
    decoded = json.loads(text)
    decoded["models"] = [_model(one, trained=True, gateway=gateway) for one in decoded["models"]]
    decoded["auxiliary"] = [
        [_model(one, trained=False, gateway=gateway) for one in engines]
        for engines in decoded["auxiliary"]
    ]
    find_first(decoded["sys_path"])
    return decoded


def find_first(folders: Sequence[str]) -> None:
    """Moves folders to the front of `sys.path`."""
    sys.path[:] = [*folders, *(path for path in sys.path if path not in folders)]


def _model(described: dict[str, str], trained: bool, gateway: str | None) -> Model:
    model = GatewayModel(described["name"], described["engine"], trained)
    if gateway is not None:
        connect(model, gateway)
    return model
