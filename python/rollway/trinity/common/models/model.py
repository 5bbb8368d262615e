"""Model handles with the methods of Trinity-RFT."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Generator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from rollway.errors import Error, Unsupported
from rollway.experience import Experience as PlainExperience
from rollway.models.base import Model as InferenceModel
from rollway.models.base import Reply, RunModel
from rollway.trinity.common.experience import Experience, _tensor, wrapped
from rollway.trinity.common.models.mm_utils import mm_messages, openai_messages

__all__ = ["UNSUPPORTED", "InferenceModel", "ModelWrapper"]

_JOB_UPDATES = "the job updates the weights of its servers: see `synchronizer.sync_method`"
_NO_TEXT_MEDIA = (
    "the completions API of inference servers takes no images: use chat_mm, or chat with content "
    "parts"
)

#: Methods of Trinity-RFT's model actor without a counterpart, and the reason.
UNSUPPORTED = {
    "generate_mm": _NO_TEXT_MEDIA,
    "generate_mm_async": _NO_TEXT_MEDIA,
    "get_message_token_len": (
        "workers have no tokenizer: `len(experience.tokens)` of a response is the exact number"
    ),
    "get_current_load": "the gateway balances the servers: see its metrics for their load",
    "get_available_address_async": "the job starts and stops its inference servers",
    "clone_with_isolated_history": "every run has a handle and a history of its own",
    "init_process_group": _JOB_UPDATES,
    "teardown_process_group": _JOB_UPDATES,
    "set_state_dict_meta": _JOB_UPDATES,
    "sync_model_weights": _JOB_UPDATES,
    "shutdown": "the job stops its inference servers",
}


class _Done:
    """A result that is available at once, with and without `await`."""

    def __await__(self) -> Generator[Any, Any, None]:
        return None
        yield


class _State(dict[str, Any]):
    """A dictionary that may be awaited."""

    def __await__(self) -> Generator[Any, Any, dict[str, Any]]:
        return dict(self)
        yield


class ModelWrapper:
    """Handle of one run on a model.

    Calls return experiences: one per sample, with `response_text`, and with tokens and
    log-probabilities if the server reports them. `chat` and `generate` block, also in async
    workflows; `chat_async` and `generate_async` are awaited. Calls of the trained model are
    recorded by the gateway, those of OpenAI clients too.
    """

    def __init__(self, handle: RunModel) -> None:
        self._handle = handle
        self._client: Any = None
        self._async_client: Any = None
        self.config = SimpleNamespace(
            model_path=handle.name,
            name=handle.name,
            enable_history=self.enable_history,
            enable_openai_api=True,
            engine_type=getattr(handle.model, "engine", "external"),
        )

    @property
    def model(self) -> InferenceModel:
        """Model that all runs share."""
        return self._handle.model

    @property
    def enable_history(self) -> bool:
        """True if the server reports token ids: then all calls are recorded."""
        return self._handle.model.records

    @property
    def history(self) -> list[Experience]:
        """Recorded turns that were not taken yet."""
        return wrapped(self._handle.history)

    @property
    def model_version(self) -> int:
        """Version of the weights, if known."""
        return self._handle.model_version

    @property
    def model_version_async(self) -> Any:
        """As `model_version`, awaitable."""
        return _Ready(self._handle.model_version)

    @property
    def model_path(self) -> str | None:
        """Name of the model at the server."""
        return self._handle.name

    model_name = model_path

    @property
    def model_config(self) -> Any:
        """Name and server kind of the model."""
        return self.config

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        """Default arguments of calls: none, the gateway adds those of the configuration."""
        return {}

    @property
    def base_url(self) -> str | None:
        """Base URL for OpenAI clients."""
        return self._handle.base_url

    @property
    def api_address(self) -> str | None:
        """Address of the server, without `/v1`."""
        url = self._handle.base_url
        return None if url is None else url.removesuffix("/v1")

    @property
    def api_key(self) -> str | None:
        """Key of this run at the gateway."""
        return self._handle.api_key

    def set_api_key(self, api_key: str | None) -> None:
        """Checks the key of the run; the runner has set it before."""
        if api_key != self._handle.api_key:
            raise Error("the key of a run cannot be replaced: use task.api_key or model.api_key")

    async def prepare(self) -> None:
        """Returns at once: the handle of a run is ready."""

    def chat(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> list[Experience]:
        """Completes a chat; returns one experience per sample."""
        n, arguments = _arguments(kwargs)
        sent = openai_messages(messages)
        return self._experiences(self._blocking().chat(sent, n=n, **arguments))

    async def chat_async(
        self, messages: Sequence[dict[str, Any]], **kwargs: Any
    ) -> list[Experience]:
        """As `chat`, awaitable."""
        n, arguments = _arguments(kwargs)
        replies = await self._handle.chat_async(openai_messages(messages), n=n, **arguments)
        return await self._experiences_async(replies)

    def chat_mm(
        self,
        messages: Sequence[dict[str, Any]],
        images: Sequence[Any],
        videos: Sequence[Any],
        **kwargs: Any,
    ) -> list[Experience]:
        """As `chat`; `<image>` and `<video>` in the messages are replaced with the media in order.

        Media are addresses, paths, Pillow images, or arrays of frames. The recorded turns have the
        messages with the media, not the tensors that a trainer makes of them.
        """
        return self.chat(mm_messages(messages, images, videos), **kwargs)

    async def chat_mm_async(
        self,
        messages: Sequence[dict[str, Any]],
        images: Sequence[Any],
        videos: Sequence[Any],
        **kwargs: Any,
    ) -> list[Experience]:
        """As `chat_mm`, awaitable."""
        return await self.chat_async(mm_messages(messages, images, videos), **kwargs)

    def generate(self, prompts: str | Sequence[str], **kwargs: Any) -> list[Experience]:
        """Completes texts; returns the samples of all of them in order."""
        n, arguments = _arguments(kwargs)
        made = []
        for prompt in [prompts] if isinstance(prompts, str) else prompts:
            made += self._experiences(self._blocking().generate(prompt, n=n, **arguments))
        return made

    async def generate_async(self, prompts: str | Sequence[str], **kwargs: Any) -> list[Experience]:
        """As `generate`, awaitable."""
        n, arguments = _arguments(kwargs)
        made = []
        for prompt in [prompts] if isinstance(prompts, str) else prompts:
            replies = await self._handle.generate_async(prompt, n=n, **arguments)
            made += await self._experiences_async(replies)
        return made

    def logprobs(self, tokens: Sequence[int], temperature: float | None = None) -> Any:
        """Returns the log-probabilities of all tokens but the first, given those before them.

        The server must support `echo` of the completions API, as vLLM and SGLang do. The call is
        not recorded.
        """
        return _scores(self._blocking().prompt_logprobs(tokens, temperature))

    async def logprobs_async(self, tokens: Sequence[int], temperature: float | None = None) -> Any:
        """As `logprobs`, awaitable."""
        return _scores(await self._handle.prompt_logprobs_async(tokens, temperature))

    def get_lora_request(self) -> None:
        """Returns `None`: an adapter is a model of its own at the server."""

    async def get_lora_request_async(self) -> None:
        """As `get_lora_request`, awaitable."""

    def _blocking(self) -> RunModel:
        """Returns the handle for blocking calls; it shares the history of the run."""
        if not self._handle.is_async:
            return self._handle
        handle = copy.copy(self._handle)
        handle.is_async = False
        return handle

    def _experiences(self, replies: Reply | list[Reply]) -> list[Experience]:
        return [_experience(one) for one in ([replies] if isinstance(replies, Reply) else replies)]

    async def _experiences_async(self, replies: Reply | list[Reply]) -> list[Experience]:
        if not self.enable_history:
            return self._experiences(replies)
        # The turn is read from the gateway's recording.
        return await asyncio.to_thread(self._experiences, replies)

    def convert_messages_to_experience(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[Any] | None = None,
        temperature: float | None = None,
    ) -> Experience:
        """Returns the recorded turns of this conversation as one experience with an action mask.

        Tokens, log-probabilities and versions are those of the generation; nothing is tokenized
        again. The turns are taken from the history. Raises if no recorded conversation matches.
        """
        found = self._handle.extract_experience_from_history(clear_history=False)
        return _conversation(found, messages)

    async def convert_messages_to_experience_async(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[Any] | None = None,
        temperature: float | None = None,
    ) -> Experience:
        """As `convert_messages_to_experience`, awaitable."""
        found = await self._handle.extract_experience_from_history_async(clear_history=False)
        return _conversation(found, messages)

    def extract_experience_from_history(self, clear_history: bool = True) -> list[Experience]:
        """Returns the recorded turns of this run; removes them by default."""
        return wrapped(self._handle.extract_experience_from_history(clear_history))

    async def extract_experience_from_history_async(
        self, clear_history: bool = True
    ) -> list[Experience]:
        """As `extract_experience_from_history`, awaitable."""
        return wrapped(await self._handle.extract_experience_from_history_async(clear_history))

    def get_openai_client(self) -> Any:
        """Returns a client of the `openai` package; `client.model_path` is the model's name."""
        if self._client is None:
            self._client = self._handle.openai_client()
            self._client.model_path = self._handle.name
        return self._client

    def get_openai_async_client(self) -> Any:
        """As `get_openai_client`, async."""
        if self._async_client is None:
            self._async_client = self._handle.async_openai_client()
            self._async_client.model_path = self._handle.name
        return self._async_client

    def set_workflow_state(self, state: dict[str, Any]) -> Any:
        """Adds entries to the runner's state; may be awaited."""
        self._handle.set_workflow_state(state)
        return _Done()

    def get_workflow_state(self) -> Any:
        """Returns the entries that the workflow added to the runner's state; may be awaited."""
        return _State(self._handle.get_workflow_state())

    def clean_workflow_state(self) -> Any:
        """Removes the entries of the workflow and the recorded turns; may be awaited."""
        self._handle.clean_workflow_state()
        if self.enable_history:
            self._handle.extract_experience_from_history()
        return _Done()


