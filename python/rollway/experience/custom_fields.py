"""Custom fields and model versions of experiences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

_DTYPES = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
)

#: Model version and number of tokens; version `None`: not produced by a model.
VersionSpan = tuple[int | None, int]


class CustomField(NamedTuple):
    """An entry of `info` that becomes a field of the training batch:

    rw.Experience(..., info={"judge": 0.5}, custom_fields=[("judge", "judge_score", "float32")])
    """

    source_field: str
    destination_field: str
    dtype: str


def custom_fields(given: Iterable[Any]) -> list[CustomField]:
    """Converts tuples to custom fields; types are those of NumPy or torch, or names."""
    return [_custom_field(*item) for item in given]


def _custom_field(source: str, destination: str, dtype: Any) -> CustomField:
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    # torch writes `torch.float32`.
    name = name.rpartition(".")[2]
    if name not in _DTYPES:
        raise ValueError(f"custom_fields: {name!r} is not a type; there is {', '.join(_DTYPES)}")
    return CustomField(str(source), str(destination), name)


def model_versions(given: Iterable[VersionSpan]) -> list[VersionSpan]:
    """Checks pairs of a version and a number of tokens; merges neighbours of one version."""
    runs: list[VersionSpan] = []
    for version, tokens in given:
        tokens = int(tokens)
        version = None if version is None else int(version)
        if tokens < 1 or (version is not None and version < 0):
            raise ValueError(
                f"model_versions: {(version, tokens)} is not a pair of a version and a number of "
                "tokens"
            )
        if runs and runs[-1][0] == version:
            tokens += runs.pop()[1]
        runs.append((version, tokens))
    return runs
