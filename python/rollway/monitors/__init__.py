"""Monitor backends: Weights & Biases, MLflow and SwanLab, through their own packages.

The engine starts `python -m rollway.monitors NAME` for each entry of `monitor.monitor_type` and
sends JSON lines: `begin`, then `log` for every step, then `end`. The process replies with JSON
lines; the output of the package goes to its log file.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Iterable
from typing import Any, Protocol, TextIO

__all__ = ["MonitorBackend", "check", "main"]

# For each monitor: our module, the imported module, and the package to install.
MONITORS = {
    "wandb": ("rollway.monitors.wandb", "wandb", "wandb"),
    "mlflow": ("rollway.monitors.mlflow", "mlflow", "mlflow"),
    "swanlab": ("rollway.monitors.swanlab", "swanlab", "swanlab"),
}

# Maximum consecutive failures before the monitor is stopped.
MAX_FAILURES = 20


class MonitorBackend(Protocol):
    """A run in an experiment tracker."""

    run: str
    """Id of the run, with which a resumed job continues it."""

    place: str | None
    """URL or folder of the run."""

    def log(self, role: str, step: int, at: float, numbers: dict[str, float]) -> None:
        """Logs the metrics of a step."""

    def close(self) -> None:
        """Flushes and ends the run."""


def check(name: str) -> None:
    """Prints the missing package of a monitor, if any."""
    _, module, package = MONITORS[name]
    if importlib.util.find_spec(module) is None:
        print(package)


def main(name: str) -> None:
    """Serves commands on standard input until its end."""
    # Packages may print to standard output; only this stream goes to the engine.
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    sys.exit(0 if follow(name, sys.stdin, out) else 1)


def follow(name: str, lines: Iterable[str], out: TextIO) -> bool:
    """Executes commands; returns whether the package could be used."""

    def send(reply: str, **more: Any) -> None:
        try:
            out.write(json.dumps({"reply": reply, **more}) + "\n")
            out.flush()
        except OSError:
            pass  # The engine is gone; remaining metrics are logged nevertheless.

    backend = None
    failures = Failures(send)
    try:
        for line in lines:
            command = json.loads(line)
            if command["do"] == "begin":
                backend = begin(name, command, send)
                if backend is None:
                    return False
            elif command["do"] == "log" and backend is not None:
                if not failures.attempt(backend, command):
                    return False
            elif command["do"] == "end":
                break
    finally:
        # Also if the engine died without sending `end`.
        if backend is not None:
            try:
                backend.close()
            except Exception as error:
                send("trouble", message=f"the run could not be closed: {describe(error)}")
    return backend is not None


def begin(name: str, command: dict[str, Any], send: Any) -> MonitorBackend | None:
    module, _, package = MONITORS[name]
    remembered = os.path.join(command["folder"], "run.json")
    try:
        with open(remembered, encoding="utf-8") as file:
            command["run"] = json.load(file)["run"]
    except (OSError, ValueError, KeyError):
        command["run"] = None
    try:
        backend: MonitorBackend = importlib.import_module(module).open(command)
    except ModuleNotFoundError as error:
        remedy = f"`{sys.executable} -m pip install {package}` installs it"
        send("failed", message=f"{describe(error)}; {remedy}")
        return None
    except Exception as error:
        send("failed", message=describe(error))
        return None
    with open(remembered + ".new", "w", encoding="utf-8") as file:
        json.dump({"run": backend.run}, file)
    os.replace(remembered + ".new", remembered)
    send("ready", place=backend.place)
    return backend


class Failures:
    """Counts failed steps: reports the first, stops after too many in a row."""

    def __init__(self, send: Any) -> None:
        self.send = send
        self.in_a_row = 0
        self.is_reported = False

    def attempt(self, backend: MonitorBackend, command: dict[str, Any]) -> bool:
        numbers = command["numbers"].items()
        numbers = {k: v for k, v in numbers if v is not None and math.isfinite(v)}
        try:
            backend.log(command["role"], command["step"], command.get("at", time.time()), numbers)
            self.in_a_row = 0
        except Exception as error:
            self.in_a_row += 1
            if not self.is_reported:
                self.is_reported = True
                self.send(
                    "trouble", message=f"step {command['step']} was not logged: {describe(error)}"
                )
            if self.in_a_row >= MAX_FAILURES:
                self.send("failed", message=f"{MAX_FAILURES} steps in a row: {describe(error)}")
                return False
        return True


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip()


def secret(args: dict[str, Any], key: str) -> str | None:
    """Returns a secret from the variable that `<key>_env` names, or from `key`."""
    variable = args.pop(key + "_env", None)
    value = args.pop(key, None)
    if variable:
        value = os.environ.get(variable)
        if not value:
            raise ValueError(f"the environment variable {variable} is not set, or empty")
    return value
