"""Experiences with torch tensors."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rollway import experience as rollway_experience
from rollway.experience import _ARRAYS
from rollway.experience.custom_fields import CustomField
from rollway.experience.eid import EID, group_by

__all__ = ["EID", "CustomField", "CustomFields", "Experience", "group_by", "plain", "wrapped"]

#: Alias of Trinity-RFT.
CustomFields = list[CustomField]

_Base = rollway_experience.Experience
_SLOTS = {name: getattr(_Base, name) for name in _Base.__slots__}


class Experience(_Base):
    """An experience of `rollway` whose arrays are torch tensors, if torch is installed.

    Fields and checks are those of `rollway.Experience`. Token ids may be floats with whole values,
    `metrics` and `info` may be `None`, and further attributes can be set; they are not stored.
    """

    def __init__(self, *, tokens: Any, **fields: Any) -> None:
        object.__setattr__(self, "_is_raw", True)
        for unused in ("experience_type", "reward_model_score"):
            fields.pop(unused, None)
        if fields.get("prompt_length") is None:
            fields.pop("prompt_length", None)
        super().__init__(tokens=_whole(tokens), **fields)
        self._is_raw = False

    @classmethod
    def of(cls, experience: _Base) -> Experience:
        """Returns an experience with tensors; shares its data."""
        if isinstance(experience, cls):
            return experience
        made = object.__new__(cls)
        for slot in _SLOTS.values():
            slot.__set__(made, slot.__get__(experience))
        made._is_raw = False
        return made

    def plain(self) -> _Base:
        """Returns a `rollway.Experience` that shares the data."""
        made = object.__new__(_Base)
        for name, slot in _SLOTS.items():
            value = slot.__get__(self)
            if name in _ARRAYS and value is not None:
                value = _numpy(value)
            elif name in ("info", "metrics"):
                value = dict(value or {})
            slot.__set__(made, value)
        return made

    @property
    def experience_type(self) -> str:
        """Same as `kind`."""
        return self.kind

    @staticmethod
    def serialize_many(experiences: Sequence[_Base]) -> bytes:
        """Encodes experiences in a language-independent format."""
        return _Base.serialize_many(plain(experiences))

    @staticmethod
    def deserialize_many(payload: bytes) -> list[_Base]:
        """Decodes a payload; raises `InvalidPayload`."""
        return list(wrapped(_Base.deserialize_many(payload)))

    def serialize(self) -> bytes:
        """Encodes this experience."""
        return self.serialize_many([self])

    @staticmethod
    def deserialize(payload: bytes) -> Experience:
        """Decodes a payload of exactly one experience; raises `InvalidPayload`."""
        return Experience.of(_Base.deserialize(payload))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Base):
            return NotImplemented
        return plain([self]) == plain([other])

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return Experience.deserialize, (self.serialize(),)


def _tensor_property(name: str) -> property:
    slot = _SLOTS[name]

    def get(self: Experience) -> Any:
        value = slot.__get__(self)
        return value if value is None or self._is_raw else _tensor(value)

    def set_(self: Experience, value: Any) -> None:
        slot.__set__(self, value if value is None or self._is_raw else _numpy(value, name))

    return property(get, set_, doc=f"`{name}` as a torch tensor; a NumPy array without torch.")


for _name in _ARRAYS:
    setattr(Experience, _name, _tensor_property(_name))

#: True if torch is installed; it is imported at the first access to an array.
_HAS_TORCH = importlib.util.find_spec("torch") is not None


def _tensor(value: np.ndarray) -> Any:
    if not _HAS_TORCH:
        return value
    import torch

    return torch.from_numpy(value if value.flags.writeable else np.array(value))


def _numpy(value: Any, name: str = "") -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        value = value.numpy()
    return np.asarray(_whole(value) if name == "tokens" else value)


def _whole(tokens: Any) -> Any:
    """Converts token ids that are floats to integers; raises if one has a fraction."""
    if hasattr(tokens, "detach"):
        tokens = tokens.detach().cpu().numpy()
    array = np.asarray(tokens)
    if array.dtype.kind != "f":
        return tokens
    if array.size and not np.array_equal(array, np.floor(array)):
        raise ValueError("tokens has values that are not whole numbers")
    return array.astype(np.int32)


def wrapped(experiences: Iterable[_Base]) -> list[Experience]:
    """Returns experiences with tensors."""
    return [Experience.of(one) for one in experiences]


def plain(experiences: Iterable[_Base]) -> list[_Base]:
    """Returns experiences of `rollway`."""
    return [one.plain() if isinstance(one, Experience) else one for one in experiences]


def split_dpo_experience_to_single_turn(experiences: Iterable[_Base]) -> list[_Base]:
    """Splits `dpo` experiences into chosen and rejected ones."""
    return wrapped(half for one in plain(experiences) for half in one.split_dpo())
