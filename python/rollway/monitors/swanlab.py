"""SwanLab."""

from __future__ import annotations

import os
import secrets
import string
from typing import Any

import swanlab

from . import secret

# What the ids of runs are made of, and how long they are.
LETTERS = string.ascii_lowercase + string.digits
LENGTH = 21


class Run:
    """A run of SwanLab."""

    def __init__(self, job: dict[str, Any]) -> None:
        args = dict(job["args"])
        if api_key := secret(args, "api_key"):
            os.environ["SWANLAB_API_KEY"] = api_key
        if name := args.pop("experiment_name", None):
            args["name"] = name
        if folder := args.pop("logdir", None):
            args["log_dir"] = folder
        fixed = {
            "project": job["project"],
            "name": job["name"],
            "group": job["group"] or None,
            "job_type": job["mode"],
            "log_dir": job["folder"],
            "config": job["config"],
        }
        mode = args.get("mode") or os.environ.get("SWANLAB_MODE") or "online"
        self.run = job["run"] or "".join(secrets.choice(LETTERS) for _ in range(LENGTH))
        if mode == "online":
            # Elsewhere nothing remembers a run: every start has one of its own.
            fixed.update(id=self.run, resume="allow")
        self.inner = swanlab.init(**{**fixed, **args})
        self.place = self.inner.url if mode == "online" else job["folder"]

    def log(self, role: str, step: int, at: float, numbers: dict[str, float]) -> None:
        swanlab.log(numbers, step=step)

    def close(self) -> None:
        swanlab.finish()


def open(job: dict[str, Any]) -> Run:
    """Starts a run, or resumes the existing run of the job."""
    return Run(job)
