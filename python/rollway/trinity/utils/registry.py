"""Registries of named classes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


class Registry:
    """Classes by name: registered ones, those of `default_mapping`, and `package.module.Class`.

    `on_register` is called with the name and the class of every registration.
    """

    def __init__(
        self,
        name: str,
        default_mapping: Mapping[str, str] | None = None,
        *,
        on_register: Callable[[str, Any], Any] | None = None,
    ) -> None:
        self._name = name
        self._modules: dict[str, Any] = {}
        self._default_mapping = dict(default_mapping or {})
        self._on_register = on_register

    @property
    def name(self) -> str:
        """Name of the registry."""
        return self._name

    @property
    def modules(self) -> dict[str, Any]:
        """Registered classes by name."""
        return self._modules

    def list(self) -> list[str]:
        """Returns the known names."""
        return sorted({*self._modules, *self._default_mapping})

    def register_module(
        self,
        module_name: str | None = None,
        module_cls: Any = None,
        force: bool = False,
        lazy: bool = False,
    ) -> Any:
        """Registers a class, directly or as a decorator:

            @WORKFLOWS.register_module("my_workflow")
            class MyWorkflow(Workflow): ...

        A second class of one name is refused unless `force` is true.
        """
        if not (module_name is None or isinstance(module_name, str)):
            raise TypeError(f"a name must be a string, not {type(module_name).__name__}")
        if module_cls is not None:
            self._register(module_name or module_cls.__name__, module_cls, force)
            return module_cls
        return lambda one: self.register_module(module_name, one, force)

    def _register(self, name: str, module: Any, force: bool) -> None:
        known = self._modules.get(name)
        is_same = known is not None and _path(known) == _path(module)
        if known is not None and not force and not is_same:
            raise KeyError(f"{name} is already registered in {self._name}")
        self._modules[name] = module
        if self._on_register is not None:
            self._on_register(name, module)

    def get(self, module_key: str | None) -> Any:
        """Returns the class of a name, `None` for `None`.

        Raises `ValueError` if the name is unknown, `ImportError` if its module cannot be imported.
        """
        if module_key is None:
            return None
        name = module_key
        if name in self._modules:
            return self._modules[name]
        path = self._default_mapping.get(name, name)
        if "." not in path and ":" not in path:
            raise ValueError(f"{name} is not registered in {self._name}: {', '.join(self.list())}")
        module, _, attribute = path.replace(":", ".").rpartition(".")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ImportError(f"{path} of {self._name} cannot be imported: {error}") from error
        self._modules[name] = found
        return found


def _path(module: Any) -> tuple[Any, Any]:
    return getattr(module, "__module__", None), getattr(module, "__qualname__", None)
