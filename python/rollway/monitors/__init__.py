"""Monitors of others: Weights & Biases, MLflow and SwanLab, through their own packages.

The engine starts `python -m rollway.monitors NAME` for each that `monitor.monitor_type` names, and
tells it in lines of JSON what to show: `begin`, then `log` for every step, then `end`. What the
process has to say goes back in lines of JSON; whatever the package prints goes to its log file.
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

__all__ = ["Board", "check", "main"]

# Every monitor: the module here, what is imported, and what is installed.
MONITORS = {
    "wandb": ("rollway.monitors.wandb", "wandb", "wandb"),
    "mlflow": ("rollway.monitors.mlflow", "mlflow", "mlflow"),
    "swanlab": ("rollway.monitors.swanlab", "swanlab", "swanlab"),
}

# How often in a row a package may fail to take numbers before it is left alone.
PATIENCE = 20


class MonitorBackend(Protocol):
    """A place for numbers, as one of the packages has it."""

    run: str
    """Names the run, so that a job that is started again goes on with it."""

    place: str | None
    """Where a person finds it."""

    def log(self, role: str, step: int, at: float, numbers: dict[str, float]) -> None:
        """Takes the numbers of a step."""

    def close(self) -> None:
        """Sends what is left and ends the run."""


def check(name: str) -> None:
    """Prints the package that a monitor lacks, and nothing if it lacks none."""
    _, module, package = MONITORS[name]
    if importlib.util.find_spec(module) is None:
        print(package)


def main(name: str) -> None:
    """Shows what is told on standard input, until its end."""
    # Packages print what they like: only this goes to the engine.
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    sys.exit(0 if follow(name, sys.stdin, out) else 1)


def follow(name: str, lines: Iterable[str], out: TextIO) -> bool:
    """Shows what is told; says whether the package could be used."""

    def say(said: str, **more: Any) -> None:
        try:
            out.write(json.dumps({"said": said, **more}) + "\n")
            out.flush()
        except OSError:
            pass  # Nobody listens any more: what was told is shown nevertheless.

    board = None
    failures = Failures(say)
    try:
        for line in lines:
            told = json.loads(line)
            if told["do"] == "begin":
                board = begin(name, told, say)
                if board is None:
                    return False
            elif told["do"] == "log" and board is not None:
                if not failures.attempt(board, told):
                    return False
            elif told["do"] == "end":
                break
    finally:
        # Also when the engine is gone: then nobody says `end`.
        if board is not None:
            try:
                board.close()
            except Exception as error:
                say("trouble", what=f"the run does not end well: {words(error)}")
    return board is not None


def begin(name: str, told: dict[str, Any], say: Any) -> MonitorBackend | None:
    module, _, package = MONITORS[name]
    remembered = os.path.join(told["folder"], "run.json")
    try:
        with open(remembered, encoding="utf-8") as file:
            told["run"] = json.load(file)["run"]
    except (OSError, ValueError, KeyError):
        told["run"] = None
    try:
        board: MonitorBackend = importlib.import_module(module).open(told)
    except ModuleNotFoundError as error:
        remedy = f"`{sys.executable} -m pip install {package}` installs it"
        say("failed", what=f"{words(error)}; {remedy}")
        return None
    except Exception as error:
        say("failed", what=words(error))
        return None
    with open(remembered + ".new", "w", encoding="utf-8") as file:
        json.dump({"run": board.run}, file)
    os.replace(remembered + ".new", remembered)
    say("ready", place=board.place)
    return board


class Failures:
    """Numbers that a package does not take: the first is said, too many in a row end it."""

    def __init__(self, say: Any) -> None:
        self.say = say
        self.in_a_row = 0
        self.is_said = False

    def attempt(self, board: MonitorBackend, told: dict[str, Any]) -> bool:
        numbers = told["numbers"].items()
        numbers = {k: v for k, v in numbers if v is not None and math.isfinite(v)}
        try:
            board.log(told["role"], told["step"], told.get("at", time.time()), numbers)
            self.in_a_row = 0
        except Exception as error:
            self.in_a_row += 1
            if not self.is_said:
                self.is_said = True
                self.say("trouble", what=f"step {told['step']} is not shown: {words(error)}")
            if self.in_a_row >= PATIENCE:
                self.say("failed", what=f"{PATIENCE} steps in a row: {words(error)}")
                return False
        return True


def words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip()


def secret(args: dict[str, Any], key: str) -> str | None:
    """Returns a secret: in the environment variable `<key>_env`, or as it stands."""
    variable = args.pop(key + "_env", None)
    value = args.pop(key, None)
    if variable:
        value = os.environ.get(variable)
        if not value:
            raise ValueError(f"the environment variable {variable} is not set, or empty")
    return value
