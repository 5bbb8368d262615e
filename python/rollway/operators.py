"""Pipeline operators in Python."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollway.errors import ConfigError
from rollway.experience import Experience
from rollway.models.base import Model
from rollway.worker import setup

#: Methods of operators that take the auxiliary models.
_TAKE_MODELS = ("set_auxiliary_models", "set_auxiliary_model")


class Operator:
    """Optional base class of operators; any class with `process` is accepted:

        @rw.operator("length_filter")
        class LengthFilter(rw.Operator):
            def __init__(self, max_length: int) -> None:
                self.max_length = max_length

            def process(self, experiences):
                kept = [one for one in experiences if one.response_length <= self.max_length]
                return kept, {"filtered": {"too_long": len(experiences) - len(kept)}}

    Methods may be coroutines. The pipeline calls them in its own thread, one after another;
    coroutines run in one event loop per operator. After an error or a crash the same experiences
    are processed again: results and the ids of derived experiences must be deterministic.

    Numeric metrics are reported. `filtered` counts dropped experiences by reason; `selector_metric`
    is the feedback for task selectors: `{taskset_id: {"indices": […], "values": […]}}`.
    """

    def prepare(self) -> Any:
        """Called once before the first `process`."""

    def process(self, experiences: list[Experience]) -> Any:
        """Returns the experiences to keep, and metrics."""
        raise NotImplementedError(f"{type(self).__name__} has no process()")

    def close(self) -> Any:
        """Releases the resources of `prepare`."""


_registry: dict[str, Any] = {}


def operator(source: Any) -> Any:
    """Registers an operator class under its own name or a given one."""
    if isinstance(source, str):
        return lambda wrapped: _register(source, wrapped)
    return _register(source.__name__, source)


def _register(name: str, source: Any) -> Any:
    if not name or ":" in name:
        raise ValueError(f"{name!r} cannot be the name of an operator")
    _check(name, source)
    _registry[name] = source
    return source


def registered() -> list[str]:
    """Returns the registered names."""
    return list(_registry)


def maker(auxiliary: Sequence[Sequence[Model]]) -> Callable[[str, str], Adapter]:
    """Returns the factory of operators; operators can request these auxiliary models."""
    return lambda name, args: Adapter(_lookup(name), json.loads(args), auxiliary)


def command_maker(folder: str | os.PathLike[str]) -> Callable[[str, str], Adapter]:
    """Returns the factory of the `rollway` command.

    Modules are found beside the configuration in `folder` and in the working directory.
    """
    setup.find_first([os.path.abspath(folder), os.getcwd()])

    def make(name: str, args: str) -> Adapter:
        source = _lookup(name)
        if any(hasattr(source, method) for method in _TAKE_MODELS):
            raise ConfigError(
                f"`{name}` needs auxiliary models, which operators get from `rw.Explorer` only: "
                "run the job with it"
            )
        return Adapter(source, json.loads(args), ())

    return make


def _lookup(name: str) -> Any:
    if ":" not in name:
        return _registry[name]
    module, _, path = name.partition(":")
    source: Any = importlib.import_module(module)
    for part in path.split("."):
        source = getattr(source, part)
    return _check(name, source)


def _check(name: str, source: Any) -> Any:
    if not callable(source) or not callable(getattr(source, "process", None)):
        raise ConfigError(
            f"`{name}` is not an operator: expected a class with process(experiences)"
        )
    return source


class Adapter:
    """Adapter from the engine's interface (payloads, counts) to an operator."""

    def __init__(
        self, source: Any, args: dict[str, Any], auxiliary: Sequence[Sequence[Model]]
    ) -> None:
        self._operator = source(**args)
        self._auxiliary = auxiliary
        self._loop: asyncio.AbstractEventLoop | None = None

    def prepare(self) -> None:
        """Prepares the operator; may be called again after an error."""
        for name in _TAKE_MODELS:
            take = getattr(self._operator, name, None)
            if take is not None:
                self._finish(take(self._models()))
                break
        self._call("prepare")

    def process(
        self, payload: bytes
    ) -> tuple[bytes, dict[str, float], dict[str, int], list[tuple[int, int, float, int]]]:
        """Runs the operator on the experiences of a payload."""
        answer = self._finish(self._operator.process(Experience.deserialize_many(payload)))
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(
                "process() has to return a pair of experiences and metrics, not "
                f"{type(answer).__name__}"
            )
        experiences, metrics = answer
        metrics = dict(metrics or {})
        reasons = metrics.pop("filtered", None) or {}
        if not isinstance(reasons, Mapping):
            raise TypeError("`filtered` among the metrics is a dictionary of counts by reason")
        dropped = {str(why): int(count) for why, count in reasons.items() if count}
        rates = _rates(metrics.pop("selector_metric", None) or {})
        numbers = {str(name): value for name, value in metrics.items() if _is_number(value)}
        numbers = {name: float(value) for name, value in numbers.items()}
        return Experience.serialize_many(list(experiences)), numbers, dropped, rates

    def close(self) -> None:
        """Closes the operator and its event loop."""
        try:
            self._call("close")
        finally:
            if self._loop is not None:
                self._loop.close()
                self._loop = None

    def _call(self, name: str) -> None:
        method = getattr(self._operator, name, None)
        if method is not None:
            self._finish(method())

    def _finish(self, answer: Any) -> Any:
        if not inspect.isawaitable(answer):
            return answer
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(_awaited(answer))

    def _models(self) -> dict[Any, list[Any]]:
        """Returns the auxiliary models by position and by name."""
        is_async = inspect.iscoroutinefunction(self._operator.process)
        models: dict[Any, list[Any]] = {}
        for position, engines in enumerate(self._auxiliary):
            handles = [engine.bind(is_async) for engine in engines]
            models[position] = handles
            if engines and engines[0].name:
                models.setdefault(engines[0].name, handles)
        return models


async def _awaited(answer: Any) -> Any:
    return await answer


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, (str, bytes))


def _rates(metric: Mapping[Any, Any]) -> list[tuple[int, int, float, int]]:
    rates = []
    for taskset, learned in metric.items():
        for index, value in zip(learned["indices"], learned["values"], strict=True):
            rates.append((int(taskset), int(index), float(value), 1))
    return rates
