"""Built-in workflows, as classes that can be subclassed.

`simple_workflow` sends the question of the row once. `math_workflow` adds a prompt that asks for a
boxed answer. `multi_turn_workflow` continues until the answer is right.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from rollway import _registry
from rollway.errors import InvalidOutput, InvalidWorkflow
from rollway.models.base import Reply
from rollway.rewards import RewardEvaluator
from rollway.stages import REWARDING, stage
from rollway.task import Task
from rollway.workflow import Workflow, register

#: System prompt of `math_workflow` if the format has none.
BOXED = (
    "You solve mathematical problems. Think step by step, and put your final answer "
    "within \\boxed{}."
)

#: Default feedback of `multi_turn_workflow` to a wrong answer.
AGAIN = "That is not right yet. Look for the mistake, and answer again."


class SimpleWorkflow(Workflow):
    """Sends the messages of the row to the model once and computes the reward.

    Sampling follows `rollout_args`, the reward `reward_fn` with `reward_fn_args`. Subclasses may
    override `format_messages` and `compute_reward`.
    """

    can_reset = True
    is_async = True

    #: Reward function of tasks without one.
    default_reward_fn: Any = None
    #: System prompt if the format has none.
    default_system_prompt: str | None = None

    def __init__(
        self, *, task: Task, model: Any, auxiliary_models: list[Any] | None = None
    ) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.reset(task)

    @classmethod
    def check(cls, task: Task) -> None:
        """Raises if tasks with these arguments cannot run, independent of their rows."""
        cls._evaluator_of(task)

    @classmethod
    def _evaluator_of(cls, task: Task) -> RewardEvaluator | None:
        """Returns the reward function of a task; `None`: the class overrides `compute_reward`."""
        reward_fn = cls.default_reward_fn if task.reward_fn is None else task.reward_fn
        if reward_fn is None and cls.compute_reward is not SimpleWorkflow.compute_reward:
            return None
        return RewardEvaluator(reward_fn, task.reward_fn_args)

    def reset(self, task: Task) -> None:
        self.task = task
        self._evaluator = self._evaluator_of(task)

    def format_messages(self) -> list[dict[str, Any]]:
        """Returns the initial messages."""
        messages = self.task.messages
        if not messages:
            raise InvalidWorkflow("the task has no prompt: its row has no prompt and no messages")
        if self.default_system_prompt and messages[0].get("role") != "system":
            return [{"role": "system", "content": self.default_system_prompt}, *messages]
        return messages

    async def ask(self, messages: list[dict[str, Any]]) -> Reply:
        """Sends messages to the model with the sampling arguments and tools of the task."""
        tools = {"tools": self.task.tools} if self.task.tools else {}
        return await self.model.chat_async(messages, **{**tools, **self.rollout_args})

    async def compute_reward(self, reply: Reply) -> dict[str, float]:
        """Returns the `reward` of a reply, and other numbers that become metrics."""
        evaluator = self._evaluator or RewardEvaluator(self.task.reward_fn)
        return await evaluator(reply.text, self.task, self.auxiliary_models)

    async def run_async(self) -> Any:
        reply = await self.ask(self.format_messages())
        async with stage(REWARDING):
            return await self.compute_reward(reply)


class MathWorkflow(SimpleWorkflow):
    """As `simple_workflow`, for mathematics: asks for a boxed answer and compares its value."""

    default_reward_fn = "math_reward"
    default_system_prompt = BOXED


class MultiTurnWorkflow(SimpleWorkflow):
    """Repeats until the answer is right, at most `max_turns` times; all turns form one chain.

    `workflow_args`:

    - `max_turns` (3): maximum number of turns.
    - `feedback`: response to a wrong answer: a text, or a function as an object or as
      `package.module:name`. The function takes the answer, and those of `reward`, `turn` (from 1),
      `messages` and `task` for which it has parameters; it may be async. It returns a text, a
      message, a list of messages, or `None` to end the run.
    - `stop_at` (1.0): minimum reward of a right answer.
    - `turn_discount` (1.0): factor of the reward for every turn after the first.

    Without a reward function, `feedback` is the environment: it returns a pair of the next messages
    (or `None`) and the reward so far.
    """

    @classmethod
    def check(cls, task: Task) -> None:
        super().check(task)
        cls._turns_of(task)

    @classmethod
    def _evaluator_of(cls, task: Task) -> RewardEvaluator | None:
        if task.reward_fn is None and cls.default_reward_fn is None:
            return None
        return super()._evaluator_of(task)

    @classmethod
    def _turns_of(cls, task: Task) -> _Turns:
        overrides = (
            cls.compute_reward is not SimpleWorkflow.compute_reward
            or cls.feedback is not MultiTurnWorkflow.feedback
        )
        needs_feedback = cls._evaluator_of(task) is None and not overrides
        return _Turns(task.workflow_args, needs_feedback)

    def reset(self, task: Task) -> None:
        super().reset(task)
        self._turns = self._turns_of(task)

    async def feedback(
        self, reply: Reply, turn: int, messages: list[dict[str, Any]]
    ) -> tuple[Any, dict[str, float]]:
        """Computes the reward of a reply and returns the feedback; `None`: the run ends."""
        turns = self._turns
        overrides = type(self).compute_reward is not SimpleWorkflow.compute_reward
        has_reward = self._evaluator is not None or overrides
        rewards = await self.compute_reward(reply) if has_reward else {}
        if has_reward and rewards["reward"] >= turns.stop_at:
            return None, rewards
        if not callable(turns.feedback):
            return turns.feedback, rewards
        offered = {
            "reward": rewards.get("reward"),
            "turn": turn,
            "messages": messages,
            "task": self.task,
        }
        next_messages = turns.feedback(
            reply.text, **{name: offered[name] for name in turns.offered}
        )
        next_messages = await next_messages if inspect.isawaitable(next_messages) else next_messages
        if has_reward:
            if isinstance(next_messages, tuple):
                raise InvalidOutput(
                    "feedback returned a pair of messages and a reward, but the task has a reward "
                    "function: return the messages only, or configure no reward function"
                )
            return next_messages, rewards
        if not isinstance(next_messages, tuple) or len(next_messages) != 2:
            raise InvalidOutput(
                "the task has no reward function, so feedback must return a pair of the next "
                f"messages and the reward, not {type(next_messages).__name__}"
            )
        return next_messages[0], {"reward": float(next_messages[1])}

    async def run_async(self) -> Any:
        messages = list(self.format_messages())
        turn = 0
        while True:
            turn += 1
            reply = await self.ask(messages)
            messages.append(_answer(reply))
            async with stage(REWARDING):
                next_messages, rewards = await self.feedback(reply, turn, messages)
            if next_messages is None or turn >= self._turns.max_turns:
                break
            messages.extend(_messages(next_messages))
        reward = rewards["reward"] * self._turns.turn_discount ** (turn - 1)
        return {**rewards, "reward": reward, "turns": turn}


class _Turns:
    """Arguments of a multi-turn workflow."""

    def __init__(self, given: Mapping[str, Any], needs_feedback: bool) -> None:
        self.max_turns = _number("max_turns", given.get("max_turns", 3), 1)
        if self.max_turns != int(self.max_turns):
            raise InvalidWorkflow(f"max_turns is a whole number, not {self.max_turns!r}")
        self.stop_at = _number("stop_at", given.get("stop_at", 1.0))
        self.turn_discount = _number("turn_discount", given.get("turn_discount", 1.0), 0)
        self.feedback = given.get("feedback", AGAIN)
        if isinstance(self.feedback, str) and _is_reference(self.feedback):
            self.feedback = _registry.imported(self.feedback)
        if needs_feedback and not callable(self.feedback):
            raise InvalidWorkflow(
                "the task has no reward: set a reward function, or a feedback function that "
                "returns the reward too"
            )
        self.offered: list[str] = []
        if callable(self.feedback):
            parameters = inspect.signature(self.feedback).parameters
            offered = ("reward", "turn", "messages", "task")
            self.offered = [name for name in offered if name in parameters]
        elif not isinstance(self.feedback, (str, Mapping)):
            raise InvalidWorkflow(f"feedback is a text or a function, not {self.feedback!r}")


def _number(name: str, value: Any, least: float | None = None) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or (least is not None and value < least):
        at_least = "" if least is None else f" of at least {least}"
        raise InvalidWorkflow(f"{name} is a number{at_least}, not {value!r}")
    return value


def _is_reference(text: str) -> bool:
    """Returns whether a text is `package.module:name`, not a sentence with a colon."""
    module, colon, path = text.partition(":")
    parts = [*module.split("."), *path.split(".")]
    return bool(colon) and all(part.isidentifier() for part in parts)


def _answer(reply: Reply) -> dict[str, Any]:
    """Returns a reply as an assistant message, including tool calls."""
    if reply.messages:
        return dict(reply.messages[-1])
    return {"role": "assistant", "content": reply.text}


def _messages(next_messages: Any) -> list[dict[str, Any]]:
    if isinstance(next_messages, str):
        return [{"role": "user", "content": next_messages}]
    if isinstance(next_messages, Mapping):
        return [dict(next_messages)]
    if isinstance(next_messages, (list, tuple)) and next_messages:
        return [message for one in next_messages for message in _messages(one)]
    raise InvalidOutput(
        "feedback must return a text, a message, a list of messages or None, not "
        f"{type(next_messages).__name__}"
    )


register("simple_workflow", SimpleWorkflow)
register("math_workflow", MathWorkflow)
register("multi_turn_workflow", MultiTurnWorkflow)
