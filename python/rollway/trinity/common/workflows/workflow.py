"""Tasks and base classes of workflows."""

from __future__ import annotations

import functools
import inspect
import logging
from abc import ABCMeta
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rollway import rewards
from rollway.errors import InvalidOutput, InvalidWorkflow
from rollway.models.base import RunModel
from rollway.status import Status
from rollway.task import Task as PlainTask
from rollway.trinity.common.config import FormatConfig, GenerationConfig
from rollway.trinity.common.experience import Experience, plain
from rollway.trinity.common.models.model import ModelWrapper
from rollway.trinity.common.rewards import REWARD_FUNCTIONS
from rollway.trinity.common.rewards.math_reward import MathBoxedRewardFn, MathRewardFn
from rollway.trinity.common.rewards.reward_fn import RewardFn
from rollway.trinity.utils.log import get_logger

__all__ = ["Metrics", "Status", "Task", "Workflow", "WorkflowBase"]

#: Metrics of a run.
Metrics = dict[str, float]

#: System prompt of `MathWorkflow`.
THINK_AND_ANSWER_PROMPT = (
    "You solve mathematical problems. Think first, then answer. Put your reasoning between <think> "
    "and </think>, and after it your final answer between <answer> and </answer>."
)

#: System prompt of `MathBoxedWorkflow`.
BOXED_PROMPT = "You solve mathematical problems. Put your final answer within \\boxed{}."


@dataclass(eq=False)
class Task(PlainTask):
    """A task of `rollway` whose `rollout_args` and `format_args` have attributes.

    `reward_fn` is a class: names are looked up in `REWARD_FUNCTIONS`.
    """

    rollout_args: Any = None
    format_args: Any = None
    run_id: int = 0

    def __post_init__(self) -> None:
        for name in ("workflow_args", "reward_fn_args", "index"):
            setattr(self, name, dict(getattr(self, name) or {}))
        self._adopt()

    def _adopt(self) -> None:
        self.rollout_args = GenerationConfig.of(self.rollout_args)
        self.format_args = FormatConfig.of(self.format_args)
        if isinstance(self.reward_fn, str):
            is_known = self.reward_fn in REWARD_FUNCTIONS.list()
            find = REWARD_FUNCTIONS.get if is_known else rewards.lookup
            self.reward_fn = find(self.reward_fn)

    @classmethod
    def of(cls, task: PlainTask, handle: RunModel | None = None) -> Task:
        """Returns the task with attributes, for the run of a handle."""
        made = task
        if not isinstance(task, cls):
            made = object.__new__(cls)
            made.__dict__.update(vars(task))
            made._adopt()  # type: ignore[attr-defined]
        if handle is not None:
            made.__dict__["_handle"] = handle
        return made  # type: ignore[return-value]

    @property
    def api_key(self) -> str | None:
        """Key of the run at the gateway; `None` outside of runs."""
        handle = self.__dict__.get("_handle")
        return None if handle is None else handle.api_key

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_handle"}


