"""Mock inference server, for tests and for workflows without a GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollway import _rollway
from rollway.client._pending import PendingResult, identity
from rollway.models.openai import Engine, OpenAI


@dataclass(frozen=True)
class MockRequest:
    """A request to a mock server, with its response."""

    path: str
    body: dict[str, Any]
    #: Prompt tokens.
    prompt: list[int]
    #: Choices, each a list of token, log-probability and model version.
    choices: list[list[tuple[int, float, int]]]
    #: `complete`, `aborted`, `left` (client disconnected) or `failed`; `None`: in progress.
    end: str | None


class MockServer(OpenAI):
    """A model behind a mock server in this process, with the API of vLLM, SGLang or OpenAI:

        with rw.Scheduler(rw.Config(), [rw.models.MockServer(seed=7)]) as scheduler:
            ...

    Completions are nonsense and deterministic for a seed, prompt and version. `turns` prescribes
    those of conversations with tools: texts, or tool calls as pairs of name and arguments. The
    server stops with the last reference to the model or at `stop()`.
    """

    def __init__(
        self,
        engine: Engine = "vllm",
        model: str = "mock",
        *,
        seed: int = 0,
        first_token: float = 0.0,
        tokens_per_second: float = 0.0,
        lengths: tuple[int, int] = (8, 64),
        version: int = 0,
        fail_rate: float = 0.0,
        tool_call_rate: float = 0.0,
        api_key: str | None = None,
        turns: Sequence[str | tuple[str, Mapping[str, Any]]] = (),
    ) -> None:
        self._server = _rollway.MockServer(
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
            [_turn(one) for one in turns],
        )
        super().__init__(f"{self._server.url}/v1", model, api_key, engine)

    @property
    def requests(self) -> list[MockRequest]:
        """Requests that the server received, oldest first."""
        return [
            MockRequest(path, json.loads(body), prompt, choices, end)
            for path, body, prompt, choices, end in self._server.records()
        ]

    @property
    def counts(self) -> dict[str, int]:
        """Counters of the server."""
        return self._server.counts()

    def wait_for(self, name: str, least: int) -> PendingResult[dict[str, int]]:
        """Waits until one of the `counts` is at least `least` and returns all of them."""
        return PendingResult("wait_for", lambda: self._server.wait_for(name, least), identity)

    def hold(self, tokens: int) -> None:
        """Stops completions at this many tokens until `release`."""
        self._server.hold(tokens)

    def release(self) -> None:
        """Resumes held completions."""
        self._server.hold(None)

    def fail(self, status: int = 0, times: int = 1) -> None:
        """Fails the next requests with an HTTP status; 0 drops their connections."""
        self._server.fail(status, times)

    def omit_token_ids(self, times: int = 1) -> None:
        """Omits token ids from the next responses."""
        self._server.omit_token_ids(times)

    def stop(self) -> None:
        """Stops the server without a graceful shutdown."""
        PendingResult("stop", self._server.stop, identity).result()


def _turn(turn: str | tuple[str, Mapping[str, Any]]) -> tuple[str | None, str]:
    if isinstance(turn, str):
        return None, turn
    name, arguments = turn
    return name, json.dumps(dict(arguments))
