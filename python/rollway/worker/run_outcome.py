"""Run outcomes: experiences from the values that workflows return, and classified failures."""

from __future__ import annotations

import asyncio
import logging
import math
import numbers
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollway import _rollway
from rollway.errors import Error, InvalidOutput, ModelUnavailable
from rollway.experience import Experience
from rollway.models.base import RunModel
from rollway.models.gateway import GatewayRunModel
from rollway.models.turns import not_recorded
from rollway.worker.setup import PACKAGE

#: Maximum length of a failure message, in characters; the end of a traceback is kept.
MAX_MESSAGE_CHARS = 12 * 1024

#: Smallest number that is infinite as a float of 32 bits.
_TOO_LARGE = 2.0**128 - 2.0**103

#: Failure kinds of the engine; errors of the package have theirs as their `code`.
FAILURE_KINDS = frozenset(_rollway.failure_kinds())

#: Failure kind of all other exceptions.
WORKFLOW = "workflow"

logger = logging.getLogger("rollway.metrics")


@dataclass(slots=True)
class RunOutput:
    """Output of a successful run."""

    experiences: list[Experience]
    metrics: dict[str, float]
    #: Model whose recorded turns become the experiences, if the workflow returned a reward.
    rewarded: bool = False
    model: RunModel | None = None

    @classmethod
    def of(
        cls,
        experiences: list[Experience],
        reported: dict[str, float] | None,
        seconds: float,
        model: RunModel | None = None,
    ) -> RunOutput:
        """Builds the output of a run, with its metrics."""
        return cls(
            experiences, _metrics(experiences, reported, seconds), reported is not None, model
        )

    @property
    def nothing(self) -> str:
        """Returns the failure for missing experiences."""
        if not self.rewarded:
            return "the run returned no experiences"
        words = "the workflow returned a reward, but no turn of the model was recorded"
        if isinstance(self.model, GatewayRunModel) and not self.model.model.records:
            return f"{words}: {not_recorded(self.model.name, True)}"
        return f"{words}: call the model through the argument `model` or at `model.base_url`"


#: Metric of the run's duration.
(_SECONDS,) = _rollway.run_metrics([], 0.0)


def _metrics(
    experiences: list[Experience], reported: dict[str, float] | None, seconds: float
) -> dict[str, float]:
    """Combines the metrics of the experiences and of the workflow."""
    if not experiences and reported is not None and len(reported) == 1:
        # Fast path: a reward alone needs no combination.
        return {**reported, _SECONDS: seconds}
    combined = [experience.metrics for experience in experiences]
    if reported is not None:
        combined = [{**metrics, **reported} for metrics in combined] or [reported]
    return _rollway.run_metrics(combined, seconds)


@dataclass
class RunFailure:
    """Failure of a run; kinds are those of the configuration."""

    kind: str
    message: str
    is_consequence: bool = False
    """True if the run was ended because another one failed."""


async def outputs(
    returned: Any, model: RunModel, is_eval: bool = False
) -> tuple[list[Experience], dict[str, float] | None]:
    """Converts the value of a workflow to experiences and metrics.

    A reward, a dictionary of metrics with a reward, or `None` stands for the recorded turns of the
    model.
    """
    if isinstance(returned, Experience):
        _check_rewards(returned)
        returned.metrics = plain_metrics(returned.metrics)
        return [returned], None
    # Common types first: checks against abstract classes are slow.
    reported = None
    if isinstance(returned, (float, int, np.bool_, numbers.Real)):
        reported = {"reward": float(returned)}
    elif isinstance(returned, dict):
        reported = _numbers(returned)
    if reported is not None or returned is None:
        turns = _recorded_turns(model, is_eval)
        if turns is None:
            turns = await model.extract_experience_from_history_async(False)
        if reported is not None:
            _check_reward(reported["reward"])
            for turn in turns:
                turn.reward = reported["reward"]
        return turns, reported
    if isinstance(returned, (list, tuple)):
        for item in returned:
            if not isinstance(item, Experience):
                raise InvalidOutput(
                    f"the workflow returned a list with {_kind(item)} in it; "
                    "return a reward (a number, or a dictionary with `reward`) or experiences"
                )
            _check_rewards(item)
            item.metrics = plain_metrics(item.metrics)
        return list(returned), None
    raise InvalidOutput(
        f"the workflow returned {_kind(returned)}; "
        "return a reward (a number, or a dictionary with `reward`) or experiences"
    )


