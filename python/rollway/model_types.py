"""Types of the `model` argument of workflows, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Literal, Protocol, overload

from rollway.experience import Experience
from rollway.models.base import Reply

#: Messages of a chat, as in OpenAI's API.
ChatMessages = Sequence[Mapping[str, Any]]


class RunHandle(Protocol):
    """Part of a model handle that async and blocking workflows share."""

    @property
    def name(self) -> str | None: ...
    @property
    def base_url(self) -> str | None: ...
    @property
    def api_key(self) -> str | None: ...
    @property
    def model_version(self) -> int: ...
    @property
    def history(self) -> list[Experience]: ...
    def extract_experience_from_history(self, clear_history: bool = True) -> list[Experience]: ...
    async def extract_experience_from_history_async(
        self, clear_history: bool = True
    ) -> list[Experience]: ...
    def prompt_logprobs(self, tokens: Sequence[int], temperature: float | None = None) -> Any: ...
    async def prompt_logprobs_async(
        self, tokens: Sequence[int], temperature: float | None = None
    ) -> list[float]: ...
    async def usage_async(self) -> dict[str, Any]: ...
    def openai_client(self) -> Any: ...
    def async_openai_client(self) -> Any: ...


class Model(RunHandle, Protocol):
    """The `model` argument of async workflows:

        async def solve(task: rw.Task, model: rw.Model) -> float:
            reply = await model.chat([{"role": "user", "content": task.raw_task["question"]}])
            return float(reply.text == task.raw_task["answer"])

    `base_url` and `api_key` are for other clients, whose calls are recorded alike.
    """

    @overload
    def chat(
        self, messages: ChatMessages, n: Literal[1] = 1, **arguments: Any
    ) -> Awaitable[Reply]: ...
    @overload
    def chat(self, messages: ChatMessages, n: int, **arguments: Any) -> Awaitable[list[Reply]]: ...
    def chat(self, messages: ChatMessages, n: int = 1, **arguments: Any) -> Any:
        """Completes a chat; `n` other than 1: a list of replies."""
        ...

    @overload
    def generate(
        self, prompt: str | Sequence[int], n: Literal[1] = 1, **arguments: Any
    ) -> Awaitable[Reply]: ...
    @overload
    def generate(
        self, prompt: str | Sequence[int], n: int, **arguments: Any
    ) -> Awaitable[list[Reply]]: ...
    def generate(self, prompt: str | Sequence[int], n: int = 1, **arguments: Any) -> Any:
        """Completes a text or token ids; `n` other than 1: a list of replies."""
        ...


class BlockingModel(RunHandle, Protocol):
    """The `model` argument of blocking workflows: as `Model`, with calls that return the reply."""

    @overload
    def chat(self, messages: ChatMessages, n: Literal[1] = 1, **arguments: Any) -> Reply: ...
    @overload
    def chat(self, messages: ChatMessages, n: int, **arguments: Any) -> list[Reply]: ...
    def chat(self, messages: ChatMessages, n: int = 1, **arguments: Any) -> Any:
        """Completes a chat; `n` other than 1: a list of replies."""
        ...

    @overload
    def generate(
        self, prompt: str | Sequence[int], n: Literal[1] = 1, **arguments: Any
    ) -> Reply: ...
    @overload
    def generate(self, prompt: str | Sequence[int], n: int, **arguments: Any) -> list[Reply]: ...
    def generate(self, prompt: str | Sequence[int], n: int = 1, **arguments: Any) -> Any:
        """Completes a text or token ids; `n` other than 1: a list of replies."""
        ...
