"""Writer of safetensors files from NumPy arrays or torch tensors; needs neither package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

_NUMPY = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "bfloat16": "BF16",
}
_TORCH = {
    "torch.bool": "BOOL",
    "torch.uint8": "U8",
    "torch.int8": "I8",
    "torch.int16": "I16",
    "torch.int32": "I32",
    "torch.int64": "I64",
    "torch.float16": "F16",
    "torch.float32": "F32",
    "torch.float64": "F64",
    "torch.bfloat16": "BF16",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
}


def _kind(name: str, value: Any) -> str:
    dtype = str(getattr(value, "dtype", type(value).__name__))
    kind = _TORCH.get(dtype) if dtype.startswith("torch.") else _NUMPY.get(dtype)
    if kind is None:
        raise TypeError(f"{name!r} is a {dtype}, which safetensors files do not support")
    return kind


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    return int(value.numel() * value.element_size())


def _bytes(value: Any) -> memoryview:
    """Returns the bytes of an array or tensor, row-major and little-endian."""
    if not isinstance(value, np.ndarray):
        import torch

        tensor = value.detach().cpu().contiguous()
        value = tensor.reshape(-1).view(torch.uint8).numpy()
    array = np.ascontiguousarray(value)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return memoryview(array.reshape(-1).view(np.uint8))


def write(file: BinaryIO, state: Mapping[str, Any]) -> None:
    """Writes arrays or tensors by name; copies at most one of them at a time."""
    for name, value in state.items():
        if not isinstance(value, np.ndarray) and not hasattr(value, "element_size"):
            kind = type(value).__name__
            raise TypeError(f"{name!r} is a {kind}, not a NumPy array or a torch tensor")
    head: dict[str, Any] = {}
    begin = 0
    for name, value in state.items():
        end = begin + _size(value)
        head[name] = {
            "dtype": _kind(name, value),
            "shape": list(value.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for value in state.values():
        file.write(_bytes(value))
