"""Models that runs call through the gateway."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollway import _rollway
from rollway.client._pending import PendingResult
from rollway.errors import Error, InvalidOutput, ModelError, ModelUnavailable, Unsupported
from rollway.experience import Experience
from rollway.models import turns
from rollway.models.base import Messages, Model, Reply, RunModel, message_list

_CHAT = "/v1/chat/completions"
_COMPLETION = "/v1/completions"
_USAGE = "/rollway/v1/run/usage"
_EXPERIENCES = "/rollway/v1/run/experiences?since="


class GatewayModel(Model):
    """A model behind the gateway; has no address or key of an inference server."""

    def __init__(self, name: str, engine: str, trained: bool) -> None:
        self.name = name
        self.engine = engine
        self.trained = trained
        self.records = trained and engine in turns.TOKEN_ENGINES
        self._client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_client": None}

    def connect(self, url: str, key: str | None = None) -> None:
        """Sets the address of the gateway, and the key for calls outside of runs.

        The address may have the fingerprint of a certificate: `https://HOST:PORT#FINGERPRINT`.
        """
        root = url.removesuffix("/v1")
        self.base_url = f"{root.partition('#')[0]}/v1"
        self.api_key = key
        self._client = _rollway.ModelClient(root)

    def bind(self, is_async: bool, key: str | None = None) -> RunModel:
        if self._client is None:
            raise Error(f"there is no gateway for model {self.name}")
        return GatewayRunModel(self, is_async, key or self.api_key)

    def ask(self, path: str, key: str | None, body: dict[str, Any] | None) -> Any:
        """Starts a call; its result is status, model version, number of turns and body."""
        if key is None:
            raise Error(
                f"the run has no key for model {self.name}: it was started without a gateway"
            )
        return self._client.call(path, key, None if body is None else _encode(body))


class GatewayRunModel(RunModel):
    """Handle of one run on a gateway model; the gateway records the turns."""

    model: GatewayModel

    def __init__(self, model: GatewayModel, is_async: bool, key: str | None) -> None:
        super().__init__(model, is_async)
        self._clients: weakref.WeakSet[Any] = weakref.WeakSet()
        self.begin(key)

    def begin(self, key: str | None = None) -> None:
        super().begin(key)
        self._key = key or self.model.api_key
        # Number of taken turns, and of recorded turns at the last response.
        self._taken = self._known = 0
        self._version: int | None = None
        # Clients that the workflow created for an earlier run use the new key.
        for client in self._clients:
            client.api_key = self._key

    @property
    def api_key(self) -> str | None:
        return self._key

    @property
    def model_version(self) -> int:
        return self.model.model_version if self._version is None else self._version

    def chat(self, messages: Messages, n: int = 1, **arguments: Any) -> Any:
        call = self._chat(messages, n, arguments)
        return call if self.is_async else call.result()

    async def chat_async(self, messages: Messages, n: int = 1, **arguments: Any) -> Any:
        return await self._chat(messages, n, arguments)

    def generate(self, prompt: Any, n: int = 1, **arguments: Any) -> Any:
        call = self._generate(prompt, n, arguments)
        return call if self.is_async else call.result()

    async def generate_async(self, prompt: Any, n: int = 1, **arguments: Any) -> Any:
        return await self._generate(prompt, n, arguments)

    def _chat(self, messages: Messages, n: int, arguments: dict[str, Any]) -> PendingResult[Any]:
        sent = message_list(messages)
        body = self._body({"messages": sent}, n, arguments)
        wanted = body.get("logprobs")
        if wanted is not None and not isinstance(wanted, bool):
            # A number of alternatives, as in other engines.
            body["logprobs"] = True
            if int(wanted) > 0:
                body.setdefault("top_logprobs", int(wanted))
        if self.model.records:
            body["logprobs"] = body["return_token_ids"] = True
            if self.model.engine == "sglang":
                body["return_meta_info"] = True

        def replies(answer: dict[str, Any], version: int | None) -> Any:
            found = []
            for choice in _choices(answer):
                message = choice.get("message") or {}
                reply = self._reply(answer, choice, message.get("content"), version)
                reply.messages = [*sent, message]
                found.append(reply)
            return found if n != 1 else found[0]

        return self._ask("chat", _CHAT, body, replies)

    def _generate(self, prompt: Any, n: int, arguments: dict[str, Any]) -> PendingResult[Any]:
        given = prompt if isinstance(prompt, str) else [int(token) for token in prompt]
        body = self._body({"prompt": given}, n, arguments)
        if isinstance(body.get("logprobs"), bool):
            body["logprobs"] = 0 if body["logprobs"] else None
        if self.model.records:
            body.setdefault("logprobs", 0)
            body["return_token_ids"] = True

        def replies(answer: dict[str, Any], version: int | None) -> Any:
            found = []
            for choice in _choices(answer):
                reply = self._reply(answer, choice, choice.get("text"), version)
                reply.prompt_text = given if isinstance(given, str) else ""
                found.append(reply)
            return found if n != 1 else found[0]

        return self._ask("generate", _COMPLETION, body, replies)

    def prompt_logprobs(self, tokens: Sequence[int], temperature: float | None = None) -> Any:
        call = self._prompt_logprobs(tokens, temperature)
        return call if self.is_async else call.result()

    async def prompt_logprobs_async(
        self, tokens: Sequence[int], temperature: float | None = None
    ) -> list[float]:
        return await self._prompt_logprobs(tokens, temperature)

    def _prompt_logprobs(
        self, tokens: Sequence[int], temperature: float | None
    ) -> PendingResult[list[float]]:
        prompt = [int(token) for token in tokens]
        scoring = {"echo": True, "max_tokens": 0, "logprobs": 0, "temperature": temperature}
        body = self._body({"prompt": prompt}, 1, scoring)

        def scores(answer: dict[str, Any], version: int | None) -> list[float]:
            found = (_choices(answer)[0].get("logprobs") or {}).get("token_logprobs") or []
            if len(found) < len(prompt) or None in found[1 : len(prompt)]:
                raise Unsupported(
                    f"model {self.model.name} reports no log-probabilities of given tokens: its "
                    "server must support `echo` of the completions API",
                    name="prompt_logprobs",
                )
            return [float(value) for value in found[1 : len(prompt)]]

        return self._ask("prompt_logprobs", _COMPLETION, body, scores)

    def _body(self, what: dict[str, Any], n: int, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments.get("stream"):
            raise ValueError(
                "for a stream use model.openai_client() or model.async_openai_client()"
            )
        given = {name: value for name, value in arguments.items() if value is not None}
        return {"model": self.model.name, **what, "n": n, **given}

    def _reply(
        self, answer: dict[str, Any], choice: dict[str, Any], text: Any, version: int | None
    ) -> Reply:
        index = choice.get("index") or 0
        tokens, prompt, logprobs = turns.token_data(answer, choice)
        reply = GatewayReply(
            text=text if isinstance(text, str) else "",
            tokens=tokens,
            prompt_tokens=prompt,
            logprobs=logprobs,
            finish_reason=choice.get("finish_reason"),
            model_version=self.model_version if version is None else version,
            raw=answer,
        )
        reply.run = self
        reply.id = str(answer.get("id")) + (f"/{index}" if index else "")
        return reply

    def _ask(
        self,
        name: str,
        path: str,
        body: dict[str, Any] | None,
        convert: Callable[[dict[str, Any], int | None], Any],
    ) -> PendingResult[Any]:
        def answered(answer: tuple[int, int | None, int | None, bytes]) -> Any:
            status, version, _, content = answer
            if status != 200:
                raise _refusal(self.model.name, status, content)
            if version is not None:
                self._version = version
                self.model.model_version = max(self.model.model_version, version)
            return convert(json.loads(content), version)

        return PendingResult(name, lambda: self.model.ask(path, self._key, body), answered)

    def extract_experience_from_history(self, clear_history: bool = True) -> list[Experience]:
        return self._recorded(clear_history).result()

    async def extract_experience_from_history_async(
        self, clear_history: bool = True
    ) -> list[Experience]:
        return await self._recorded(clear_history)

    def _recorded(self, clear: bool) -> PendingResult[list[Experience]]:
        if not self.model.records:
            raise Error(turns.not_recorded(self.model.name, self.model.trained))
        return self._experiences(self._taken, clear)

    def _experiences(self, since: int, clear: bool = False) -> PendingResult[list[Experience]]:
        def answered(answer: tuple[int, int | None, int | None, bytes]) -> list[Experience]:
            status, _, count, content = answer
            if status != 200:
                raise _refusal(self.model.name, status, content)
            self._known = count or 0
            if clear:
                self._taken = self._known
            return Experience.deserialize_many(content)

        path = f"{_EXPERIENCES}{since}"
        return PendingResult("experiences", lambda: self.model.ask(path, self._key, None), answered)

    def turn(self, reply: GatewayReply) -> Experience:
        """Returns the recorded turn of a reply."""
        if not self.model.records:
            raise Error(turns.not_recorded(self.model.name, self.model.trained))
        # It is usually newer than the last request.
        for since in sorted({self._known, 0}, reverse=True):
            found = turns.find(self._experiences(since).result(), reply.id, reply)
            if found is not None:
                return found
        raise Error(f"the reply {reply.id} was not recorded in this run")

    async def usage_async(self) -> dict[str, Any]:
        def answered(answer: tuple[int, int | None, int | None, bytes]) -> dict[str, Any]:
            status, _, _, content = answer
            if status != 200:
                raise _refusal(self.model.name, status, content)
            return dict(json.loads(content))

        ask = self.model.ask
        return await PendingResult("usage", lambda: ask(_USAGE, self._key, None), answered)

    @property
    def history(self) -> list[Experience]:
        """Recorded turns that were not taken yet."""
        return self.extract_experience_from_history(clear_history=False)

    def openai_client(self) -> Any:
        return self._kept(super().openai_client())

    def async_openai_client(self) -> Any:
        return self._kept(super().async_openai_client())

    def _kept(self, client: Any) -> Any:
        self._clients.add(client)
        return client

    def openai_arguments(self, is_async: bool) -> dict[str, Any]:
        return {"base_url": self.base_url, "api_key": self._key or "none"}


class GatewayReply(Reply):
    """Response of a gateway model."""

    #: Calling run, and the name of the recorded turn.
    run: GatewayRunModel
    id: str

    @property
    def experience(self) -> Experience:
        """The recorded turn as an experience without a reward."""
        if self._experience is None:
            self._experience = self.run.turn(self)
        return self._experience


def _choices(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = sorted(answer.get("choices") or [], key=lambda choice: choice.get("index") or 0)
    if not choices:
        raise ModelError("the response of the model has no choices", status=200, type="empty")
    return choices


def _encode(body: dict[str, Any]) -> bytes:
    try:
        return (_rollway.plain_json(body) or json.dumps(body, default=_dumped)).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"the arguments of the call cannot be written as JSON: {error}") from None


def _dumped(value: Any) -> Any:
    """Converts messages of the `openai` package to dictionaries."""
    if hasattr(value, "model_dump"):
        return value.model_dump(exclude_none=True)
    raise TypeError(f"an object of type {type(value).__name__} cannot be written as JSON")


def _refusal(model: str | None, status: int, content: bytes) -> Error:
    """Converts an error response of the gateway to an exception."""
    try:
        error = json.loads(content)["error"]
        words, kind = str(error["message"]), str(error["type"])
    except (ValueError, KeyError, TypeError):
        words, kind = content[:1000].decode(errors="replace"), "unknown"
    if status in (429, 502, 503, 504):
        return ModelUnavailable(f"no response from model {model}: {words}", status=status)
    if status == 409:
        return InvalidOutput(words)
    return ModelError(f"model {model} refused the call: {words}", status=status, type=kind)


def connect(model: Model, url: str, key: str | None = None) -> None:
    """Sets the gateway address of a `GatewayModel`; other models are not changed."""
    if isinstance(model, GatewayModel):
        model.connect(url, key)
