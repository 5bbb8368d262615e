"""Base classes of operators.

The pipeline passes experiences of `rollway`. Both classes wrap the method `process` of their
subclasses, so that it gets experiences with torch tensors and may return either kind.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from rollway.models.base import RunModel
from rollway.trinity.common.experience import Experience, plain, wrapped
from rollway.trinity.common.models.model import ModelWrapper


def _converting(process: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `process` for experiences of `rollway`."""

    def converted(answer: Any) -> Any:
        if isinstance(answer, tuple) and len(answer) == 2:
            return plain(answer[0]), answer[1]
        return answer

    if inspect.iscoroutinefunction(process):

        @functools.wraps(process)
        async def process_async(self: Any, exps: list[Any]) -> Any:
            return converted(await process(self, wrapped(exps)))

        return process_async

    @functools.wraps(process)
    def process_sync(self: Any, exps: list[Any]) -> Any:
        return converted(process(self, wrapped(exps)))

    return process_sync


class _Operator(ABC):
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        process = vars(cls).get("process")
        if callable(process) and not getattr(process, "__isabstractmethod__", False):
            cls.process = _converting(process)  # type: ignore[attr-defined]

    def set_auxiliary_model(self, models: dict[Any, list[RunModel]] | None = None) -> None:
        """Sets the auxiliary models, by position and by name.

        `auxiliary_model_wrappers` has handles, `auxiliary_models` has OpenAI clients: async ones
        if `process` is a coroutine function.
        """
        self.auxiliary_model_wrappers: dict[Any, list[ModelWrapper]] = {
            name: [_handle(one) for one in handles] for name, handles in (models or {}).items()
        }
        is_async = inspect.iscoroutinefunction(type(self).process)  # type: ignore[attr-defined]
        self.auxiliary_models = {
            name: [
                one.get_openai_async_client() if is_async else one.get_openai_client()
                for one in handles
            ]
            for name, handles in self.auxiliary_model_wrappers.items()
        }


def _handle(model: RunModel | ModelWrapper) -> ModelWrapper:
    return model if isinstance(model, ModelWrapper) else ModelWrapper(model)


class ExperienceOperator(_Operator):
    """An operator: gets the experiences of a step, returns those to keep, and metrics."""

    @abstractmethod
    def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, Any]]:
        """Returns the experiences to keep, and metrics."""

    def close(self) -> None:
        """Releases the resources of the operator."""


class ExperienceOperatorV1(_Operator):
    """An async operator with access to the auxiliary models."""

    async def prepare(self) -> None:
        """Called once before the first `process`."""

    @abstractmethod
    async def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, Any]]:
        """Returns the experiences to keep, and metrics."""

    async def close(self) -> None:
        """Releases the resources of the operator."""
