"""Configurations: keys as attributes, with defaults."""

from __future__ import annotations

import difflib
import functools
import itertools
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from rollway import _rollway
from rollway.errors import ConfigError


class Section:
    """A section of a configuration: keys are attributes; unknown keys are errors."""

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

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.to_dict()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _section, (self._path, self.to_dict(), self._open)

    def to_dict(self) -> dict[str, Any]:
        """Returns all keys and values."""
        return {key: _unwrapped(value) for key, value in self._values.items()}


class Config(Section):
    """The configuration of a job:

        config = rw.Config()
        config.explorer.max_timeout = 5
        config = rw.Config.load("config.yaml")
        config = rw.Config.from_dict({"explorer": {"runner_per_model": 4}})
        config.check()

    Values are checked by `check()` and when the configuration is used; `ConfigError` names every
    invalid key, its line, and a suggestion.
    """

    #: Folder of the file; `None`: not read from a file.
    folder: str | None = None

    def __init__(self) -> None:
        super().__init__("", _defaults())

    @property
    def ray_namespace(self) -> str:
        """Ray namespace of the job: `cluster.namespace`, as Trinity-RFT calls it."""
        return self.cluster.namespace or f"{self.project}/{self.name}"

    @property
    def job_dir(self) -> str:
        """Folder of the job."""
        root = self.checkpoint_root_dir or "checkpoints"
        return os.path.abspath(os.path.join(root, self.project, self.group, self.name))

    def __setattr__(self, key: str, value: Any) -> None:
        if key == "ray_namespace":
            self.cluster.namespace = value
        else:
            super().__setattr__(key, value)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Config:
        """Reads a YAML file."""
        config = cls._from_json(*_rollway.config_load(os.fspath(path)))
        # Modules that the configuration names are also searched there.
        object.__setattr__(config, "folder", os.path.dirname(os.path.abspath(path)))
        return config

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """Builds a configuration from a dictionary with the keys of a YAML file."""
        if isinstance(values, Mapping) and "name" not in values:
            values = {**values, "name": _default_name()}
        return cls._from_json(*_rollway.config_read(_text(values)))

    @classmethod
    def _from_json(cls, text: str, messages: list[str]) -> Config:
        for warning in messages:
            warnings.warn(warning, UserWarning, stacklevel=3)
        config = cls.__new__(cls)
        Section.__init__(config, "", json.loads(text))
        return config

    def check(self) -> list[str]:
        """Checks all values and the rules between keys; returns warnings."""
        return _rollway.config_check(self.to_json())

    def changed(self) -> dict[str, Any]:
        """Returns the keys whose values differ from the defaults."""
        return _changed(self.to_dict(), _defaults())

    def to_json(self) -> str:
        """Returns the configuration as JSON."""
        return _text(self.to_dict())

    def __reduce__(self) -> tuple[Any, ...]:
        return Config.from_dict, (self.to_dict(),)


def _defaults() -> dict[str, Any]:
    values: dict[str, Any] = json.loads(_rollway.config_default())
    return {**values, "name": _default_name()}


#: Numbers of the default names of this process.
_default_names = itertools.count()


@functools.cache
def _default_name() -> str:
    """Returns the name of jobs of this process that are not named: script, time and process id.

    A script that is run again, or another script of the same folder, gets a job folder of its own.
    The next configuration after a finished job, such as of a notebook cell that is run again, gets
    another name.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    stem = os.path.splitext(os.path.basename(script))[0] if script else "python"
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", stem).strip("._") or "python"
    number = next(_default_names)
    suffix = f"-{number}" if number else ""
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}{suffix}"


def job_finished(name: str) -> None:
    """Gives later configurations another default name if the finished job had the current one."""
    if name == _default_name():
        _default_name.cache_clear()


def _text(values: Any) -> str:
    try:
        return json.dumps(_unwrapped(values))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"configuration values must be plain data: {error}") from None


def _changed(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    changed = {}
    for key, value in values.items():
        here = defaults.get(key)
        if isinstance(value, dict) and isinstance(here, dict):
            value = _changed(value, here)
            if not value:
                continue
        elif key in defaults and value == here:
            continue
        changed[key] = value
    return changed


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


#: Sections with user-defined keys.
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
