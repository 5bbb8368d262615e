"""Configurations: every key has a default and is an attribute."""

from __future__ import annotations

import difflib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from rollway import _rollway
from rollway.errors import ConfigError


class Section:
    """A part of a configuration: keys as attributes; a key that does not exist is an error."""

    def __init__(self, path: str, values: Mapping[str, Any], is_open: bool = False) -> None:
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_open", is_open)
        object.__setattr__(self, "_values", {})
        for key, value in values.items():
            self._values[key] = _wrapped(_join(path, key), value)

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        try:
            return self._values[key]
        except KeyError:
            raise AttributeError(self._unknown(key)) from None

    def __setattr__(self, key: str, value: Any) -> None:
        if key not in self._values and not self._open:
            raise AttributeError(self._unknown(key))
        here = self._values.get(key)
        if isinstance(here, Section) and isinstance(value, Mapping) and not here._open:
            for name, item in value.items():
                setattr(here, name, item)
            return
        self._values[key] = value

    def __delattr__(self, key: str) -> None:
        raise AttributeError(f"{_join(self._path, key)} cannot be deleted; every key has a value")

    def _unknown(self, key: str) -> str:
        near = difflib.get_close_matches(key, self._values, 1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        return f"there is no key `{_join(self._path, key)}`{hint}"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, key, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Section) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.to_dict()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _section, (self._path, self.to_dict(), self._open)

    def to_dict(self) -> dict[str, Any]:
        """Returns the section with every key."""
        return {key: _unwrapped(value) for key, value in self._values.items()}


class Config(Section):
    """The configuration of a job::

        config = rw.Config()
        config.explorer.max_timeout = 5
        config = rw.Config.load("config.yaml")
        config = rw.Config.from_dict({"explorer": {"runner_per_model": 4}})
        config.check()

    Values are looked at when the configuration is checked or used; `ConfigError` names every key
    that is wrong, its line, and the likely meaning.
    """

    #: The folder of the file that it was read from; none if there was none.
    folder: str | None = None

    def __init__(self) -> None:
        super().__init__("", json.loads(_rollway.config_default()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Config:
        """Reads a YAML file."""
        config = cls._of(*_rollway.config_load(os.fspath(path)))
        # Modules that it names may lie beside it.
        object.__setattr__(config, "folder", os.path.dirname(os.path.abspath(path)))
        return config

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """Takes a dictionary with the keys of a YAML file."""
        return cls._of(*_rollway.config_read(_text(values)))

    @classmethod
    def _of(cls, text: str, told: list[str]) -> Config:
        for warning in told:
            warnings.warn(warning, UserWarning, stacklevel=3)
        config = cls.__new__(cls)
        Section.__init__(config, "", json.loads(text))
        return config

    def check(self) -> list[str]:
        """Checks every value and the rules between keys; returns what may surprise."""
        return _rollway.config_check(self.to_json())

    def changed(self) -> dict[str, Any]:
        """Returns the keys that are not as they would be if nobody had set them."""
        return _changed(self.to_dict(), json.loads(_rollway.config_default()))

    def to_json(self) -> str:
        """Returns the configuration as JSON."""
        return _text(self.to_dict())

    def __reduce__(self) -> tuple[Any, ...]:
        return Config.from_dict, (self.to_dict(),)


def _text(values: Any) -> str:
    try:
        return json.dumps(_unwrapped(values))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a value of the configuration is no plain data: {error}") from None


def _changed(values: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    changed = {}
    for key, value in values.items():
        here = usual.get(key)
        if isinstance(value, dict) and isinstance(here, dict):
            value = _changed(value, here)
            if not value:
                continue
        elif key in usual and value == here:
            continue
        changed[key] = value
    return changed


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


#: Sections whose keys are the user's own.
_OPEN = ("env_vars", "monitor_args", "workflow_args", "rollout_args", "reward_fn_args", "kwargs")


def _wrapped(path: str, value: Any) -> Any:
    if isinstance(value, dict) and value and path.rpartition(".")[2] not in _OPEN:
        return Section(path, value)
    return value


def _section(path: str, values: dict[str, Any], is_open: bool) -> Section:
    return Section(path, values, is_open)


def _unwrapped(value: Any) -> Any:
    if isinstance(value, Section):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [_unwrapped(item) for item in value]
    if isinstance(value, dict):
        return {key: _unwrapped(item) for key, item in value.items()}
    return value
