"""Configurations with the names of Trinity-RFT."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rollway import config as rollway_config
from rollway.task import GenerationConfig as _GenerationConfig

__all__ = ["Config", "FormatConfig", "GenerationConfig", "OperatorConfig", "load_config"]


class _Fields:
    """Fields of a data class as a mapping, without those that are not set."""

    def keys(self) -> Iterator[str]:
        """Names of the set fields."""
        fields: Any = dataclasses.fields(self)  # type: ignore[arg-type]
        return iter([one.name for one in fields if self._is_set(one)])

    def _is_set(self, one: dataclasses.Field[Any]) -> bool:
        return getattr(self, one.name) != one.default

    def __getitem__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(self, name):
            raise KeyError(name)
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a field; the default if it is not there or `None`."""
        value = getattr(self, name, None)
        return default if value is None else value

    @classmethod
    def of(cls, values: Any) -> Any:
        """Returns an instance for a dictionary; further keys become further fields."""
        if isinstance(values, cls):
            return values
        values = dict(values or {})
        known = {one.name for one in dataclasses.fields(cls)}  # type: ignore[arg-type]
        more = [(name, Any, field(default=None)) for name in values if name not in known]
        kind = dataclasses.make_dataclass(cls.__name__, more, bases=(cls,)) if more else cls
        return kind(**values)


@dataclass
class GenerationConfig(_Fields, _GenerationConfig):
    """Sampling arguments of a task as attributes: `task.rollout_args.n`.

    `dataclasses.asdict` and `**task.rollout_args` work as well.
    """


@dataclass
class FormatConfig(_Fields):
    """Names of the fields of rows."""

    prompt_key: str = "prompt"
    response_key: str = "response"
    messages_key: str | None = None
    tools_key: str | None = None
    image_key: str | None = None
    video_key: str | None = None
    system_prompt_key: str | None = None
    system_prompt: str | None = None
    reply_prefix: str | None = None
    workflow_key: str = ""
    reward_fn_key: str = ""
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    label_key: str = "label"
    solution_key: str = "solution"
    reward_key: str = "reward"
    chat_template: str = ""
    enable_concatenated_multi_turn: bool = False


@dataclass
class OperatorConfig:
    """Name and arguments of an operator."""

    name: str = ""
    args: dict[str, Any] = field(default_factory=dict)


class Config(rollway_config.Config):
    """`rollway.Config` with the methods of Trinity-RFT."""

    def check_and_update(self) -> Config:
        """Checks all values and the rules between keys; raises `ConfigError`.

        Values that depend on others are derived where they are used, so nothing is changed.
        Returns the configuration.
        """
        self.check()
        return self

    def save(self, config_path: str | os.PathLike[str]) -> None:
        """Writes the keys that differ from the defaults as a YAML file."""
        with open(config_path, "w", encoding="utf-8") as file:
            # JSON is YAML.
            file.write(rollway_config._text(self.changed()) + "\n")

    def __reduce__(self) -> tuple[Any, ...]:
        return Config.from_dict, (self.to_dict(),)


def load_config(config_path: str | os.PathLike[str]) -> Config:
    """Reads a YAML file of Trinity-RFT; keys without effect are reported as warnings.

    `rollway migrate FILE` lists them.
    """
    return Config.load(config_path)  # type: ignore[return-value]
