"""The embedded model: a language model that comes with the package."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from rollway import _rollway
from rollway.client._pending import PendingResult, identity
from rollway.models.openai import OpenAI


class Tiny(OpenAI):
    """The embedded model, behind a server in this process: nothing to start, nothing to download::

        with rw.Scheduler(rw.Config(), [rw.models.Tiny(seed=7)]) as scheduler:
            ...

    It knows the digits, `+` and `=`, and sums such as `07+35=042`, most of which it gets wrong
    until it is trained: see docs/tiny.md. `weights` are a safetensors file, or a folder with
    `model.safetensors` in it, of the same shape; none: those that came with the package. `seed`
    decides what chance does.

    The server ends with the last reference to the model, or at `stop()`. Copies in other processes
    know its address.
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
        super().__init__(f"{self._server.url}/v1", model, None, "vllm")

    @staticmethod
    def export(path: str | os.PathLike[str]) -> None:
        """Writes the weights that came with the package to a safetensors file, for a trainer."""
        _rollway.TinyServer.export(os.fspath(path))

    @property
    def counts(self) -> dict[str, int]:
        """What went on in the server, in numbers."""
        return self._server.counts()

    @property
    def weights_version(self) -> int | None:
        """The version of the weights that the server has; none if it was stopped."""
        version = self._server.version
        return None if version is None else int(version)

    def stop(self) -> None:
        """Ends the server: what is under way fails."""
        PendingResult("stop", self._server.stop, identity).result()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenAI, (self.base_url, self.name, None, "vllm")


def _file(weights: str | os.PathLike[str] | None) -> str | None:
    if weights is None:
        return None
    path = pathlib.Path(weights)
    return str(path / "model.safetensors" if path.is_dir() else path)
