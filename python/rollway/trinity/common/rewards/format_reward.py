"""Reward for the form of a response."""

from __future__ import annotations

import re
from typing import Any

from rollway.trinity.common.rewards.reward_fn import RewardFn

#: Thoughts in `<think>`, then the answer in `<answer>`.
THINK_AND_ANSWER = r".*?<think>.*?</think>\s*<answer>.*?</answer>\s*$"


class FormatReward(RewardFn):
    """0.1 if the response matches a pattern; else -0.1."""

    def __init__(self, pattern: str = THINK_AND_ANSWER) -> None:
        self.pattern = re.compile(pattern, re.DOTALL | re.MULTILINE)

    def __call__(  # type: ignore[override]
        self, response: str, prompt: str | None = None, truth: Any = None
    ) -> dict[str, float]:
        return {"format_score": 0.1 if self.pattern.match(response) else -0.1}
