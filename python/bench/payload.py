"""Experiences as bytes, next to pickle and safetensors, in one run.

    cargo xtask bench python

All three write the same arrays. safetensors has room for nothing else, so that text, ids and
labels are missing from its figures.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from safetensors.numpy import load, save

import rollway as rw

ROUNDS = 7
ARRAYS = ("tokens", "logprobs", "action_mask")


def experiences(count: int, length: int) -> list[rw.Experience]:
    """Returns samples with a prompt of one quarter."""
    random = np.random.default_rng(1)
    prompt = length // 4
    return [
        rw.Experience(
            tokens=random.integers(0, 150_000, length, dtype=np.int32),
            prompt_length=prompt,
            logprobs=random.normal(size=length - prompt).astype(np.float32),
            reward=1.0,
            info={"model_version": 3, "task_index": {"taskset_id": 0, "index": number}},
        )
        for number in range(count)
    ]


def fields(many: list[rw.Experience]) -> list[dict[str, Any]]:
    """Returns what pickle writes: plain dictionaries, since experiences pickle as payloads."""
    names = (*ARRAYS, "prompt_length", "reward", "info", "kind")
    return [
        {**{name: getattr(one, name) for name in names}, "eid": one.eid.to_dict()} for one in many
    ]


def best(work: Callable[[], Any]) -> tuple[float, Any]:
    """Returns the shortest of several times, in seconds, and what came of it."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - begin)
    return min(times), result


def row(name: str, size: int, write: float, read: float, count: int) -> None:
    print(f"  {name:<28}{count / write:>12,.0f}{count / read:>12,.0f}{size / count:>12,.0f}")


def main() -> None:
    for count, length in ((1000, 256), (200, 8192)):
        many = experiences(count, length)
        print(f"{count} experiences of {length} tokens: written/s, read/s, bytes each")
        write, payload = best(lambda: rw.Experience.serialize_many(many))
        read, back = best(lambda: rw.Experience.deserialize_many(payload))
        assert back == many
        row("rollway", len(payload), write, read, count)
        plain = fields(many)
        write, pickled = best(lambda: pickle.dumps(plain, protocol=5))
        read, _ = best(lambda: pickle.loads(pickled))
        row("pickle of plain dictionaries", len(pickled), write, read, count)
        arrays = {
            f"{number}/{name}": getattr(one, name)
            for number, one in enumerate(many)
            for name in ARRAYS
        }
        write, saved = best(lambda: save(arrays))
        read, _ = best(lambda: load(saved))
        row("safetensors, arrays alone", len(saved), write, read, count)


if __name__ == "__main__":
    main()
