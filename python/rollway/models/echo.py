"""Model that repeats its input, for tests and benchmarks of the engine."""

from __future__ import annotations

import importlib
import json
from typing import Any

from rollway.models.base import Messages, Model, Reply, RunModel, openai

#: Token at the end of every completion.
END = 256
#: Token before every message of the prompt.
BEGIN = 257


class Echo(Model):
    """Returns the last user message; immediate and deterministic.

    Tokens are the bytes of the text, then an end token; log-probabilities are zero. Turns are
    recorded.

        reply = await model.chat([{"role": "user", "content": "hello"}])
        assert reply.text == "hello"
    """

    name = "echo"
    api_key = "echo"
    records = True

    def __init__(self, model_version: int = 0) -> None:
        self.model_version = model_version

    def chat_once(self, messages: Messages, arguments: dict[str, Any]) -> list[Reply]:
        contents = [_content(message) for message in messages]
        users = [
            text
            for text, message in zip(contents, messages, strict=True)
            if message.get("role") == "user"
        ]
        text = users[-1] if users else contents[-1] if contents else ""
        prompt = [token for part in contents or [""] for token in (BEGIN, *part.encode())]
        answer = {"role": "assistant", "content": text}
        return self._replies("\n".join(contents), prompt, text, arguments, [*messages, answer])

    def generate_once(self, prompt: Any, arguments: dict[str, Any]) -> list[Reply]:
        if isinstance(prompt, str):
            return self._replies(prompt, [BEGIN, *prompt.encode()], prompt, arguments, None)
        tokens = [int(token) for token in prompt]
        text = bytes(token for token in tokens if token < 256).decode(errors="replace")
        return self._replies(text, tokens or [BEGIN], text, arguments, None)

    def _replies(
        self,
        prompt_text: str,
        prompt: list[int],
        text: str,
        arguments: dict[str, Any],
        messages: list[dict[str, Any]] | None,
    ) -> list[Reply]:
        tokens = [*text.encode(), END]
        max_tokens = arguments.get("max_tokens")
        reason = "stop"
        if max_tokens is not None and len(tokens) > max_tokens:
            tokens, reason = tokens[: max(int(max_tokens), 1)], "length"
            text = bytes(token for token in tokens if token < 256).decode(errors="ignore")
        return [
            Reply(
                text=text,
                prompt_text=prompt_text,
                tokens=tokens,
                prompt_tokens=prompt,
                logprobs=[0.0] * len(tokens),
                messages=messages,
                finish_reason=reason,
                model_version=self.model_version,
            )
            for _ in range(int(arguments.get("n") or 1))
        ]

    def openai_arguments(self, handle: RunModel, is_async: bool) -> dict[str, Any]:
        # HTTP library of the installed `openai` version.
        successor = hasattr(openai(), "DefaultHttpx2Client")
        httpx = importlib.import_module("httpx2" if successor else "httpx")

        def answer(request: Any) -> Any:
            return httpx.Response(200, json=self._completion(handle, json.loads(request.content)))

        async def answer_async(request: Any) -> Any:
            return answer(request)

        # No server: requests are answered inside the client.
        client = (
            httpx.AsyncClient(transport=httpx.MockTransport(answer_async))
            if is_async
            else httpx.Client(transport=httpx.MockTransport(answer))
        )
        return {"base_url": "http://echo/v1", "api_key": self.api_key, "http_client": client}

    def _completion(self, handle: RunModel, body: dict[str, Any]) -> dict[str, Any]:
        replies = self.chat_once(body.get("messages", []), body)
        handle.history.extend(reply.experience for reply in replies)
        return {
            "id": "echo",
            "object": "chat.completion",
            "created": 0,
            "model": body.get("model", "echo"),
            "choices": [
                {
                    "index": index,
                    "finish_reason": reply.finish_reason,
                    "message": {"role": "assistant", "content": reply.text},
                }
                for index, reply in enumerate(replies)
            ],
        }


def _content(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    # Only the text parts of a multi-modal message are used.
    parts = content if isinstance(content, list) else []
    return "".join(part.get("text", "") for part in parts if isinstance(part, dict))
