"""What is called by name: registered ones, and `package.module:name`."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from rollway.errors import Error


def imported(name: str) -> Any:
    """Returns what is called `package.module:name`."""
    module, _, path = name.partition(":")
    value: Any = importlib.import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    return value


class Registry:
    """A list of things of one sort that were registered under names."""

    def __init__(self, sort: str, unknown: type[Error]) -> None:
        self._sort = sort
        self._unknown = unknown
        self._registered: dict[str, Any] = {}

    def register(self, name: str, source: Any) -> Any:
        """Registers something under a name, and returns it; one of the same name is replaced."""
        self._registered[name] = source
        return source

    def known(self) -> list[str]:
        """Returns the names that are registered."""
        return sorted(self._registered)

    def lookup(self, name: str) -> Any:
        """Returns what stands behind a registered name or `package.module:name`."""
        if ":" in name:
            return imported(name)
        if name in self._registered:
            return self._registered[name]
        known = self.known()
        near = difflib.get_close_matches(name, known, 1)
        there = f"; there is {', '.join(known) or 'none'}"
        hint = f"; did you mean `{near[0]}`?" if near else there
        raise self._unknown(
            f"no {self._sort} is registered as `{name}`{hint}", name=name, known=known
        )