def _check_rewards(experience: Experience) -> None:
    """Raises unless the rewards of an experience and of its tokens are finite."""
    _check_reward(experience.reward)
    rewards = experience.token_level_reward
    if rewards is not None and not np.isfinite(rewards).all():
        place = int(np.argmin(np.isfinite(rewards)))
        raise InvalidOutput(
            f"token_level_reward is {rewards[place]} at {place}: it is not finite"
        )


def _check_reward(reward: float | None) -> None:
    """Raises unless the reward is finite as a number of 32 bits, the type of trainers."""
    if reward is not None and not abs(reward) < _TOO_LARGE:
        raise InvalidOutput(f"the reward {reward} is not a finite 32-bit number")


def _numbers(returned: dict[str, Any]) -> dict[str, float]:
    """Converts metrics to plain numbers."""
    if "reward" not in returned:
        raise InvalidOutput("the workflow returned a dictionary without a reward in it")
    metrics = plain_metrics(returned)
    if "reward" not in metrics:
        raise InvalidOutput(
            f"the workflow returned a reward that is not a number: {returned['reward']!r}"
        )
    return metrics


#: Metrics of this process that were reported as ignored; their number is bounded.
_ignored: set[str] = set()
_MAX_IGNORED = 1000


def _warn_once(name: str, reason: str) -> None:
    if name not in _ignored and len(_ignored) < _MAX_IGNORED:
        _ignored.add(name)
        logger.warning("metric `%s` is ignored: %s", name, reason)


def plain_metrics(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """Converts metrics to plain finite numbers; others are ignored with a warning."""
    if not metrics:
        return {}
    plain = {}
    for name, value in metrics.items():
        try:
            if isinstance(value, (str, bytes)):
                raise TypeError
            number = value if type(value) is float else float(value)
        except (TypeError, ValueError):
            _warn_once(str(name), f"{type(value).__name__} is not a number")
            continue
        # An invalid reward fails the run.
        if math.isfinite(number) or name == "reward":
            plain[str(name)] = number
        else:
            _warn_once(str(name), f"{number} is not finite")
    return plain


def _recorded_turns(model: RunModel, is_eval: bool) -> list[Experience] | None:
    """Returns the recorded turns; `None`: they must be fetched from the gateway."""
    if not model.model.records:
        return []
    if isinstance(model, GatewayRunModel):
        # Evaluation does not need them.
        return [] if is_eval else None
    return list(model.history)


def _kind(value: Any) -> str:
    return f"an object of type {type(value).__name__}"


#: Client errors that mean an unavailable server, by package and name.
_UNAVAILABLE = {
    ("openai", "APIConnectionError"),
    ("openai", "InternalServerError"),
    ("openai", "RateLimitError"),
    ("anthropic", "APIConnectionError"),
    ("anthropic", "InternalServerError"),
    ("anthropic", "RateLimitError"),
    ("httpx", "TransportError"),
    ("httpx2", "TransportError"),
    ("aiohttp", "ClientConnectionError"),
    ("requests", "ConnectionError"),
    ("requests", "Timeout"),
}


#: Types of the gateway's errors that mean an unavailable server. The `openai` package raises those
#: within a stream as its base class, without a status.
_UNAVAILABLE_TYPES = {"upstream_error", "upstream_timeout", "model_unavailable"}


def failure(error: BaseException) -> RunFailure:
    """Classifies an exception."""
    return RunFailure(_classify(error), describe(error))


def _classify(error: BaseException) -> str:
    for base in type(error).__mro__:
        if issubclass(base, Error) and base.code in FAILURE_KINDS:
            return base.code
    if isinstance(error, ConnectionError):
        return ModelUnavailable.code
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(error).__mro__}
    if ("openai", "ConflictError") in bases:
        # The gateway could not record a call of the run.
        return InvalidOutput.code
    if ("openai", "APIError") in bases and getattr(error, "type", None) in _UNAVAILABLE_TYPES:
        return ModelUnavailable.code
    return ModelUnavailable.code if bases & _UNAVAILABLE else WORKFLOW


def describe(error: BaseException) -> str:
    """Formats an exception with its traceback."""
    summary = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, InvalidOutput):
        return str(error)
    if isinstance(error, asyncio.CancelledError):
        return f"{summary}: the workflow cancelled itself"
    # Omits the frames of this package, which come first.
    frames = traceback.extract_tb(error.__traceback__)
    while frames and frames[0].filename.startswith(PACKAGE):
        frames.pop(0)
    if not frames:
        return summary[:MAX_MESSAGE_CHARS]
    where = "".join(traceback.format_list(frames))
    return f"{summary[: MAX_MESSAGE_CHARS // 2]}\n{where[-MAX_MESSAGE_CHARS // 2 :]}".rstrip()
