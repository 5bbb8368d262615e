"""Experiences: training samples."""

from __future__ import annotations

import array
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np

from rollway.errors import InvalidPayload, MissingPackage
from rollway.experience import custom_fields as fields
from rollway.experience.eid import EID
from rollway.experience.payload import decode, encode

_INTEGERS = ("chosen", "rejected")
_FLOATS = ("logprobs", "token_level_reward", "advantages", "returns", "teacher_logprobs")
_OF_RESPONSE = (*_FLOATS, "action_mask")
_of_response = attrgetter(*_OF_RESPONSE)
_ARRAYS = ("tokens", *_FLOATS, "action_mask", *_INTEGERS)
_PLAIN = (
    "reward",
    "truncate_status",
    "messages",
    "tools",
    "prompt_text",
    "response_text",
    "chosen_messages",
    "rejected_messages",
)

#: Type codes for the fast conversion of lists of plain numbers.
_CODES: dict[type, str] = {np.int32: "i", np.float32: "f"}


def _array(name: str, value: Any, default: type[np.generic], kinds: str) -> np.ndarray:
    """Converts an array, a list or a torch tensor to a flat array of the given type."""
    if type(value) is np.ndarray and value.dtype == default and value.ndim == 1:
        return np.ascontiguousarray(value)
    if type(value) is list and value and default in _CODES:
        # Other values are converted below.
        with contextlib.suppress(TypeError, OverflowError):
            return np.frombuffer(array.array(_CODES[default], value), default)
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        # NumPy has no bfloat16; float32 represents all of its values.
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        value = value.numpy()
    try:
        found = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is not a list of numbers: {error}") from None
    if found.size == 0 and found.ndim <= 1:
        return np.zeros(0, dtype=default)
    if found.ndim != 1:
        raise ValueError(f"{name} must have one dimension, not {found.ndim}")
    if found.dtype.kind not in kinds:
        raise ValueError(f"{name} cannot be an array of {found.dtype}")
    converted = np.ascontiguousarray(found, dtype=default)
    if default is np.int32 and (converted != found).any():
        raise ValueError(f"{name} has values that do not fit into 32 bits")
    return converted


def _floats(name: str, value: Any) -> np.ndarray | None:
    return None if value is None else _array(name, value, np.float32, "fiub")


