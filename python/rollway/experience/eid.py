"""Ids of experiences."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollway.experience import Experience


def _suffix() -> str:
    return os.urandom(3).hex()


@dataclass
class EID:
    """Id of an experience: batch, task, run, step, and a unique suffix.

    >>> str(EID(batch=3, task=0, run=1, step=2, suffix="a1b2c3"))
    '3/0/1/2/a1b2c3'
    """

    batch: int | str = ""
    task: int | str = ""
    run: int = 0
    step: int = 0
    suffix: str = field(default_factory=_suffix)

    @property
    def uid(self) -> str:
        """Full id."""
        return f"{self.rid}/{self.step}/{self.suffix}"

    @property
    def sid(self) -> str:
        """Id of the step, over all runs of the task."""
        return f"{self.tid}/{self.step}"

    @property
    def rid(self) -> str:
        """Id of the run."""
        return f"{self.tid}/{self.run}"

    @property
    def tid(self) -> str:
        """Id of the task."""
        return f"{self.batch}/{self.task}"

    def __str__(self) -> str:
        return self.uid

    def to_dict(self) -> dict[str, Any]:
        """Returns the five parts by name."""
        return {
            "batch": self.batch,
            "task": self.task,
            "run": self.run,
            "step": self.step,
            "suffix": self.suffix,
        }


_GROUPS = {"task": "tid", "run": "rid", "step": "sid"}


def group_by(experiences: Iterable[Experience], by: str) -> dict[str, list[Experience]]:
    """Groups experiences by `task`, `run` or `step`, in order of first appearance."""
    if by not in _GROUPS:
        raise ValueError(f"cannot group by {by!r}; there is {', '.join(_GROUPS)}")
    groups: dict[str, list[Experience]] = {}
    for experience in experiences:
        groups.setdefault(getattr(experience.eid, _GROUPS[by]), []).append(experience)
    return groups
