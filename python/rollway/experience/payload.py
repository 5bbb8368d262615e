"""Payload encoding of experiences, in the engine's language-independent format."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rollway import _rollway
from rollway.errors import InvalidPayload
from rollway.experience.eid import EID

if TYPE_CHECKING:
    from rollway.experience import Experience

T = TypeVar("T")

_INTEGERS, _FLOATS, _BOOLS = np.dtype("<i4"), np.dtype("<f4"), np.dtype("?")
_TYPES: dict[str, np.dtype[Any]] = {
    "tokens": _INTEGERS,
    "chosen": _INTEGERS,
    "rejected": _INTEGERS,
    "action_mask": _BOOLS,
    "logprobs": _FLOATS,
    "token_level_reward": _FLOATS,
    "advantages": _FLOATS,
    "returns": _FLOATS,
    "teacher_logprobs": _FLOATS,
}
_TEXTS = ("messages", "tools", "chosen_messages", "rejected_messages")
_PLAIN = ("kind", "prompt_length", "reward", "truncate_status", "prompt_text", "response_text")
_plain, _arrays, _texts = attrgetter(*_PLAIN), attrgetter(*_TYPES), attrgetter(*_TEXTS)


def encode(experiences: Sequence[Experience]) -> bytes:
    """Encodes experiences; raises `ValueError` if one cannot be encoded."""
    return _rollway.encode_experiences([_item(experience) for experience in experiences])


def decode(payload: bytes, make: Callable[..., T]) -> list[T]:
    """Decodes a payload; `make` builds each experience from its fields.

    Arrays are read-only views of the payload.
    """
    if not isinstance(payload, bytes):
        raise InvalidPayload(f"a payload is bytes, not {type(payload).__name__}")
    return [make(**_fields(item, payload)) for item in _rollway.decode_experiences(payload)]


def _item(experience: Experience) -> dict[str, Any]:
    eid = experience.eid
    item: dict[str, Any] = {"eid": (eid.batch, eid.task, eid.run, eid.step, eid.suffix)}
    for name, value in zip(_PLAIN, _plain(experience), strict=True):
        if value is not None:
            item[name] = value
    for name, array in zip(_TYPES, _arrays(experience), strict=True):
        if array is not None:
            # Attributes may have been replaced by values of another type.
            dtype = _TYPES[name]
            exact = type(array) is np.ndarray and array.dtype is dtype
            item[name] = (array if exact else np.asarray(array, dtype=dtype)).tobytes()
    for name, value in zip(_TEXTS, _texts(experience), strict=True):
        if value is not None:
            item[name] = _json(name, value)
    if experience.info:
        item["info"] = _json("info", experience.info)
    if experience.metrics:
        item["metrics"] = {str(key): float(value) for key, value in experience.metrics.items()}
    if experience.multi_modal_inputs:
        item["multi_modal_inputs"] = {
            name: (tensor.dtype.name, tensor.shape, tensor.tobytes())
            for name, tensor in experience.multi_modal_inputs.items()
        }
    if experience.custom_fields:
        item["custom_fields"] = experience.custom_fields
    if experience.model_versions is not None:
        item["model_versions"] = experience.model_versions
    return item


def _json(name: str, value: Any) -> str:
    try:
        return _rollway.plain_json(value) or _JSON.encode(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be written as JSON: {error}") from None


def _simple(value: Any) -> Any:
    """Converts NumPy and torch numbers and arrays to JSON values."""
    for convert in ("tolist", "item"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    raise TypeError(f"an object of type {type(value).__name__} cannot be written as JSON")


_JSON = json.JSONEncoder(default=_simple, allow_nan=False, separators=(",", ":"))


def _fields(item: dict[str, Any], payload: bytes) -> dict[str, Any]:
    batch, task, run, step, suffix = item.pop("eid")
    inputs = item.pop("multi_modal_inputs")
    for name, dtype in _TYPES.items():
        if item[name] is not None:
            begin, length = item[name]
            count = length // dtype.itemsize
            item[name] = np.frombuffer(payload, dtype, count, begin if count else 0)
    for name in (*_TEXTS, "info"):
        if item[name] is not None:
            item[name] = json.loads(item[name])
    tensors = {
        name: np.frombuffer(data, dtype).reshape(shape)
        for name, (dtype, shape, data) in inputs.items()
    }
    eid = EID(batch, task, run, step, suffix)
    return {**item, "eid": eid, "multi_modal_inputs": tensors or None}
