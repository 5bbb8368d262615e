"""Tasks: what there is to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class GenerationConfig:
    """Sampling arguments with names; anything that is not set is left to the server."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int = -1
    logprobs: int | None = None
    max_tokens: int | None = None
    n: int = 1


def _arguments(value: Any) -> dict[str, Any]:
    """Sampling arguments as a dictionary of their own, whatever they were given as."""
    if value is None:
        return {}
    if type(value) is dict or isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, GenerationConfig):
        default = GenerationConfig()
        named = {f.name: getattr(value, f.name) for f in fields(value)}
        return {name: v for name, v in named.items() if v != getattr(default, name)}
    raise TypeError(
        f"rollout_args is a dictionary or a GenerationConfig, not {type(value).__name__}"
    )


def _dictionary(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if type(value) is not dict and not isinstance(value, Mapping):
        raise TypeError(f"{name} is a dictionary, not {type(value).__name__}")
    return dict(value)


@dataclass(eq=False)
class Task:
    """One item of work: a row of a dataset, what to do with it and how often.

    `workflow` is a class, a function, `"package.module:name"` or a registered name::

        rw.Task(workflow=solve, raw_task={"question": "1+1", "answer": "2"}, repeat_times=8)

    `batch_id` and `task_id` are filled in by whoever runs the task; in a workflow, `rollout_args`
    is that workflow's own copy.
    """

    workflow: Any = None
    repeat_times: int = 1
    raw_task: Any = None
    workflow_args: dict[str, Any] = field(default_factory=dict)
    rollout_args: dict[str, Any] = field(default_factory=dict)
    reward_fn: Any = None
    reward_fn_args: dict[str, Any] = field(default_factory=dict)
    format_args: dict[str, Any] = field(default_factory=dict)
    is_eval: bool = False
    index: dict[str, Any] = field(default_factory=dict)
    batch_id: int | str = ""
    task_id: int | str = ""

    def __post_init__(self) -> None:
        self.rollout_args = _arguments(self.rollout_args)
        for name in ("workflow_args", "reward_fn_args", "format_args", "index"):
            setattr(self, name, _dictionary(name, getattr(self, name)))

    @classmethod
    def restored(cls, workflow: Any, fields: dict[str, Any], **given: Any) -> Task:
        """Returns a task from fields of one that was checked when it was made."""
        task = object.__new__(cls)
        task.__dict__ = {
            "workflow": workflow,
            "repeat_times": 1,
            "raw_task": None,
            "workflow_args": {},
            "rollout_args": {},
            "reward_fn": None,
            "reward_fn_args": {},
            "format_args": {},
            "index": {},
            **fields,
            **given,
        }
        return task

    @property
    def task_desc(self) -> str | None:
        """The question of the row, if `format_args` names its `prompt_key`."""
        return self._of_row("prompt_key")

    @property
    def truth(self) -> str | None:
        """The answer of the row, if `format_args` names its `response_key`."""
        return self._of_row("response_key")

    def _of_row(self, key: str) -> Any:
        name = self.format_args.get(key)
        return self.raw_task.get(name) if name and isinstance(self.raw_task, Mapping) else None

    def to_dict(self) -> Any:
        """Returns the row."""
        return self.raw_task

    def to_workflow(self, model: Any, auxiliary_models: list[Any] | None = None) -> Any:
        """Returns an instance of the workflow for this task."""
        from rollway.workflow import resolve

        return resolve(self.workflow).make(self, model, auxiliary_models)

    def with_n(self, n: int) -> Task:
        """Returns a copy whose `rollout_args` ask for `n` samples a call."""
        other = object.__new__(Task)
        other.__dict__ = {**self.__dict__, "rollout_args": {**self.rollout_args, "n": n}}
        return other
