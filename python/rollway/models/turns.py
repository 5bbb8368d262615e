"""Turns of a model: tokens of responses, and lookup of turns in experiences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollway._rollway import server_kinds
from rollway.errors import Error
from rollway.experience import Experience

if TYPE_CHECKING:
    from rollway.models.base import Reply

#: Server kinds that return token ids.
TOKEN_ENGINES = tuple(name for name, has_tokens, _ in server_kinds() if has_tokens)

TokenData = tuple["list[int] | None", "list[int] | None", "list[float] | None"]


def not_recorded(name: str | None, trained: bool) -> str:
    """Returns the error for missing recorded turns."""
    if not trained:
        return f"model {name} is not the trained model: its calls are not recorded"
    return (
        f"model {name} reports no token ids, so its turns cannot be trained on: set its "
        f"`engine` if it is one of {', '.join(TOKEN_ENGINES)}, or return experiences of your own"
    )


def token_data(answer: dict[str, Any], choice: dict[str, Any]) -> TokenData:
    """Returns tokens, prompt tokens and log-probabilities of a response, if present."""
    prompt = answer.get("prompt_token_ids") or choice.get("prompt_token_ids")
    tokens = choice.get("token_ids")
    logprob_data = choice.get("logprobs") or {}
    if "token_logprobs" in logprob_data:
        logprobs = logprob_data["token_logprobs"]
    else:
        entries = logprob_data.get("content")
        logprobs = None if entries is None else [entry.get("logprob") for entry in entries]
        if tokens is None and entries and all("id" in entry for entry in entries):
            tokens = [entry["id"] for entry in entries]
    triples = (choice.get("meta_info") or {}).get("output_token_logprobs")
    if tokens is None and triples is not None:
        tokens = [triple[1] for triple in triples]
        logprobs = [triple[0] for triple in triples]
    if logprobs is not None and tokens is not None and len(logprobs) != len(tokens):
        logprobs = None
    return tokens, prompt, logprobs


def find(experiences: list[Experience], name: str, reply: Reply) -> Experience | None:
    """Returns the turn of this name, cut out of its experience; `None`: not found."""
    for experience in experiences:
        names = experience.info.get("message_ids") or []
        if name in names:
            return _single_turn(experience, names.index(name), len(names), name, reply)
    return None


def _single_turn(
    whole: Experience, position: int, count: int, name: str, reply: Reply
) -> Experience:
    begin, end = _extent(whole, position, count, reply)
    first = whole.prompt_length
    logprobs = whole.logprobs
    versions = _versions(whole, begin - first, end - first)
    known = [version for version, _ in versions if version is not None]
    info = {key: value for key, value in whole.info.items() if key != "model_version"}
    info.update(message_ids=[name], turns=1, finish_reason=reply.finish_reason)
    if known:
        info["model_version"] = min(known)
    return Experience(
        tokens=whole.tokens[:end],
        prompt_length=begin,
        logprobs=None if logprobs is None else logprobs[begin - first : end - first],
        prompt_text=reply.prompt_text,
        response_text=reply.text,
        messages=reply.messages,
        tools=whole.tools,
        info=info,
        model_versions=versions or None,
        truncate_status="response_truncated" if reply.finish_reason == "length" else None,
    )


def _extent(whole: Experience, position: int, count: int, reply: Reply) -> tuple[int, int]:
    """Returns begin and end of a turn's response."""
    if reply.tokens is not None and reply.prompt_tokens:
        begin = len(reply.prompt_tokens)
        return begin, begin + len(reply.tokens)
    if count == 1:
        return whole.prompt_length, len(whole.tokens)
    # Responses are where the mask is true; other messages are between them.
    mask = np.concatenate([[False], np.asarray(whole.action_mask, dtype=bool), [False]])
    edges = np.flatnonzero(mask[1:] != mask[:-1])
    if len(edges) != 2 * count:
        raise Error("the turn cannot be separated from the next: take experiences from the history")
    begin, end = edges[2 * position], edges[2 * position + 1]
    return whole.prompt_length + int(begin), whole.prompt_length + int(end)


def _versions(whole: Experience, begin: int, end: int) -> list[tuple[int | None, int]]:
    """Returns the model versions of a part of the response."""
    found: list[tuple[int | None, int]] = []
    at = 0
    for version, tokens in whole.model_versions or []:
        part = min(at + tokens, end) - max(at, begin)
        if part > 0:
            found.append((version, part))
        at += tokens
    return found
