"""Registries of named objects, and lookup of `package.module:name`."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

from rollway.errors import Error


def imported(name: str) -> Any:
    """Imports the object called `package.module:name`."""
    module, _, path = name.partition(":")
    value: Any = importlib.import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    return value


class Registry:
    """Objects of one kind, by name."""

    def __init__(self, kind: str, unknown: type[Error]) -> None:
        self._kind = kind
        self._unknown = unknown
        self._registered: dict[str, Any] = {}
        self._references: dict[str, str] = {}

    def refer(self, references: Mapping[str, str]) -> None:
        """Adds names of objects that are imported at their first lookup."""
        self._references.update(references)

    def register(self, name: str, source: Any) -> Any:
        """Registers an object and returns it; replaces an object of the same name."""
        self._registered[name] = source
        return source

    def known(self) -> list[str]:
        """Returns the registered names, sorted."""
        return sorted({*self._registered, *self._references})

    def lookup(self, name: str) -> Any:
        """Returns the object of a registered name or of `package.module:name`."""
        if ":" in name:
            return imported(name)
        if name in self._registered:
            return self._registered[name]
        if name in self._references:
            return imported(self._references[name])
        module, dot, attribute = name.rpartition(".")
        if dot:
            # The form of Trinity-RFT.
            return imported(f"{module}:{attribute}")
        known = self.known()
        near = difflib.get_close_matches(name, known, 1)
        there = f"; there is {', '.join(known) or 'none'}"
        hint = f"; did you mean `{near[0]}`?" if near else there
        raise self._unknown(f"unknown {self._kind} `{name}`{hint}", name=name, known=known)
