"""MLflow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from . import secret

# What the server takes in one request, and in the value of a parameter.
METRICS_AT_ONCE = 500
PARAMS_AT_ONCE = 100
PARAM_LENGTH = 500


class Run:
    """A run of MLflow."""

    def __init__(self, job: dict[str, Any]) -> None:
        args = dict(job["args"])
        if username := args.pop("username", None):
            os.environ["MLFLOW_TRACKING_USERNAME"] = username
        if password := secret(args, "password"):
            os.environ["MLFLOW_TRACKING_PASSWORD"] = password
        if token := secret(args, "token"):
            os.environ["MLFLOW_TRACKING_TOKEN"] = token
        self.client: Any = MlflowClient(tracking_uri=args.pop("uri", None))
        experiment = args.pop("experiment", job["project"])
        name = args.pop("run_name", job["name"])
        if args:
            raise ValueError(f"MLflow has no argument {', '.join(map(repr, args))}")
        existing = self.existing(job["run"])
        if existing is None:
            tags = {"group": job["group"], "mode": job["mode"]}
            tags = {key: value for key, value in tags.items() if value}
            existing = self.client.create_run(self.experiment(experiment), run_name=name, tags=tags)
            self.describe(existing.info.run_id, job["config"])
        self.run: str = existing.info.run_id
        where = f"experiment {experiment}, run {self.run}"
        self.place = f"{where} at {self.client.tracking_uri}"

    def existing(self, run: str | None) -> Any:
        """Resumes the existing run of the job, if it still exists."""
        if run is None:
            return None
        try:
            existing = self.client.get_run(run)
        except MlflowException:
            return None
        if existing.info.lifecycle_stage != "active":
            return None
        self.client.update_run(run, status="RUNNING")
        return existing

    def experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        return found.experiment_id if found is not None else self.client.create_experiment(name)

    def describe(self, run: str, config: Any) -> None:
        params = [Param(key, str(value)[:PARAM_LENGTH]) for key, value in flat(config)]
        for first in range(0, len(params), PARAMS_AT_ONCE):
            self.client.log_batch(run, params=params[first : first + PARAMS_AT_ONCE])

    def log(self, role: str, step: int, at: float, numbers: dict[str, float]) -> None:
        millis = int(at * 1000)
        metrics = [Metric(name_of(key), value, millis, step) for key, value in numbers.items()]
        for first in range(0, len(metrics), METRICS_AT_ONCE):
            self.client.log_batch(self.run, metrics=metrics[first : first + METRICS_AT_ONCE])
        self.client.log_batch(self.run, tags=[RunTag(f"{role}_step", str(step))])

    def close(self) -> None:
        self.client.set_terminated(self.run)


def name_of(key: str) -> str:
    """Returns a name that MLflow takes: `mean@8` has a letter that it does not."""
    allowed = (it if it.isalnum() or it in "_-. :/" else "_" for it in key.replace("@", "_at_"))
    return "".join(allowed)


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Returns every value of a configuration with its whole name."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{prefix}.{key}" if prefix else key)
    elif value is not None and value != []:
        yield prefix, value


def open(job: dict[str, Any]) -> Run:
    """Starts a run, or resumes the existing run of the job."""
    return Run(job)
