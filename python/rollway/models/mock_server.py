"""A simulated inference server: to try workflows without a GPU, and for tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from rollway import _rollway
from rollway.client._pending import Call, same
from rollway.models.openai import OpenAI


@dataclass(frozen=True)
class SimulatedRequest:
    """A request to a simulated server, and what was said to it."""

    path: str
    body: dict[str, Any]
    #: The tokens of the prompt.
    prompt: list[int]
    #: The choices, each a list of a token, its log-probability and the version that produced it.
    choices: list[list[tuple[int, float, int]]]
    #: `complete`, `aborted`, `left` (the client was gone) or `failed`; none while it goes on.
    end: str | None


class Simulated(OpenAI):
    """A model behind a simulated server in this process, which speaks like vLLM or SGLang::

        with rw.Scheduler(rw.Config(), [rw.models.Simulated(seed=7)]) as scheduler:
            ...

    What it says is nonsense, always the same for the same seed, prompt and version. The server ends
    with the last reference to the model, or at `stop()`.
    """

    def __init__(
        self,
        engine: Literal["vllm", "sglang", "openai"] = "vllm",
        model: str = "simulated",
        *,
        seed: int = 0,
        first_token: float = 0.0,
        tokens_per_second: float = 0.0,
        lengths: tuple[int, int] = (8, 64),
        version: int = 0,
        fail_rate: float = 0.0,
        tool_call_rate: float = 0.0,
        api_key: str | None = None,
    ) -> None:
        self._server = _rollway.SimulatedServer(
            engine,
            model,
            seed,
            first_token,
            tokens_per_second,
            lengths,
            version,
            fail_rate,
            tool_call_rate,
            api_key,
        )
        super().__init__(f"{self._server.url}/v1", model, api_key, engine)

    @property
    def requests(self) -> list[SimulatedRequest]:
        """The requests that the server has taken in, oldest first."""
        return [
            SimulatedRequest(path, json.loads(body), prompt, choices, end)
            for path, body, prompt, choices, end in self._server.records()
        ]

    @property
    def counts(self) -> dict[str, int]:
        """What goes on in the server, in numbers."""
        return self._server.counts()

    def wait_for(self, name: str, least: int) -> Call[dict[str, int]]:
        """Waits until one of the `counts` is at least so high, and returns them."""
        return Call("wait_for", lambda: self._server.wait_for(name, least), same)

    def hold(self, tokens: int) -> None:
        """Lets no answer have more than this many tokens, until `release`."""
        self._server.hold(tokens)

    def release(self) -> None:
        """Lets held answers go on."""
        self._server.hold(None)

    def fail(self, status: int = 0, times: int = 1) -> None:
        """Refuses the next requests with a status; 0 loses their connections."""
        self._server.fail(status, times)

    def omit_token_ids(self, times: int = 1) -> None:
        """Leaves token ids out of the next answers, although they were asked for."""
        self._server.omit_token_ids(times)

    def stop(self) -> None:
        """Ends the server, like a crash does."""
        Call("stop", self._server.stop, same).result()