def _unsupported(name: str, reason: str) -> Any:
    def method(self: ModelWrapper, *args: Any, **kwargs: Any) -> Any:
        raise Unsupported(f"ModelWrapper.{name} is not available: {reason}", name=name)

    method.__name__ = name
    method.__doc__ = f"Raises `Unsupported`: {reason}."
    return method


for _name, _reason in UNSUPPORTED.items():
    setattr(ModelWrapper, _name, _unsupported(_name, _reason))


def _scores(values: list[float]) -> Any:
    """Returns numbers as a tensor; as a NumPy array without torch."""
    return _tensor(np.asarray(values, dtype=np.float32))


class _Ready:
    def __init__(self, value: Any) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._value
        yield


def _arguments(kwargs: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Returns the number of samples and the arguments that are set."""
    given = {name: value for name, value in kwargs.items() if value is not None}
    if given.get("top_k") == -1:
        del given["top_k"]
    return int(given.pop("n", 1)), given


def _experience(reply: Reply) -> Experience:
    """Returns a reply as an experience; without token ids it has only texts."""
    if reply.tokens is not None and reply.prompt_tokens:
        return Experience.of(reply.experience)
    status = "response_truncated" if reply.finish_reason == "length" else None
    text = Experience(
        # A placeholder for replies of servers that report no token ids, such as judges.
        tokens=[0, 0],
        prompt_length=1,
        prompt_text=reply.prompt_text,
        response_text=reply.text,
        messages=reply.messages,
        truncate_status=status,
        info={"model_version": reply.model_version},
    )
    text.has_no_tokens = True
    return text


def _conversation(
    recorded: list[PlainExperience], messages: Sequence[dict[str, Any]]
) -> Experience:
    """Returns the recorded experience whose conversation ends with these messages' last reply."""
    replies = [str(one.get("content") or "") for one in messages if one.get("role") == "assistant"]
    if not replies:
        raise ValueError("the messages contain no reply of the model")
    for experience in reversed(recorded):
        if _last_reply(experience) == replies[-1]:
            found = Experience.of(copy.copy(experience))
            if experience.kind != "multi_turn":
                # A single turn: the mask covers its response.
                found.kind = "multi_turn"
                found.action_mask = np.ones(experience.response_length, dtype=np.bool_)
            if found.logprobs is None:
                found.logprobs = np.zeros(experience.response_length, dtype=np.float32)
            return found
    raise Error(
        f"no recorded turn of this run ends with the reply {replies[-1][:80]!r}: messages are "
        "converted from the recording, so the model must have generated them in this run"
    )


def _last_reply(experience: PlainExperience) -> str | None:
    for message in reversed(experience.messages or []):
        if message.get("role") == "assistant":
            return str(message.get("content") or "")
    return experience.response_text
