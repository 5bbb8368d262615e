"""Reward functions."""

from __future__ import annotations

from rollway import rewards as rollway_rewards
from rollway.trinity.common.rewards.reward_fn import RewardFn
from rollway.trinity.utils.registry import Registry

__all__ = ["REWARD_FUNCTIONS", "RewardFn"]

_HERE = "rollway.trinity.common.rewards"

#: Reward functions by name. Registered ones can be named in configurations.
REWARD_FUNCTIONS = Registry(
    "reward_functions",
    default_mapping={
        "math_reward": f"{_HERE}.math_reward.MathRewardFn",
        "math_boxed_reward": f"{_HERE}.math_reward.MathBoxedRewardFn",
        "accuracy_reward": f"{_HERE}.accuracy_reward.AccuracyReward",
        "format_reward": f"{_HERE}.format_reward.FormatReward",
        "exact_match": "rollway.rewards.ExactMatch",
        "contains": "rollway.rewards.Contains",
    },
    on_register=lambda name, source: rollway_rewards.reward_fn(name)(source),
)