class Experience:
    """A training sample: tokens with log-probabilities, a mask, a reward and labels.

    `tokens` holds prompt and response; the per-token arrays belong to the response. Arrays are
    NumPy; lists and torch tensors are accepted:

        rw.Experience(tokens=[1, 2, 3, 4], prompt_length=2, logprobs=[-0.1, -0.2], reward=1.0)

    With `action_mask` the kind is `multi_turn`, with `chosen` and `rejected` it is `dpo`, otherwise
    `single_turn`, whose mask is all true. `custom_fields` lists entries of `info` that become
    fields of the training batch; `model_versions` lists pairs of a model version and a number of
    response tokens.
    """

    eid: EID
    kind: str
    tokens: np.ndarray
    prompt_length: int
    logprobs: np.ndarray | None
    reward: float | None
    action_mask: np.ndarray | None
    token_level_reward: np.ndarray | None
    advantages: np.ndarray | None
    returns: np.ndarray | None
    teacher_logprobs: np.ndarray | None
    chosen: np.ndarray | None
    rejected: np.ndarray | None
    truncate_status: str | None
    messages: list[Any] | None
    tools: list[Any] | None
    prompt_text: str | None
    response_text: str | None
    chosen_messages: list[Any] | None
    rejected_messages: list[Any] | None
    info: dict[str, Any]
    metrics: dict[str, float]
    multi_modal_inputs: dict[str, np.ndarray] | None
    custom_fields: list[fields.CustomField]
    model_versions: list[fields.VersionSpan] | None

    __slots__ = (
        "eid",
        "kind",
        "prompt_length",
        "info",
        "metrics",
        "multi_modal_inputs",
        "custom_fields",
        "model_versions",
        *_ARRAYS,
        *_PLAIN,
    )

    def __init__(
        self,
        *,
        tokens: Any,
        prompt_length: int = 1,
        logprobs: Any = None,
        reward: float | None = None,
        action_mask: Any = None,
        token_level_reward: Any = None,
        advantages: Any = None,
        returns: Any = None,
        messages: list[Any] | None = None,
        tools: list[Any] | None = None,
        prompt_text: str | None = None,
        response_text: str | None = None,
        info: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        eid: EID | Mapping[str, Any] | None = None,
        truncate_status: str | None = None,
        chosen: Any = None,
        rejected: Any = None,
        teacher_logprobs: Any = None,
        multi_modal_inputs: Mapping[str, Any] | None = None,
        chosen_messages: list[Any] | None = None,
        rejected_messages: list[Any] | None = None,
        custom_fields: Iterable[Any] | None = None,
        model_versions: Iterable[fields.VersionSpan] | None = None,
        kind: str | None = None,
    ) -> None:
        if eid is None:
            eid = EID()
        elif not isinstance(eid, EID):
            if not isinstance(eid, Mapping):
                raise ValueError(f"eid is an EID or a dictionary, not {type(eid).__name__}")
            eid = EID(**eid)
        self.eid = eid
        self.tokens = _array("tokens", tokens, np.int32, "iu")
        self.prompt_length = int(prompt_length)
        self.logprobs = _floats("logprobs", logprobs)
        self.token_level_reward = _floats("token_level_reward", token_level_reward)
        self.advantages = _floats("advantages", advantages)
        self.returns = _floats("returns", returns)
        self.teacher_logprobs = _floats("teacher_logprobs", teacher_logprobs)
        self.chosen = None if chosen is None else _array("chosen", chosen, np.int32, "iu")
        self.rejected = None if rejected is None else _array("rejected", rejected, np.int32, "iu")
        mask = action_mask
        self.action_mask = None if mask is None else _array("action_mask", mask, np.bool_, "biu")
        self.reward = None if reward is None else float(reward)
        self.truncate_status = truncate_status
        self.messages = messages
        self.tools = tools
        self.prompt_text = prompt_text
        self.response_text = response_text
        self.chosen_messages = chosen_messages
        self.rejected_messages = rejected_messages
        self.info = dict(info) if info else {}
        self.metrics = dict(metrics) if metrics else {}
        self.multi_modal_inputs = _tensors(multi_modal_inputs)
        self.custom_fields = fields.custom_fields(custom_fields) if custom_fields else []
        versions = model_versions
        self.model_versions = None if versions is None else fields.model_versions(versions)
        self.kind = kind or self._derived_kind()
        self._complete()

    def _derived_kind(self) -> str:
        if self.action_mask is not None:
            return "multi_turn"
        if self.chosen is not None and self.rejected is not None:
            return "dpo"
        return "single_turn"

    def _complete(self) -> None:
        """Checks the fields against the kind and sets derived fields."""
        if self.kind not in ("single_turn", "multi_turn", "dpo"):
            raise ValueError(f"kind is single_turn, multi_turn or dpo, not {self.kind!r}")
        if self.truncate_status not in (None, "prompt_truncated", "response_truncated"):
            raise ValueError(
                "truncate_status is prompt_truncated or response_truncated, "
                f"not {self.truncate_status!r}"
            )
        if self.kind == "dpo":
            self.prompt_length = len(self.tokens)
            return
        if self.prompt_length < 1:
            raise ValueError(f"prompt_length must be at least 1, not {self.prompt_length}")
        if self.kind == "multi_turn":
            if self.action_mask is None:
                raise ValueError("a multi_turn experience needs an action_mask")
        elif self.truncate_status == "prompt_truncated":
            if self.action_mask is None:
                length = 0 if self.logprobs is None else len(self.logprobs)
                self.action_mask = np.zeros(length, dtype=np.bool_)
            return
        elif len(self.tokens) <= self.prompt_length:
            raise ValueError(
                f"there is no response: {len(self.tokens)} tokens, "
                f"prompt_length {self.prompt_length}"
            )
        elif self.action_mask is None:
            self.action_mask = np.ones(self.response_length, dtype=np.bool_)
        if self.truncate_status != "prompt_truncated":
            self._check_lengths()

    def _check_lengths(self) -> None:
        length = self.response_length
        for name, values in zip(_OF_RESPONSE, _of_response(self), strict=True):
            if values is not None and len(values) != length:
                raise ValueError(
                    f"{name} has {len(values)} values, but the response has {length} "
                    f"tokens ({len(self.tokens)} tokens, prompt_length {self.prompt_length})"
                )
        if self.model_versions is not None:
            count = sum(tokens for _, tokens in self.model_versions)
            if count != length:
                raise ValueError(
                    f"model_versions is about {count} tokens, but the response has {length}"
                )

    @property
    def experience_type(self) -> str:
        """Same as `kind`."""
        return self.kind

    @property
    def response_length(self) -> int:
        """Number of tokens after the prompt."""
        return max(len(self.tokens) - self.prompt_length, 0)

    def __len__(self) -> int:
        return len(self.tokens)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return (
            f"Experience(eid={str(self.eid)!r}, kind={self.kind!r}, tokens={len(self.tokens)}, "
            f"prompt_length={self.prompt_length}, reward={self.reward})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Experience):
            return NotImplemented
        return all(
            _same(getattr(self, name, None), getattr(other, name, None)) for name in self.__slots__
        )

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, Any]:
        """Returns the readable fields, without arrays, for JSON lines."""
        result: dict[str, Any] = {
            "eid": self.eid.to_dict(),
            "type": self.kind,
            "prompt_length": self.prompt_length,
            "response_length": len(self.tokens) - self.prompt_length,
            "info": self.info,
            "metrics": self.metrics,
        }
        shown = {name: getattr(self, name) for name in _PLAIN}
        result.update({name: value for name, value in shown.items() if value is not None})
        return result

    def to_torch(self) -> dict[str, Any]:
        """Returns the present arrays as torch tensors, by name."""
        try:
            import torch
        except ImportError as error:
            raise MissingPackage(
                "torch is not installed: pip install rollway[torch]", package="torch"
            ) from error
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return {
            name: torch.from_numpy(np.array(array))
            for name, array in arrays.items()
            if array is not None
        }

    def split_dpo(self) -> list[Experience]:
        """Splits a `dpo` experience into two of kind `single_turn`: chosen and rejected."""
        if self.kind != "dpo":
            raise ValueError(f"only a dpo experience can be split, not {self.kind}")
        eid = self.eid
        answers = [answer for answer in (self.chosen, self.rejected) if answer is not None]
        return [
            Experience(
                eid=EID(eid.batch, eid.task, eid.run, eid.step),
                tokens=np.concatenate([self.tokens, answer]),
                prompt_length=len(self.tokens),
                info=self.info,
                metrics=self.metrics,
                custom_fields=self.custom_fields,
            )
            for answer in answers
        ]

    @staticmethod
    def serialize_many(experiences: Sequence[Experience]) -> bytes:
        """Encodes experiences in a language-independent format; the list may be empty."""
        return encode(experiences)

    @staticmethod
    def deserialize_many(payload: bytes) -> list[Experience]:
        """Decodes a payload; raises `InvalidPayload`."""
        return decode(payload, Experience)

    def serialize(self) -> bytes:
        """Encodes this experience."""
        return self.serialize_many([self])

    @staticmethod
    def deserialize(payload: bytes) -> Experience:
        """Decodes a payload of exactly one experience; raises `InvalidPayload`."""
        experiences = Experience.deserialize_many(payload)
        if len(experiences) != 1:
            raise InvalidPayload(f"one experience was expected, there are {len(experiences)}")
        return experiences[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return Experience.deserialize, (self.serialize(),)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(type(one) is type(other) and one == other)


def _tensors(inputs: Mapping[str, Any] | None) -> dict[str, np.ndarray] | None:
    """Converts multi-modal inputs to arrays of any shape."""
    if inputs is None:
        return None

    def tensor(value: Any) -> np.ndarray:
        value = value.detach().cpu().numpy() if hasattr(value, "detach") else value
        return np.ascontiguousarray(value)

    return {str(name): tensor(value) for name, value in inputs.items()}
