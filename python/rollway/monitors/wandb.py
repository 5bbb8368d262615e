"""Weights & Biases."""

from __future__ import annotations

import os
import secrets
from typing import Any

import wandb

from . import secret

# By which number curves are drawn: explorer and trainer count their own steps.
STEPS = {"explorer": "explorer_step", "trainer": "trainer_step"}

# Whose curves they are, by the beginning of their names.
CURVES = {
    "explorer": ["rollout", "eval", "bench", "experience_pipeline", "explorer", "time"],
    "trainer": ["trainer"],
}


class Run:
    """A run of `wandb`."""

    def __init__(self, job: dict[str, Any]) -> None:
        args = dict(job["args"])
        if base_url := args.pop("base_url", None):
            os.environ["WANDB_BASE_URL"] = base_url
        if api_key := secret(args, "api_key"):
            os.environ["WANDB_API_KEY"] = api_key
        self.run = job["run"] or secrets.token_hex(4)
        settings = {"console": "off", **args.pop("settings", {})}
        fixed = {
            "project": job["project"],
            "group": job["group"] or None,
            "name": job["name"],
            "job_type": job["mode"],
            "id": self.run,
            "resume": "allow",
            "dir": job["folder"],
            "config": job["config"],
            "settings": wandb.Settings(**settings),
        }
        self.inner = wandb.init(**{**fixed, **args})
        self.run = self.inner.id
        self.place = self.inner.url or os.path.dirname(self.inner.dir)
        for step in STEPS.values():
            self.inner.define_metric(step, hidden=True)
        for role, beginnings in CURVES.items():
            for beginning in beginnings:
                self.inner.define_metric(f"{beginning}/*", step_metric=STEPS[role])

    def log(self, role: str, step: int, at: float, numbers: dict[str, float]) -> None:
        self.inner.log({**numbers, STEPS[role]: step})

    def close(self) -> None:
        self.inner.finish()


def open(job: dict[str, Any]) -> Run:
    """Starts a run, or resumes the existing run of the job."""
    return Run(job)
