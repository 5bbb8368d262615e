"""Reward for a right answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollway.rewards import MathReward
from rollway.trinity.common.rewards.reward_fn import RewardFn


class AccuracyReward(RewardFn):
    """1 if the answer in the response is mathematically equal to the truth; else 0.

    `answer_parser` extracts the answer from the response; `None`: `math-verify` finds it.
    """

    def __init__(self, answer_parser: Callable[[str], str] | None = None) -> None:
        self.answer_parser = answer_parser
        self._compare = MathReward()

    def __call__(  # type: ignore[override]
        self, response: str, prompt: str | None = None, truth: Any = None
    ) -> dict[str, float]:
        answer = response if self.answer_parser is None else self.answer_parser(response)
        return {"accuracy": self._compare(answer, truth)}
