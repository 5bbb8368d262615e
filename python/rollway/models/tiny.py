"""The embedded model."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from rollway import _rollway
from rollway.client._pending import PendingResult, identity
from rollway.models.openai import OpenAI


class Tiny(OpenAI):
    """The embedded language model, served in this process; needs no download:

        with rw.Scheduler(rw.Config(), [rw.models.Tiny(seed=7)]) as scheduler:
            ...

    Its vocabulary is the digits, `+` and `=`; it completes sums such as `07+35=042`, most of them
    wrong until it is trained: see docs/tiny.md. `weights` is a safetensors file, or a folder with
    `model.safetensors`, of the same shape; `None`: the weights of the package. `seed` seeds the
    sampling.

    The server stops with the last reference to the model or at `stop()`. Copies in other processes
    have its address and its key, which is random.
    """

    def __init__(
        self,
        model: str = "tiny",
        *,
        weights: str | os.PathLike[str] | None = None,
        version: int = 0,
        seed: int = 0,
    ) -> None:
        self._server = _rollway.TinyServer(model, _file(weights), version, seed)
        super().__init__(f"{self._server.url}/v1", model, self._server.api_key, "vllm")

    @staticmethod
    def export(path: str | os.PathLike[str]) -> None:
        """Writes the weights of the package to a safetensors file."""
        _rollway.TinyServer.export(os.fspath(path))

    @property
    def counts(self) -> dict[str, int]:
        """Counters of the server."""
        return self._server.counts()

    @property
    def weights_version(self) -> int | None:
        """Version of the loaded weights; `None`: stopped."""
        version = self._server.version
        return None if version is None else int(version)

    def stop(self) -> None:
        """Stops the server; running calls fail."""
        PendingResult("stop", self._server.stop, identity).result()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenAI, (self.base_url, self.name, self.api_key, "vllm")


def _file(weights: str | os.PathLike[str] | None) -> str | None:
    if weights is None:
        return None
    path = pathlib.Path(weights)
    return str(path / "model.safetensors" if path.is_dir() else path)
