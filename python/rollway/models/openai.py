"""Any server that speaks the OpenAI API."""

from __future__ import annotations

from typing import Any, Literal

from rollway.errors import ModelUnavailable
from rollway.models.base import Messages, Model, Reply, openai


class OpenAI(Model):
    """A model behind an OpenAI-compatible server; needs the `openai` package.

    Calls are plain calls: token ids are not recorded, so that a reward alone does not make
    experiences to train on. Workflows for it return experiences of their own, or are evaluated. ::

        rw.models.OpenAI("http://127.0.0.1:8000/v1", model="qwen")
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        api_key: str | None = None,
        engine: Literal["openai", "vllm", "sglang"] = "openai",
    ) -> None:
        if engine not in ("openai", "vllm", "sglang"):
            raise ValueError(f"engine is openai, vllm or sglang, not {engine!r}")
        self.base_url = base_url
        self.name = model
        self.api_key = api_key
        self.engine = engine
        self._clients: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_clients": {}}

    def _client(self, kind: str) -> Any:
        if kind not in self._clients:
            arguments = {"base_url": self.base_url, "api_key": self.api_key or "none"}
            self._clients[kind] = getattr(openai(), kind)(**arguments)
        return self._clients[kind]

    def chat_once(self, messages: Messages, arguments: dict[str, Any]) -> list[Reply]:
        client = self._client("OpenAI")
        name = self.name or _first(self._call(client.models.list))
        answer = self._call(
            client.chat.completions.create, model=name, messages=messages, **arguments
        )
        return self._replies(messages, answer)

    async def chat_once_async(self, messages: Messages, arguments: dict[str, Any]) -> list[Reply]:
        # A client belongs to the event loop it was made in, and loops come and go.
        async with openai().AsyncOpenAI(**self.openai_arguments(None, True)) as client:
            name = self.name or _first(await self._await(client.models.list))
            create = client.chat.completions.create
            answer = await self._await(create, model=name, messages=messages, **arguments)
        return self._replies(messages, answer)

    def generate_once(self, prompt: Any, arguments: dict[str, Any]) -> list[Reply]:
        client = self._client("OpenAI")
        name = self.name or _first(self._call(client.models.list))
        answer = self._call(client.completions.create, model=name, prompt=prompt, **arguments)
        return [Reply(text=choice.text, raw=answer) for choice in answer.choices]

    async def generate_once_async(self, prompt: Any, arguments: dict[str, Any]) -> list[Reply]:
        async with openai().AsyncOpenAI(**self.openai_arguments(None, True)) as client:
            name = self.name or _first(await self._await(client.models.list))
            create = client.completions.create
            answer = await self._await(create, model=name, prompt=prompt, **arguments)
        return [Reply(text=choice.text, raw=answer) for choice in answer.choices]

    def openai_arguments(self, handle: Any, is_async: bool) -> dict[str, Any]:
        return {"base_url": self.base_url, "api_key": self.api_key or "none"}

    def _replies(self, messages: Messages, answer: Any) -> list[Reply]:
        return [
            Reply(
                text=choice.message.content or "",
                messages=[*messages, {"role": "assistant", "content": choice.message.content}],
                finish_reason=choice.finish_reason,
                raw=answer,
            )
            for choice in answer.choices
        ]

    def _call(self, function: Any, **arguments: Any) -> Any:
        try:
            return function(**arguments)
        except (openai().APIConnectionError, openai().InternalServerError) as error:
            raise self._unavailable(error) from error

    async def _await(self, function: Any, **arguments: Any) -> Any:
        try:
            return await function(**arguments)
        except (openai().APIConnectionError, openai().InternalServerError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> ModelUnavailable:
        return ModelUnavailable(f"{self.base_url} does not answer: {error}", base_url=self.base_url)


def _first(models: Any) -> str:
    return models.data[0].id
