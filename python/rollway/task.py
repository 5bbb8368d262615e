"""Tasks: dataset rows with their workflow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from rollway.workflow import resolve


@dataclass
class GenerationConfig:
    """Named sampling arguments; the server decides those that are not set."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int = -1
    logprobs: int | None = None
    max_tokens: int | None = None
    n: int = 1


def _arguments(value: Any) -> dict[str, Any]:
    """Returns sampling arguments as a new dictionary."""
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


def _parsed(value: Any) -> Any:
    """Parses text that is JSON: columnar files store lists and objects as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _without_nulls(value: Any) -> Any:
    """Removes null members: columnar files have every member in every object."""
    if isinstance(value, Mapping):
        return {
            name: _without_nulls(member) for name, member in value.items() if member is not None
        }
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def text_of(value: Any) -> str:
    """Returns a value as text."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError):
        return str(value)


@dataclass(eq=False)
class Task:
    """One dataset row, its workflow and the number of runs.

    `workflow` is a class, a function, `"package.module:name"` or a registered name:

        rw.Task(workflow=solve, raw_task={"question": "1+1", "answer": "2"}, repeat_times=8)

    The scheduler sets `batch_id` and `task_id`. A workflow gets its own copy of `rollout_args`.
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

    if not TYPE_CHECKING:  # type checkers refuse items of a task by themselves
        __iter__ = None

        def __getitem__(self, key: Any) -> Any:
            raise TypeError(f"a Task has no items; its row has: task.raw_task[{key!r}]")

    def __post_init__(self) -> None:
        self.rollout_args = _arguments(self.rollout_args)
        for name in ("workflow_args", "reward_fn_args", "format_args", "index"):
            setattr(self, name, _dictionary(name, getattr(self, name)))

    @classmethod
    def restored(cls, workflow: Any, fields: dict[str, Any], **given: Any) -> Task:
        """Builds a task from already checked fields."""
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
    def task_desc(self) -> Any:
        """Question of the row: field `prompt`, or the `prompt_key` of `format_args`."""
        return self._of_row("prompt_key", "prompt")

    @property
    def truth(self) -> Any:
        """Expected answer of the row: field `response`, or the `response_key` of `format_args`."""
        return self._of_row("response_key", "response")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Initial messages: system prompt and question, or the row's messages."""
        listed = self._of_row("messages_key")
        initial = self.task_desc if listed is None else _parsed(listed)
        if initial is None:
            return []
        messages = (
            initial
            if isinstance(initial, list)
            else [{"role": "user", "content": text_of(initial)}]
        )
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise ValueError(f"a message has no role: {message!r}")
        messages = [_without_nulls(message) for message in messages]
        system = self._of_row("system_prompt_key")
        system = self.format_args.get("system_prompt") if system is None else system
        if system is None or not messages or messages[0]["role"] == "system":
            return messages
        return [{"role": "system", "content": text_of(system)}, *messages]

    @property
    def tools(self) -> Any:
        """Tool definitions of the row, if `format_args` has a `tools_key`."""
        tools = self._of_row("tools_key")
        return None if tools is None else _without_nulls(_parsed(tools))

    def _of_row(self, key: str, default: str | None = None) -> Any:
        name = self.format_args.get(key, default)
        return self.raw_task.get(name) if name and isinstance(self.raw_task, Mapping) else None

    def to_dict(self) -> Any:
        """Returns the row."""
        return self.raw_task

    def to_workflow(self, model: Any, auxiliary_models: list[Any] | None = None) -> Any:
        """Returns an instance of the workflow for this task."""
        return resolve(self.workflow).make(self, model, auxiliary_models)

    def with_n(self, n: int) -> Task:
        """Returns a copy whose `rollout_args` request `n` samples per call."""
        other = object.__new__(Task)
        other.__dict__ = {**self.__dict__, "rollout_args": {**self.rollout_args, "n": n}}
        return other