class _WorkflowType(ABCMeta):
    """Converts the arguments of workflows: tasks with attributes, models as `ModelWrapper`."""

    def __call__(
        cls,
        *args: Any,
        task: PlainTask,
        model: RunModel | ModelWrapper,
        auxiliary_models: list[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        wrapper = _wrapper(model)
        return super().__call__(
            *args,
            task=Task.of(task, wrapper._handle),
            model=wrapper,
            auxiliary_models=[_wrapper(one) for one in auxiliary_models or []] or None,
            **kwargs,
        )


def _wrapper(model: RunModel | ModelWrapper) -> ModelWrapper:
    return model if isinstance(model, ModelWrapper) else ModelWrapper(model)


class WorkflowBase(metaclass=_WorkflowType):
    """Base of all workflows: `task`, `model` and `logger`."""

    can_reset: bool = False
    can_repeat: bool = False
    is_async: bool = False

    def __init__(self, *, task: Task, model: ModelWrapper, auxiliary_models: Any = None) -> None:
        self.task = task
        self.model = model
        self.logger: logging.Logger = get_logger(f"trinity.{type(self).__name__}")
        self.run_id_base = 0
        self.repeat_times = 1

    def adopt_task(self, task: PlainTask) -> Task:
        """Returns a task for `reset`, with attributes; called by the runner."""
        return Task.of(task, self.model._handle)

    def reset(self, task: Task) -> None:
        """Prepares the instance for another task."""
        self.task = task

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        """Sets the number of runs of the next call, and the number of the first run."""
        self.repeat_times = repeat_times
        self.run_id_base = run_id_base


class Workflow(WorkflowBase):
    """Base class of workflows that return experiences.

    `auxiliary_models` are OpenAI clients, async ones if `is_async`; `auxiliary_model_wrappers` are
    handles of the same models. Both are `None` if there are no auxiliary models.
    """

    def __init__(
        self,
        *,
        task: Task,
        model: ModelWrapper,
        auxiliary_models: list[ModelWrapper] | None = None,
    ) -> None:
        super().__init__(task=task, model=model)
        self.auxiliary_model_wrappers = auxiliary_models
        self.auxiliary_models: list[Any] | None = None
        if auxiliary_models:
            self.auxiliary_models = [
                one.get_openai_async_client() if self.is_async else one.get_openai_client()
                for one in auxiliary_models
            ]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        defined = vars(cls)
        if "is_async" not in defined and "run_async" in defined and "run" not in defined:
            cls.is_async = True
        for name in ("run", "run_async"):
            method = vars(cls).get(name)
            if method is not None:
                setattr(cls, name, _returning_plain(method))

    @property
    def resettable(self) -> bool:
        """Name of `can_reset` in 2025."""
        return self.can_reset

    @property
    def repeatable(self) -> bool:
        """Name of `can_repeat` in 2025."""
        return self.can_repeat

    @property
    def asynchronous(self) -> bool:
        """Name of `is_async` in 2025."""
        return self.is_async

    def run(self) -> list[Experience]:
        """Performs one run of a blocking workflow."""
        raise NotImplementedError(f"{type(self).__name__} has no run()")

    async def run_async(self) -> list[Experience]:
        """Performs one run of an async workflow."""
        raise NotImplementedError(f"{type(self).__name__} has no run_async()")


def _returning_plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that returns experiences without tensors; calls within calls keep them."""
    if getattr(method, "__returns_plain__", False):
        return method

    def converted(self: Any, returned: Any) -> Any:
        if not isinstance(returned, (list, tuple)) or self.__dict__["_depth"] > 0:
            return returned
        if not self.task.is_eval and any(getattr(one, "has_no_tokens", False) for one in returned):
            raise InvalidOutput(
                f"model {self.model.model_name} reports no token ids, so its responses cannot be "
                "trained on: give its kind with `explorer.rollout_model.engine_type`"
            )
        return plain(returned)

    def enter(self: Any) -> None:
        self.__dict__["_depth"] = self.__dict__.get("_depth", 0) + 1

    def leave(self: Any) -> None:
        self.__dict__["_depth"] -= 1

    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def run_async(self: Any) -> Any:
            enter(self)
            try:
                returned = await method(self)
            finally:
                leave(self)
            return converted(self, returned)

        result: Any = run_async
    else:

        @functools.wraps(method)
        def run(self: Any) -> Any:
            enter(self)
            try:
                returned = method(self)
            finally:
                leave(self)
            return converted(self, returned)

        result = run
    result.__returns_plain__ = True
    return result


class MultiTurnWorkflow(Workflow):
    """Base class of workflows whose turns form one experience."""

    def _build(
        self,
        converted: Experience,
        reward: float,
        info: dict[str, Any] | None,
        truncate_status: str | None,
    ) -> Experience:
        info = dict(info or {})
        converted.reward = 0.0 if converted.truncate_status == "response_truncated" else reward
        converted.truncate_status = converted.truncate_status or truncate_status
        converted.info = {**converted.info, **info}
        converted.metrics = {
            name: float(value) for name, value in info.items() if isinstance(value, (int, float))
        }
        return converted

    def process_messages_to_experience(
        self,
        messages: list[dict[str, Any]],
        reward: float,
        info: dict[str, Any] | None = None,
        truncate_status: str | None = None,
    ) -> Experience:
        """Returns the turns of a conversation as one experience with a reward.

        Numbers in `info` become metrics. A truncated response gets reward 0.
        """
        converted = self.model.convert_messages_to_experience(messages)
        return self._build(converted, reward, info, truncate_status)

    async def process_messages_to_experience_async(
        self,
        messages: list[dict[str, Any]],
        reward: float,
        info: dict[str, Any] | None = None,
        truncate_status: str | None = None,
    ) -> Experience:
        """As `process_messages_to_experience`, awaitable."""
        converted = await self.model.convert_messages_to_experience_async(messages)
        return self._build(converted, reward, info, truncate_status)


class BaseSimpleWorkflow(Workflow):
    """Base class of workflows that ask once and apply the reward function of the task."""

    def __init__(
        self,
        *,
        task: Task,
        model: ModelWrapper,
        auxiliary_models: list[ModelWrapper] | None = None,
    ) -> None:
        self.reset(task)
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)

    def reset(self, task: Task) -> None:
        self.task = task
        self.format_args = task.format_args
        self.system_prompt = task.format_args.system_prompt
        self.reply_prefix = task.format_args.reply_prefix
        self.raw_task = task.raw_task
        self.task_desc = task.task_desc
        self.truth = task.truth
        self.reward_fn_args = task.reward_fn_args
        if not callable(task.reward_fn):
            raise InvalidWorkflow(
                "`reward_fn` must be a subclass of `RewardFn` or a function, not "
                f"{type(task.reward_fn).__name__}: name one with `default_reward_fn_type`"
            )
        if isinstance(task.reward_fn, type):
            self.reward_fn = task.reward_fn(**self.reward_fn_args)
        else:
            self.reward_fn = functools.partial(task.reward_fn, **self.reward_fn_args)

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        super().set_repeat_times(repeat_times, run_id_base)
        self.task.rollout_args.n = repeat_times

    @property
    def rollout_args(self) -> dict[str, Any]:
        """Sampling arguments of the current task."""
        return asdict(self.task.rollout_args)

    def format_messages(self) -> list[dict[str, Any]]:
        """Returns the initial messages."""
        messages: list[dict[str, Any]] = []
        if self.system_prompt:
            messages.append({"role": "system", "content": self.system_prompt})
        messages.append({"role": "user", "content": self.task_desc})
        if self.reply_prefix:
            messages.append({"role": "assistant", "content": self.reply_prefix})
        return messages

    def _rewarded(self, responses: list[Experience]) -> list[Experience]:
        for position, response in enumerate(responses):
            rewards = self._rewards(response.response_text or "")
            response.metrics = {**(response.metrics or {}), **rewards}
            response.reward = sum(rewards.values())
            response.eid.run = position + self.run_id_base
        return responses

    def _rewards(self, response: str) -> dict[str, float]:
        offered = {"response": response, "truth": self.truth, "prompt": self.task_desc}
        parameters = inspect.signature(self.reward_fn).parameters.values()
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            names = {one.name for one in parameters}
            offered = {name: value for name, value in offered.items() if name in names}
        returned = self.reward_fn(**offered)
        return dict(returned) if isinstance(returned, dict) else {"reward": float(returned)}


class SimpleWorkflow(BaseSimpleWorkflow):
    """Asks once, with all runs of the task as samples of one call."""

    can_reset = True
    can_repeat = True

    def run(self) -> list[Experience]:
        return self._rewarded(self.model.chat(self.format_messages(), **self.rollout_args))


class AsyncSimpleWorkflow(BaseSimpleWorkflow):
    """As `SimpleWorkflow`, async."""

    can_reset = True
    can_repeat = True
    is_async = True

    async def run_async(self) -> list[Experience]:
        replies = await self.model.chat_async(self.format_messages(), **self.rollout_args)
        return self._rewarded(replies)


class _Math(BaseSimpleWorkflow):
    default_reward_fn: type[RewardFn] = MathRewardFn
    default_system_prompt = THINK_AND_ANSWER_PROMPT

    def reset(self, task: Task) -> None:
        if task.reward_fn is None:
            task.reward_fn = self.default_reward_fn
        if task.reward_fn is self.default_reward_fn and task.format_args.system_prompt is None:
            task.format_args.system_prompt = self.default_system_prompt
        super().reset(task)


class MathWorkflow(_Math, SimpleWorkflow):
    """As `SimpleWorkflow`, for mathematics: asks for thoughts and answer in tags."""


class AsyncMathWorkflow(_Math, AsyncSimpleWorkflow):
    """As `MathWorkflow`, async."""


class MathBoxedWorkflow(_Math, SimpleWorkflow):
    """As `SimpleWorkflow`, for mathematics: asks for the answer in `\\boxed{}`."""

    default_reward_fn = MathBoxedRewardFn
    default_system_prompt = BOXED_PROMPT


class AsyncMathBoxedWorkflow(_Math, AsyncSimpleWorkflow):
    """As `MathBoxedWorkflow`, async."""

    default_reward_fn = MathBoxedRewardFn
    default_system_prompt = BOXED_PROMPT


class WorkflowWithRecording(WorkflowBase):
    """Base class of workflows whose experiences are the recorded turns of the model.

    `run_async` calls the model at `base_url` with `api_key`, calls `update_reward`, and returns
    metrics. `auxiliary_models` are handles.
    """

    is_async = True

    def __init__(
        self,
        *,
        task: Task,
        model: ModelWrapper,
        auxiliary_models: list[ModelWrapper] | None = None,
    ) -> None:
        super().__init__(task=task, model=model)
        self.auxiliary_models = auxiliary_models or []
        self.auxiliary_model_wrappers = self.auxiliary_models
        self._reward: float | None = None
        self._info: dict[str, Any] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        run = vars(cls).get("run_async")
        if run is not None:
            cls.run_async = _recorded(run)  # type: ignore[method-assign]

    @property
    def base_url(self) -> str | None:
        """Base URL of the trained model."""
        return self.model.base_url

    @property
    def api_key(self) -> str | None:
        """Key of this run at the gateway."""
        return self.model.api_key

    @property
    def model_name(self) -> str | None:
        """Name of the trained model."""
        return self.model.model_name

    async def run_async(self) -> Any:
        """Performs one run and returns metrics."""
        raise NotImplementedError(f"{type(self).__name__} has no run_async()")

    async def update_reward(self, reward: float, info: dict[str, Any] | None = None) -> None:
        """Sets the reward of all turns of this run, and entries of their `info`."""
        self._reward = float(reward)
        self._info = dict(info or {})


def _recorded(run: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `run_async` that returns the recorded turns instead of metrics."""

    @functools.wraps(run)
    async def run_async(self: WorkflowWithRecording) -> Any:
        self._reward, self._info = None, {}
        metrics = await run(self)
        if self.task.is_eval:
            return {"reward": self._reward or 0.0, **(metrics or {})}
        turns = await self.model.extract_experience_from_history_async()
        for turn in turns:
            turn.reward = self._reward
            turn.info = {**turn.info, **self._info}
            turn.metrics = {**turn.metrics, **(metrics or {})}
        return plain(turns)

    return run_async
