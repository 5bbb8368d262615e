"""Reward functions, given by name, as `package.module:name` or as objects.

A reward function takes the response and the expected answer, and returns a number, or a dictionary
of numbers whose sum is the reward:

    @rw.reward_fn
    def brief(response, truth, limit=100):
        return float(truth in response) * (len(response) <= limit)

Parameters called `prompt`, `task` or `auxiliary_models` are passed as well; all others come from
`reward_fn_args`. The function may be async. A class is instantiated once with `reward_fn_args`, and
the instance is called.
"""

from __future__ import annotations

import inspect
import math
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from rollway._registry import Registry
from rollway.errors import InvalidOutput, InvalidRewardFn, MissingPackage, UnknownRewardFn
from rollway.task import Task, text_of

_registry = Registry("reward function", UnknownRewardFn)

#: Reward functions of the compatibility package that have names in configurations.
_TRINITY = "rollway.trinity.common.rewards"
_registry.refer(
    {
        "math_boxed_reward": f"{_TRINITY}.math_reward:MathBoxedRewardFn",
        "accuracy_reward": f"{_TRINITY}.accuracy_reward:AccuracyReward",
        "format_reward": f"{_TRINITY}.format_reward:FormatReward",
    }
)

#: Optional parameters of reward functions, passed by name.
_OFFERED = ("prompt", "task", "auxiliary_models")

#: Parameters that are passed by name if a function has both, whatever their order.
_BY_NAME = ("response", "truth")


def reward_fn(source: Any) -> Any:
    """Registers a reward function or class under its own name or a given one:

    @rw.reward_fn
    def polite(response, truth): ...

    @rw.reward_fn("strict")
    class Strict: ...

    Only names in configurations need registration; `rw.Task(reward_fn=polite)` does not.
    """
    if isinstance(source, str):
        return lambda wrapped: _register(source, wrapped)
    return _register(getattr(source, "__name__", ""), source)


def _register(name: str, source: Any) -> Any:
    if not name or ":" in name:
        raise InvalidRewardFn(f"{name!r} cannot be the name of a reward function")
    _checked(source)
    return _registry.register(name, source)


def lookup(name: str) -> Any:
    """Returns the reward function of a registered name or of `package.module:name`."""
    return _checked(_registry.lookup(name))


def known() -> list[str]:
    """Returns the registered names."""
    return _registry.known()


def _checked(source: Any) -> Any:
    if not callable(source):
        raise InvalidRewardFn(
            "a reward function is a function, a class, 'package.module:name' or a registered "
            f"name, not {type(source).__name__}"
        )
    return source


class RewardEvaluator:
    """A reward function bound to its arguments."""

    def __init__(self, source: Any, arguments: Mapping[str, Any] | None = None) -> None:
        given = dict(arguments or {})
        if source is None:
            raise InvalidRewardFn(
                "the task has no reward function: name one with reward_fn, or with "
                "`default_reward_fn_type` in a configuration"
            )
        function = lookup(source) if isinstance(source, str) else _checked(source)
        self.name = getattr(function, "__name__", type(function).__name__)
        if inspect.isclass(function):
            try:
                function, given = function(**given), {}
            except TypeError as error:
                raise InvalidRewardFn(f"{self.name} cannot be created: {error}") from error
        self._function: Callable[..., Any] = _checked(function)
        self._arguments = given
        self._positions, self._offered = _parameters(function, given)
        try:
            inspect.signature(function).bind(
                *[None] * self._positions, **dict.fromkeys(self._offered), **given
            )
        except TypeError as error:
            raise InvalidRewardFn(
                f"{self.name} does not take reward_fn_args as they are: {error}"
            ) from error
        except ValueError:
            # Some functions written in C have no signature.
            pass

    async def __call__(
        self, response: str, task: Task, auxiliary_models: list[Any] | None = None
    ) -> dict[str, float]:
        """Returns the `reward`, and its parts if the function returned a dictionary."""
        offered = {
            "response": response,
            "truth": task.truth,
            "prompt": task.task_desc,
            "task": task,
            "auxiliary_models": auxiliary_models,
        }
        returned = self._function(
            *(response, task.truth)[: self._positions],
            **{name: offered[name] for name in self._offered},
            **self._arguments,
        )
        if inspect.isawaitable(returned):
            returned = await returned
        return self._numbers(returned)

    def _numbers(self, returned: Any) -> dict[str, float]:
        parts = returned if isinstance(returned, Mapping) else {"reward": returned}
        for name, value in parts.items():
            is_number = hasattr(value, "__float__") and not isinstance(value, str)
            if not is_number or not math.isfinite(value):
                raise InvalidOutput(
                    f"the reward function {self.name} returned {value!r}"
                    + (f" as {name}" if isinstance(returned, Mapping) else "")
                    + "; a finite number was expected"
                )
        numbers = {str(name): float(value) for name, value in parts.items()}
        return {
            **numbers,
            "reward": numbers["reward"] if "reward" in numbers else sum(numbers.values()),
        }


