"""Workflows that come with Rollway, in class form, so that one's own can be made of them.

`simple_workflow` asks the question of the row once. `math_workflow` does it with a prompt that
wants the answer boxed. `multi_turn_workflow` goes on until the answer is right.
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

#: What `math_workflow` says first where the format has no system prompt.
BOXED = (
    "You solve mathematical problems. Think step by step, and put your final answer "
    "within \\boxed{}."
)

#: What `multi_turn_workflow` says to an answer that is not right yet.
AGAIN = "That is not right yet. Look for the mistake, and answer again."


class SimpleWorkflow(Workflow):
    """Says the messages of the row to the model, once, and has the answer judged.

    Sampling is as `rollout_args` say; the judge is `reward_fn` with `reward_fn_args`. A subclass
    may have another `format_messages` or `judge`.
    """

    can_reset = True
    is_async = True

    #: The reward function of tasks that name none.
    default_reward_fn: Any = None
    #: The system prompt where the format has none.
    default_system_prompt: str | None = None

    def __init__(
        self, *, task: Task, model: Any, auxiliary_models: list[Any] | None = None
    ) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.reset(task)

    @classmethod
    def check(cls, task: Task) -> None:
        """Raises if tasks with these arguments cannot be run, whatever their rows say."""
        cls._judge_of(task)

    @classmethod
    def _judge_of(cls, task: Task) -> RewardEvaluator | None:
        """Returns the reward function of a task; none if the class judges by itself."""
        reward_fn = cls.default_reward_fn if task.reward_fn is None else task.reward_fn
        if reward_fn is None and cls.judge is not SimpleWorkflow.judge:
            return None
        return RewardEvaluator(reward_fn, task.reward_fn_args)

    def reset(self, task: Task) -> None:
        self.task = task
        self._evaluator = self._judge_of(task)

    def format_messages(self) -> list[dict[str, Any]]:
        """Returns what is said to the model first."""
        messages = self.task.messages
        if not messages:
            raise InvalidWorkflow("the task asks nothing: its row has no prompt and no messages")
        if self.default_system_prompt and messages[0].get("role") != "system":
            return [{"role": "system", "content": self.default_system_prompt}, *messages]
        return messages

    async def ask(self, messages: list[dict[str, Any]]) -> Reply:
        """Says messages to the model, with the sampling and the tools of the task."""
        tools = {"tools": self.task.tools} if self.task.tools else {}
        return await self.model.chat_async(messages, **{**tools, **self.rollout_args})

    async def judge(self, reply: Reply) -> dict[str, float]:
        """Judges an answer: its `reward`, and other numbers that become metrics."""
        judge = self._evaluator or RewardEvaluator(self.task.reward_fn)
        return await judge(reply.text, self.task, self.auxiliary_models)

    async def run_async(self) -> Any:
        reply = await self.ask(self.format_messages())
        with stage(REWARDING):
            return await self.judge(reply)


class MathWorkflow(SimpleWorkflow):
    """As `simple_workflow`, for mathematics: wants the answer boxed, and compares what it means."""

    default_reward_fn = "math_reward"
    default_system_prompt = BOXED


class MultiTurnWorkflow(SimpleWorkflow):
    """Asks again until the answer is right, at most `max_turns` times; all turns are one chain.

    `workflow_args`:

    - `max_turns` (3): how many answers there are at most.
    - `feedback`: what is said to an answer that is not right yet: a text, or a function as
      `package.module:name` or as it is. The function takes the answer and gets those of `reward`,
      `turn` (from 1), `messages` and `task` for which it has parameters; it may be async. It
      returns a text, a message, a list of messages, or none to end.
    - `stop_at` (1.0): the reward from which an answer is right.
    - `turn_discount` (1.0): what the reward is multiplied by for every turn after the first.

    Without a reward function `feedback` is the environment and judges too: it returns a pair of
    what is said next, or none, and the reward so far.
    """

    @classmethod
    def check(cls, task: Task) -> None:
        super().check(task)
        cls._turns_of(task)

    @classmethod
    def _judge_of(cls, task: Task) -> RewardEvaluator | None:
        if task.reward_fn is None and cls.default_reward_fn is None:
            return None
        return super()._judge_of(task)

    @classmethod
    def _turns_of(cls, task: Task) -> _Turns:
        is_own = (cls.judge, cls.feedback) != (SimpleWorkflow.judge, MultiTurnWorkflow.feedback)
        needs_feedback = cls._judge_of(task) is None and not is_own
        return _Turns(task.workflow_args, needs_feedback)

    def reset(self, task: Task) -> None:
        super().reset(task)
        self._turns = self._turns_of(task)

    async def feedback(
        self, reply: Reply, turn: int, messages: list[dict[str, Any]]
    ) -> tuple[Any, dict[str, float]]:
        """Judges an answer, and returns what is said to it, or none if the run is over."""
        turns = self._turns
        judges = self._evaluator is not None or type(self).judge is not SimpleWorkflow.judge
        told = await self.judge(reply) if judges else {}
        if judges and told["reward"] >= turns.stop_at:
            return None, told
        if not callable(turns.feedback):
            return turns.feedback, told
        offered = {
            "reward": told.get("reward"),
            "turn": turn,
            "messages": messages,
            "task": self.task,
        }
        said = turns.feedback(reply.text, **{name: offered[name] for name in turns.offered})
        said = await said if inspect.isawaitable(said) else said
        if judges:
            return said, told
        if not isinstance(said, tuple) or len(said) != 2:
            raise InvalidOutput(
                "the task has no reward function, so that feedback returns a pair of what is said "
                f"next and the reward, not {type(said).__name__}"
            )
        return said[0], {"reward": float(said[1])}

    async def run_async(self) -> Any:
        messages = list(self.format_messages())
        turn = 0
        while True:
            turn += 1
            reply = await self.ask(messages)
            messages.append(_answer(reply))
            with stage(REWARDING):
                said, told = await self.feedback(reply, turn, messages)
            if said is None or turn >= self._turns.max_turns:
                break
            messages.extend(_messages(said))
        reward = told["reward"] * self._turns.turn_discount ** (turn - 1)
        return {**told, "reward": reward, "turns": turn}


class _Turns:
    """The arguments of a workflow with several turns."""

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
                "nobody judges the answers: name a reward function, or a feedback function that "
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
    """Tells whether a text is `package.module:name`, and no sentence with a colon in it."""
    module, colon, path = text.partition(":")
    parts = [*module.split("."), *path.split(".")]
    return bool(colon) and all(part.isidentifier() for part in parts)


def _answer(reply: Reply) -> dict[str, Any]:
    """Returns what the model said as the message that it is, tool calls included."""
    if reply.messages:
        return dict(reply.messages[-1])
    return {"role": "assistant", "content": reply.text}


def _messages(said: Any) -> list[dict[str, Any]]:
    if isinstance(said, str):
        return [{"role": "user", "content": said}]
    if isinstance(said, Mapping):
        return [dict(said)]
    if isinstance(said, (list, tuple)) and said:
        return [message for one in said for message in _messages(one)]
    raise InvalidOutput(
        f"feedback returns a text, a message, a list of messages or none, not {type(said).__name__}"
    )


register("simple_workflow", SimpleWorkflow)
register("math_workflow", MathWorkflow)
register("multi_turn_workflow", MultiTurnWorkflow)
