"""Workflows: user code that turns a task and a model into experiences."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from rollway._registry import Registry
from rollway.errors import InvalidWorkflow, UnknownWorkflow
from rollway.experience import Experience

if TYPE_CHECKING:
    from rollway.task import Task


def undefined(method: Any) -> Any:
    """Marks a method of a base class that a workflow has to define."""
    method.is_undefined = True
    return method


class Workflow:
    """Base class of workflows:

        class Solve(rw.Workflow):
            async def run_async(self):
                question = {"role": "user", "content": self.task.raw_task["question"]}
                reply = await self.model.chat([question])
                return [reply.experience]

    - `is_async`: calls `run_async`; otherwise `run`, in a separate thread.
    - `can_reset`: instances are reused for other tasks through `reset(task)`.
    - `can_repeat`: one call performs several runs, after `set_repeat_times`.

    A class that defines `run_async` and not `run` is async by default.
    """

    can_reset: bool = False
    can_repeat: bool = False
    is_async: bool = False

    def __init__(
        self, *, task: Task, model: Any, auxiliary_models: list[Any] | None = None
    ) -> None:
        self.task = task
        self.model = model
        self.auxiliary_models = auxiliary_models or []
        self.repeat_times = 1
        self.run_id_base = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        defined = vars(cls)
        if "is_async" not in defined and ("run_async" in defined) != ("run" in defined):
            cls.is_async = "run_async" in defined

    @property
    def rollout_args(self) -> dict[str, Any]:
        """Sampling arguments of the current task."""
        return self.task.rollout_args

    def reset(self, task: Task) -> None:
        """Prepares the instance for another task; the runner sets `self.task` before."""
        self.task = task

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        """Sets the number of runs of the next call, and the number of the first run."""
        self.repeat_times = repeat_times
        self.run_id_base = run_id_base

    @undefined
    def run(self) -> list[Experience]:
        """Performs one run of a blocking workflow."""
        raise NotImplementedError(f"{type(self).__name__} has no run()")

    @undefined
    async def run_async(self) -> list[Experience]:
        """Performs one run of an async workflow."""
        raise NotImplementedError(f"{type(self).__name__} has no run_async()")


class Executable:
    """Uniform interface of workflow classes and functions for runners."""

    def __init__(self, source: Any) -> None:
        self.source = source
        if inspect.isclass(source):
            self.is_class = True
            self.can_reset = bool(getattr(source, "can_reset", False))
            self.can_repeat = bool(getattr(source, "can_repeat", False))
            self.is_async = bool(getattr(source, "is_async", False))
            method = "run_async" if self.is_async else "run"
            found = getattr(source, method, None)
            if not callable(found) or getattr(found, "is_undefined", False):
                raise InvalidWorkflow(
                    f"{source.__qualname__} has no {method}(): define `async def run_async(self)`, "
                    "or `def run(self)` without `await`"
                )
        elif callable(source):
            self.is_class = self.can_reset = self.can_repeat = False
            self.is_async = _is_coroutine(source)
            self.takes_auxiliary = "auxiliary_models" in inspect.signature(source).parameters
        else:
            raise InvalidWorkflow(
                "a workflow is a class, a function, 'package.module:name' or a registered name, "
                f"not {type(source).__name__}"
            )

    @property
    def name(self) -> str:
        """Qualified name of the class or function."""
        return getattr(self.source, "__qualname__", type(self.source).__qualname__)

    def make(self, task: Task, model: Any, auxiliary_models: list[Any] | None = None) -> Any:
        """Returns an object with `run()` or `run_async()` for a task."""
        if self.is_class:
            return self.source(task=task, model=model, auxiliary_models=auxiliary_models)
        extra = {"auxiliary_models": auxiliary_models} if self.takes_auxiliary else {}
        return _Bound(self.source, task, model, extra)


class _Bound:
    """A function bound to its arguments."""

    __slots__ = ("_arguments", "_extra", "_function")

    def __init__(self, function: Any, task: Task, model: Any, extra: dict[str, Any]) -> None:
        self._function = function
        self._arguments = (task, model)
        self._extra = extra

    def run(self) -> Any:
        # Returns a coroutine if the function is async.
        return self._function(*self._arguments, **self._extra)

    run_async = run


def _is_coroutine(function: Any) -> bool:
    call = getattr(type(function), "__call__", None)
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or (
        not inspect.isroutine(function) and inspect.iscoroutinefunction(call)
    )


_registry = Registry("workflow", UnknownWorkflow)

#: Workflows of the compatibility package that have names in configurations.
_TRINITY = "rollway.trinity.common.workflows.workflow"
_registry.refer(
    {
        "async_simple_workflow": f"{_TRINITY}:AsyncSimpleWorkflow",
        "async_math_workflow": f"{_TRINITY}:AsyncMathWorkflow",
        "math_boxed_workflow": f"{_TRINITY}:MathBoxedWorkflow",
        "async_math_boxed_workflow": f"{_TRINITY}:AsyncMathBoxedWorkflow",
    }
)


@overload
def workflow(source: Callable[..., Any]) -> Callable[..., Any]: ...
@overload
def workflow(source: str) -> Callable[[Any], Any]: ...
def workflow(source: Any) -> Any:
    """Registers a workflow function or class under its own name or a given one.

    The function takes `(task, model)`, may be async, and returns experiences, or a reward: then the
    recorded turns of the model become the experiences:

        @rw.workflow
        async def solve(task, model):
            reply = await model.chat([{"role": "user", "content": task.raw_task["question"]}])
            return float(reply.text.strip() == task.raw_task["answer"])

        @rw.workflow("careful")
        async def solve_carefully(task, model): ...

    Only names in configurations need registration; `rw.Task(workflow=solve)` does not.
    """
    if isinstance(source, str):
        return lambda wrapped: register(source, wrapped)
    return register(getattr(source, "__name__", ""), source)


def register(name: str, source: Any) -> Any:
    """Registers a workflow and returns it; replaces a workflow of the same name."""
    if not name or ":" in name:
        raise InvalidWorkflow(f"{name!r} cannot be the name of a workflow")
    Executable(source)
    return _registry.register(name, source)


def lookup(name: str) -> Any:
    """Returns the workflow of a registered name or of `package.module:name`."""
    return _registry.lookup(name)


def known() -> list[str]:
    """Returns the registered names."""
    return _registry.known()


def resolve(source: Any) -> Executable:
    """Returns the `Executable` of a workflow object or name."""
    if source is None:
        raise InvalidWorkflow("the task has no workflow")
    return Executable(lookup(source) if isinstance(source, str) else source)