def _parameters(function: Any, given: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Returns the number of positional arguments (at most 2) and the optional ones by name."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        return 2, []
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = {one.name for one in parameters if one.kind is not inspect.Parameter.POSITIONAL_ONLY}
    offered = [name for name in _OFFERED if name in named and name not in given]
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    has_both = named >= set(_BY_NAME) or (takes_any and len(parameters) == 1)
    if has_both and not set(_BY_NAME) & set(given):
        return 0, [*_BY_NAME, *offered]
    plain = [
        one
        for one in parameters
        if one.kind in by_position and one.name not in given and one.name not in _OFFERED
    ]
    takes_all = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
    positions = 2 if takes_all else min(len(plain), 2)
    return positions, offered


async def compute_reward(
    task: Task, response: str, auxiliary_models: list[Any] | None = None
) -> dict[str, float]:
    """Applies the reward function of a task to a response, in custom workflows:

        reply = await model.chat(task.messages)
        return await rw.compute_reward(task, reply.text)

    Returns a dictionary with `reward`, which a workflow may return unchanged.
    """
    return await RewardEvaluator(task.reward_fn, task.reward_fn_args)(
        response, task, auxiliary_models
    )


class _Text:
    """Base class of text comparisons; the arguments select the compared part."""

    def __init__(
        self, take: str = "all", pattern: str | None = None, ignore_case: bool = False
    ) -> None:
        if take not in ("all", "last_number") or (take != "all" and pattern is not None):
            raise InvalidRewardFn(
                "take is 'all' or 'last_number', and excludes a pattern; "
                f"not take={take!r}, pattern={pattern!r}"
            )
        self.take = take
        self.ignore_case = bool(ignore_case)
        try:
            flags = re.IGNORECASE if ignore_case else 0
            self.pattern = None if pattern is None else re.compile(pattern, flags)
        except (re.error, TypeError) as error:
            raise InvalidRewardFn(f"the pattern {pattern!r} cannot be used: {error}") from error

    def __call__(self, response: str, truth: Any) -> float:
        expected = _expected(truth)
        answer = self._part(response)
        if answer is None:
            return 0.0
        if self.take == "last_number":
            # The expected answer may contain text around its number.
            expected = _last_number(expected) or expected
        return float(self._is_right(self._folded(answer), self._folded(expected)))

    def _part(self, response: str) -> str | None:
        if self.take == "last_number":
            return _last_number(response)
        if self.pattern is None:
            return response
        last = None
        for last in self.pattern.finditer(response):
            pass
        if last is None:
            return None
        group = last.group(1) if last.re.groups else None
        return last.group() if group is None else group

    def _folded(self, text: str) -> str:
        return text.strip().lower() if self.ignore_case else text.strip()

    def _is_right(self, answer: str, expected: str) -> bool:
        raise NotImplementedError


@reward_fn("exact_match")
class ExactMatch(_Text):
    """1 if the response equals the expected answer, ignoring surrounding space; else 0.

    `take="last_number"` compares the last numbers of both; `pattern` compares the last match in the
    response, or its first group.
    """

    def _is_right(self, answer: str, expected: str) -> bool:
        return answer == expected


@reward_fn("contains")
class Contains(_Text):
    """1 if the response contains the expected answer; else 0. Arguments: see `exact_match`."""

    def _is_right(self, answer: str, expected: str) -> bool:
        return expected in answer


@reward_fn("math_reward")
class MathReward:
    """1 if `math-verify` finds the response equivalent to the expected answer; else 0.

    The answer is searched in `\\boxed{}`, other LaTeX and plain numbers. The reward is 0 if the
    comparison takes longer than `timeout` seconds.
    """

    def __init__(self, timeout: int = 5) -> None:
        if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 1:
            raise InvalidRewardFn(f"timeout is a number of whole seconds, not {timeout!r}")
        self.timeout = timeout
        self._checker = _math_verify()

    def __call__(self, response: str, truth: Any) -> float:
        # The checker's timeout uses a signal, which works in the main thread only. In other threads
        # the timeout of the attempt applies.
        is_main = threading.current_thread() is threading.main_thread()
        limit = self.timeout if is_main else None
        # Some datasets prefix the answer with its derivation.
        text = _expected(truth).rpartition("####")[2].strip()
        checker = self._checker
        is_marked = "$" in text or "\\boxed" in text
        gold = checker.parse(text, parsing_timeout=limit) if is_marked else []
        gold = gold or checker.parse(f"${text}$", parsing_timeout=limit)
        if not gold:
            raise InvalidRewardFn(f"the expected answer is not a mathematical expression: {text!r}")
        answer = checker.parse(response, parsing_timeout=limit)
        return float(checker.verify(gold, answer, timeout_seconds=limit))


def _math_verify() -> Any:
    try:
        import math_verify
    except ImportError as error:
        raise MissingPackage(
            "math_reward needs the package math-verify, which is not installed: "
            "pip install rollway[math]",
            package="math-verify",
        ) from error
    return math_verify


def _expected(truth: Any) -> str:
    if truth is None:
        raise InvalidRewardFn(
            "the row has no expected answer: set response_key in format_args to the field that "
            "has it"
        )
    return text_of(truth)


_NUMBER = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+")


def _last_number(text: str) -> str | None:
    """Returns the last number in a text, without commas and redundant zeros."""
    last = None
    for last in _NUMBER.finditer(text):
        pass
    if last is None:
        return None
    before = text[: last.start()]
    # A minus after an operand is subtraction, not a sign.
    is_negative = before[-1:] in ("-", "\u2212") and not (
        before[-2:-1].isalnum() or before[-2:-1] == ")"
    )
    whole, _, fraction = last.group().replace(",", "").partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    plain = f"{whole}.{fraction}" if fraction else whole
    return f"-{plain}" if is_negative and plain != "0" else plain
