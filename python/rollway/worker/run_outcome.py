"""How runs end: what a workflow returned, made into experiences, or what went wrong, classified."""

from __future__ import annotations

import asyncio
import numbers
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollway import _rollway
from rollway.errors import InvalidOutput, ModelUnavailable
from rollway.experience import Experience
from rollway.models.base import RunModel
from rollway.models.gateway import GatewayRunModel
from rollway.models.turns import not_recorded

#: The longest message of a failure, in characters; the end of a traceback says most.
MESSAGE_MAX = 12 * 1024


@dataclass(slots=True)
class RunOutput:
    """A run that went well."""

    experiences: list[Experience]
    metrics: dict[str, float]
    #: Whether the workflow returned a reward, and the model that its turns should be of.
    rewarded: bool = False
    model: RunModel | None = None

    @classmethod
    def of(
        cls,
        experiences: list[Experience],
        told: dict[str, float] | None,
        seconds: float,
        model: RunModel | None = None,
    ) -> RunOutput:
        """Returns the outcome of a run, with its metrics."""
        return cls(experiences, _metrics(experiences, told, seconds), told is not None, model)

    @property
    def nothing(self) -> str:
        """What to say if there should have been experiences."""
        if not self.rewarded:
            return "the run yielded no experience"
        words = "the workflow returned a reward, but no turn of the model was recorded"
        if isinstance(self.model, GatewayRunModel) and not self.model.model.records:
            return f"{words}: {not_recorded(self.model.name, True)}"
        return words


#: What the time that a run took is called.
(_SECONDS,) = _rollway.run_metrics([], 0.0)


def _metrics(
    experiences: list[Experience], told: dict[str, float] | None, seconds: float
) -> dict[str, float]:
    """Combines what the experiences of a run carry, and what the workflow told of all of them."""
    if not experiences and told is not None and len(told) == 1:
        # A reward alone is the most common by far, and combined with nothing it stays what it is.
        return {**told, _SECONDS: seconds}
    carried = [experience.metrics for experience in experiences]
    if told is not None:
        carried = [{**metrics, **told} for metrics in carried] or [told]
    return _rollway.run_metrics(carried, seconds)


@dataclass
class RunFailure:
    """A run that went badly; kinds are those of the configuration."""

    kind: str
    message: str


async def outputs(
    returned: Any, model: RunModel, is_eval: bool = False
) -> tuple[list[Experience], dict[str, float] | None]:
    """Takes what a workflow returned for experiences and, in the short form, what it told.

    Experiences are themselves; a reward, a dictionary of metrics with a reward, or nothing stands
    for the recorded turns of the model.
    """
    if isinstance(returned, Experience):
        return [returned], None
    # What is most common first: to ask an abstract class takes longer.
    told = None
    if isinstance(returned, (float, int, np.bool_, numbers.Real)):
        told = {"reward": float(returned)}
    elif isinstance(returned, dict):
        told = _told(returned)
    if told is not None or returned is None:
        turns = _at_hand(model, is_eval)
        if turns is None:
            turns = await model.extract_experience_from_history_async(False)
        if told is not None:
            for turn in turns:
                turn.reward = told["reward"]
        return turns, told
    if isinstance(returned, (list, tuple)):
        for item in returned:
            if not isinstance(item, Experience):
                raise InvalidOutput(
                    f"the workflow returned a list with {_kind(item)} in it; "
                    "experiences, a reward or nothing were expected"
                )
        return list(returned), None
    raise InvalidOutput(
        f"the workflow returned {_kind(returned)}; experiences, a reward or nothing were expected"
    )


def _told(returned: dict[str, Any]) -> dict[str, float]:
    """Returns a dictionary of metrics as one of plain numbers."""
    if "reward" not in returned:
        raise InvalidOutput("the workflow returned a dictionary without a reward in it")
    try:
        return {str(name): float(value) for name, value in returned.items()}
    except (TypeError, ValueError) as error:
        raise InvalidOutput(
            f"the workflow returned a dictionary with no numbers: {error}"
        ) from None


def _at_hand(model: RunModel, is_eval: bool) -> list[Experience] | None:
    """Returns the recorded turns; none if they have to be fetched."""
    if not model.model.records:
        return []
    if isinstance(model, GatewayRunModel):
        # Nobody is trained by an eval, so that there is no reason to fetch them.
        return [] if is_eval else None
    return list(model.history)


def _kind(value: Any) -> str:
    return f"an object of type {type(value).__name__}"


#: Errors of clients that mean the server is not there, by package and name.
_UNAVAILABLE = {
    ("openai", "APIConnectionError"),
    ("openai", "InternalServerError"),
    ("openai", "RateLimitError"),
    ("httpx", "TransportError"),
    ("httpx2", "TransportError"),
    ("aiohttp", "ClientConnectionError"),
    ("requests", "ConnectionError"),
    ("requests", "Timeout"),
}


def failure(error: BaseException) -> RunFailure:
    """Returns an exception as the failure of a run."""
    return RunFailure(_classify(error), describe(error))


def _classify(error: BaseException) -> str:
    if isinstance(error, InvalidOutput):
        return "invalid_output"
    if isinstance(error, (ConnectionError, ModelUnavailable)):
        return "model_unavailable"
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(error).__mro__}
    if ("openai", "ConflictError") in bases:
        # The gateway could not record what the run asked for.
        return "invalid_output"
    return "model_unavailable" if bases & _UNAVAILABLE else "workflow"


def describe(error: BaseException) -> str:
    """Returns an exception in words: what it is, then where it came from."""
    summary = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, InvalidOutput):
        return str(error)
    if isinstance(error, asyncio.CancelledError):
        return f"{summary}: the workflow cancelled itself"
    # Of the traceback the frames of the user; ours come first and say nothing.
    frames = traceback.extract_tb(error.__traceback__)
    while frames and frames[0].filename.startswith(_HERE):
        frames.pop(0)
    if not frames:
        return summary[:MESSAGE_MAX]
    where = "".join(traceback.format_list(frames))
    return f"{summary[: MESSAGE_MAX // 2]}\n{where[-MESSAGE_MAX // 2 :]}".rstrip()


_HERE = __file__.rpartition("/")[0] + "/"
