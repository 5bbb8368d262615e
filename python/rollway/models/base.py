"""Base classes of models and of their handles for runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rollway.errors import Error, MissingPackage, Unsupported
from rollway.experience import Experience
from rollway.stages import waiting

Messages = Sequence[dict[str, Any]]


@dataclass
class Reply:
    """Response of a model.

    `tokens`, `prompt_tokens` and `logprobs` are `None` if the server does not report them; then
    there is no `experience` either.
    """

    text: str
    prompt_text: str = ""
    tokens: list[int] | None = None
    prompt_tokens: list[int] | None = None
    logprobs: list[float] | None = None
    messages: list[dict[str, Any]] | None = None
    finish_reason: str | None = "stop"
    model_version: int = 0
    raw: Any = field(default=None, repr=False)
    _experience: Experience | None = field(default=None, repr=False)

    @property
    def experience(self) -> Experience:
        """The turn as an experience without a reward."""
        if self.tokens is None or not self.prompt_tokens:
            raise Error(
                "the server reported no token ids, so the turn cannot be trained on: "
                "this model does not record turns"
            )
        if self._experience is None:
            self._experience = Experience(
                tokens=[*self.prompt_tokens, *self.tokens],
                prompt_length=len(self.prompt_tokens),
                logprobs=self.logprobs,
                prompt_text=self.prompt_text,
                response_text=self.text,
                messages=self.messages,
                info={"model_version": self.model_version},
                truncate_status="response_truncated" if self.finish_reason == "length" else None,
            )
        return self._experience


class Model:
    """Base class of models. Subclasses define `chat_once`, `generate_once` and their async forms.

    Models are pickled for worker processes: open connections where they are used.
    """

    #: Name of the model at the server.
    name: str | None = None
    #: Base URL for OpenAI-compatible clients; `None`: no server.
    base_url: str | None = None
    api_key: str | None = None
    #: Version of the weights, if known.
    model_version: int = 0
    #: `True`: turns are recorded with token ids, for training.
    records: bool = False

    def chat_once(self, messages: Messages, arguments: dict[str, Any]) -> list[Reply]:
        """Completes a chat; returns one reply per sample."""
        raise NotImplementedError

    def generate_once(self, prompt: Any, arguments: dict[str, Any]) -> list[Reply]:
        """Completes a text; returns one reply per sample."""
        raise NotImplementedError

    async def chat_once_async(self, messages: Messages, arguments: dict[str, Any]) -> list[Reply]:
        """As `chat_once`, awaitable."""
        return self.chat_once(messages, arguments)

    async def generate_once_async(self, prompt: Any, arguments: dict[str, Any]) -> list[Reply]:
        """As `generate_once`, awaitable."""
        return self.generate_once(prompt, arguments)

    def openai_arguments(self, handle: RunModel, is_async: bool) -> dict[str, Any]:
        """Returns the constructor arguments for clients of the `openai` package."""
        return {"base_url": self.base_url, "api_key": self.api_key or "none"}

    def bind(self, is_async: bool, key: str | None = None) -> RunModel:
        """Returns the handle of one run, with its run key."""
        return RunModel(self, is_async)


def message_list(messages: Messages) -> list[dict[str, Any]]:
    """Returns the messages of a chat; refuses a text, whose letters would be taken for them."""
    if isinstance(messages, (str, bytes, dict)):
        raise TypeError(
            "chat() takes a list of messages, such as [{'role': 'user', 'content': 'Hello'}], "
            f"not a {type(messages).__name__}; `generate()` completes a text"
        )
    return list(messages)


class RunModel:
    """Handle of one run on a model: calls, clients, and the history of this run.

    In async workflows `chat` and `generate` are awaited; in blocking ones they return the reply.
    """

    def __init__(self, model: Model, is_async: bool) -> None:
        self.model = model
        self.is_async = is_async
        self._turns: list[Experience] = []
        self.state: dict[str, Any] = {}

    def begin(self, key: str | None = None) -> None:
        """Resets the handle for another run with its run key."""
        self._turns.clear()
        self.state.clear()

    @property
    def history(self) -> list[Experience]:
        """Recorded turns that were not taken yet."""
        return self._turns

    @property
    def name(self) -> str | None:
        """Name of the model at the server."""
        return self.model.name

    @property
    def base_url(self) -> str | None:
        """Base URL for OpenAI-compatible clients; `None`: no server."""
        return self.model.base_url

    @property
    def api_key(self) -> str | None:
        """API key for such clients."""
        return self.model.api_key

    @property
    def model_version(self) -> int:
        """Version of the weights, if known."""
        return self.model.model_version

    def chat(self, messages: Messages, n: int = 1, **arguments: Any) -> Any:
        """Completes a chat; returns a `Reply`, or a list if `n` is not 1."""
        if self.is_async:
            return self.chat_async(messages, n=n, **arguments)
        with waiting(self.name):
            replies = self.model.chat_once(message_list(messages), {"n": n, **arguments})
        return self._record(replies, n)

    async def chat_async(self, messages: Messages, n: int = 1, **arguments: Any) -> Any:
        """As `chat`, awaitable in any workflow."""
        with waiting(self.name):
            listed = message_list(messages)
            replies = await self.model.chat_once_async(listed, {"n": n, **arguments})
        return self._record(replies, n)

    def generate(self, prompt: Any, n: int = 1, **arguments: Any) -> Any:
        """Completes a text or token ids; returns a `Reply`, or a list if `n` is not 1."""
        if self.is_async:
            return self.generate_async(prompt, n=n, **arguments)
        with waiting(self.name):
            replies = self.model.generate_once(prompt, {"n": n, **arguments})
        return self._record(replies, n)

    async def generate_async(self, prompt: Any, n: int = 1, **arguments: Any) -> Any:
        """As `generate`, awaitable in any workflow."""
        with waiting(self.name):
            replies = await self.model.generate_once_async(prompt, {"n": n, **arguments})
        return self._record(replies, n)

    def prompt_logprobs(self, tokens: Sequence[int], temperature: float | None = None) -> Any:
        """Returns the log-probabilities of all tokens but the first, given those before them.

        Nothing is generated or recorded. In async workflows it is awaited.
        """
        raise Unsupported(
            f"{type(self.model).__name__} reports no log-probabilities of given tokens",
            name="prompt_logprobs",
        )

    async def prompt_logprobs_async(
        self, tokens: Sequence[int], temperature: float | None = None
    ) -> list[float]:
        """As `prompt_logprobs`, awaitable in any workflow."""
        return self.prompt_logprobs(tokens, temperature)

    def _record(self, replies: list[Reply], n: int) -> Any:
        if self.model.records:
            self._turns.extend(reply.experience for reply in replies)
        return replies if n != 1 else replies[0]

    def extract_experience_from_history(self, clear_history: bool = True) -> list[Experience]:
        """Returns the recorded turns of this run; removes them by default."""
        if not self.model.records:
            raise Error(f"{type(self.model).__name__} does not record turns")
        turns = list(self._turns)
        if clear_history:
            self._turns.clear()
        return turns

    async def extract_experience_from_history_async(
        self, clear_history: bool = True
    ) -> list[Experience]:
        """As `extract_experience_from_history`, awaitable."""
        return self.extract_experience_from_history(clear_history)

    def openai_client(self) -> Any:
        """Returns a client of the `openai` package for this model."""
        return openai().OpenAI(**self.openai_arguments(is_async=False))

    def async_openai_client(self) -> Any:
        """Returns an async client of the `openai` package for this model."""
        return openai().AsyncOpenAI(**self.openai_arguments(is_async=True))

    def openai_arguments(self, is_async: bool) -> dict[str, Any]:
        """Returns the constructor arguments for clients of the `openai` package."""
        return self.model.openai_arguments(self, is_async)

    async def usage_async(self) -> dict[str, Any]:
        """Returns the model usage of this run; empty if no gateway counts it.

        Has `model_calls`, `prompt_tokens`, `completion_tokens`, `tool_turns`, `exhausted` (the key
        of the budget that was used up) and `unavailable` (the last call was not answered).
        """
        return {}

    def set_workflow_state(self, state: dict[str, Any]) -> None:
        """Adds entries to the runner's state."""
        self.state.update(state)

    def get_workflow_state(self) -> dict[str, Any]:
        """Returns the entries that the workflow added to the runner's state."""
        return dict(self.state)

    def clean_workflow_state(self) -> None:
        """Removes the entries of the workflow; the history stays."""
        self.state.clear()


def openai() -> Any:
    """Returns the `openai` package; raises `MissingPackage`."""
    try:
        import openai
    except ImportError as error:
        raise MissingPackage(
            "the openai package is not installed: pip install rollway[openai]", package="openai"
        ) from error
    return openai
