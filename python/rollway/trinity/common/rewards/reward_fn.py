"""Base class of reward functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class RewardFn(ABC):
    """A reward function: created once with `reward_fn_args`, called for every response.

    It is called with the keywords `response`, `truth` and `prompt`, as far as it takes them, and
    returns a dictionary of numbers whose sum is the reward.
    """

    @abstractmethod
    def __init__(self, **kwargs: Any) -> None:
        pass

    @abstractmethod
    def __call__(self, **kwargs: Any) -> dict[str, float]:
        pass
