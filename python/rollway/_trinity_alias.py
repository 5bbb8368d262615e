"""Import of `trinity` as `rollway.trinity`, where Trinity-RFT itself is not installed."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

#: Name of Trinity-RFT's package, and of the package that stands for it.
ALIAS, TARGET = "trinity", "rollway.trinity"


class _Loader(importlib.abc.Loader):
    """Returns the module of another name; both names share one module object."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._spec: importlib.machinery.ModuleSpec | None = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._target)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has replaced it by the spec of the alias.
        module.__spec__ = self._spec


class _Finder(importlib.abc.MetaPathFinder):
    """Finds `trinity` and its modules, unless Trinity-RFT is installed.

    It comes before the finder of files, which would load the modules a second time.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == ALIAS:
            installed = importlib.machinery.PathFinder.find_spec(ALIAS)
            # A folder without `__init__.py` has no loader; it is not Trinity-RFT.
            if installed is not None and installed.loader is not None:
                return None
        elif not name.startswith(f"{ALIAS}.") or not _is_alias(sys.modules.get(ALIAS)):
            return None
        real = TARGET + name[len(ALIAS) :]
        try:
            found = importlib.util.find_spec(real)
        except ModuleNotFoundError:
            return None
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(name, _Loader(real), is_package=is_package)


def _is_alias(module: ModuleType | None) -> bool:
    return getattr(module, "__name__", None) == TARGET


def install() -> None:
    """Makes `import trinity` work; an installed Trinity-RFT has precedence."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
