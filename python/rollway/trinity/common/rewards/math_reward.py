"""Rewards for mathematics."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rollway.rewards import MathReward
from rollway.trinity.common.rewards.accuracy_reward import AccuracyReward
from rollway.trinity.common.rewards.format_reward import THINK_AND_ANSWER, FormatReward
from rollway.trinity.common.rewards.reward_fn import RewardFn

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def answer_in_tags(response: str) -> str:
    """Returns the text of the last `<answer>` element; the response if there is none."""
    found = _ANSWER.findall(response)
    return found[-1].strip() if found else response


class MathRewardFn(RewardFn):
    """`accuracy` of the answer, and `format_score` for thoughts and answer in their tags."""

    def __init__(
        self,
        answer_parser: Callable[[str], str] = answer_in_tags,
        pattern: str = THINK_AND_ANSWER,
    ) -> None:
        self.accuracy_reward = AccuracyReward(answer_parser)
        self.format_reward = FormatReward(pattern)

    def __call__(  # type: ignore[override]
        self, response: str, prompt: str | None = None, truth: Any = None
    ) -> dict[str, float]:
        return {**self.accuracy_reward(response, prompt, truth), **self.format_reward(response)}


class MathBoxedRewardFn(RewardFn):
    """`accuracy` of the answer in `\\boxed{}`; `format_score` is negative without thoughts.

    The format counts only if `with_think` is true; `format_score_coef` is its weight.
    """

    def __init__(self, with_think: bool = False, format_score_coef: float = 0.1) -> None:
        self.with_think = with_think
        self.format_score_coef = format_score_coef
        self._compare = MathReward()

    def __call__(  # type: ignore[override]
        self,
        response: str,
        prompt: str | None = None,
        truth: Any = None,
        with_think: bool | None = None,
        format_score_coef: float | None = None,
    ) -> dict[str, float]:
        wants_thoughts = self.with_think if with_think is None else with_think
        weight = self.format_score_coef if format_score_coef is None else format_score_coef
        has_thoughts = re.search(r"<think>.*?</think>", response, re.DOTALL) is not None
        score = -weight if wants_thoughts and not has_thoughts else 0.0
        return {"accuracy": self._compare(response, truth), "format_score": score}
