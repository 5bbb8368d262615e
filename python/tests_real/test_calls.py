"""Recorded calls on real servers: token ids and log-probabilities equal those of the server."""

from __future__ import annotations

import json
import os
import random
import time

import calls
import numpy as np
import pytest
import tiny_model
from calls import wait_for

#: Number of random calls of each kind of server.
CALLS = int(os.environ.get("ROLLWAY_REAL_CALLS", "200"))

# Many calls on a machine without a GPU: at most 20 seconds for each.
pytestmark = pytest.mark.timeout(3600 + 20 * CALLS)

#: llama-server: all tokens allowed, nothing kept; only ASCII, see docs/inference-servers.md.
LLAMA = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "cache_prompt": False}
LLAMA["logit_bias"] = {str(5 + byte): -100 for byte in range(128, 256)}


def random_call(draw: random.Random, kind: str) -> tuple[str, dict]:
    """Returns the path and the body of a random call."""
    body = {"max_tokens": draw.randint(1, 24), "seed": draw.randrange(1 << 30), "temperature": 1.0}
    body |= LLAMA if kind == "llama_cpp" else {}
    if draw.random() < 0.25:
        return "/v1/completions", body | {"prompt": calls.random_text(draw)}
    messages = [{"role": "user", "content": calls.random_text(draw)}]
    if draw.random() < 0.3:
        messages = [{"role": "system", "content": calls.random_text(draw)}, *messages]
    body["messages"] = messages
    if draw.random() < 0.2 and kind == "vllm":
        body |= {"tools": calls.TOOLS, "tool_choice": "required", "max_tokens": 200}
    elif draw.random() < 0.2:
        body["n"] = draw.randint(2, 3)
    return "/v1/chat/completions", body


def direct(server, kind: str, path: str, body: dict) -> list[tuple[list[int], list[float]]]:
    """Asks the server itself for token ids and log-probabilities of all choices."""
    is_chat = path.endswith("chat/completions")
    if kind == "vllm":
        extra = {"return_token_ids": True, "model": "tiny"}
        extra |= {"logprobs": True, "top_logprobs": 0} if is_chat else {"logprobs": 0}
        answer = server.post(path, body | extra)
    else:
        extra = {"logprobs": True, "top_logprobs": 1} if is_chat else {"logprobs": 1}
        answer = server.ask(path, body | extra)
    found = []
    for choice in sorted(answer["choices"], key=lambda choice: choice["index"]):
        entries = choice["logprobs"]
        if kind == "llama_cpp":
            content = entries["content"]
            ids = [entry["id"] for entry in content]
            found.append((ids, [entry["logprob"] for entry in content]))
        elif is_chat:
            numbers = [entry["logprob"] for entry in entries["content"]]
            found.append((choice["token_ids"], numbers))
        else:
            found.append((choice["token_ids"], entries["token_logprobs"]))
    return found


def through(gateway, path: str, body: dict, stream: bool) -> list:
    """Makes the call through the gateway and returns what was recorded."""
    key = gateway.key()
    api = calls.client(gateway, key)
    known = ("max_tokens", "seed", "temperature", "messages", "prompt", "n", "tools", "tool_choice")
    arguments = {name: body[name] for name in known if name in body}
    extra = {name: value for name, value in body.items() if name not in known}
    create = api.chat.completions.create if "messages" in body else api.completions.create
    answer = create(model="policy", stream=stream, extra_body=extra, **arguments)
    if stream:
        for _ in answer:
            pass
    return gateway.experiences(key)


@pytest.mark.capability("token ids and log-probabilities equal the server's own, to the bit")
def test_random_calls_are_recorded_as_the_server_answers_them(
    server, server_kind, gateway, measured
):
    draw = random.Random(7)
    streams = choices = tools = tokens = 0
    for number in range(CALLS):
        path, body = random_call(draw, server_kind)
        stream = draw.random() < 0.5 and not (server_kind == "llama_cpp" and "n" in body)
        wanted = direct(server, server_kind, path, body)
        experiences = through(gateway, path, body, stream)
        got = [(calls.response_tokens(it), it.logprobs.tolist()) for it in experiences]
        wanted = [(ids, np.float32(numbers).tolist()) for ids, numbers in wanted]
        assert sorted(got) == sorted(wanted), (number, path, body)
        streams += stream
        choices += "n" in body
        tools += "tools" in body
        tokens += sum(len(ids) for ids, _ in wanted)
    measured(
        f"{server_kind}: {CALLS} calls ({streams} streams, {choices} with n > 1, {tools} with "
        f"tools), {tokens} tokens, all equal"
    )


@pytest.mark.capability("tool calls")
def test_a_tool_call_reaches_the_client_and_is_recorded(vllm_gateway):
    """llama-server ignores tools: the template of its tiny model has none."""
    key = vllm_gateway.key()
    answer = calls.client(vllm_gateway, key).chat.completions.create(
        model="policy",
        messages=[{"role": "user", "content": "one and four"}],
        tools=calls.TOOLS,
        tool_choice="required",
        max_tokens=300,
        seed=3,
    )
    (call, *_) = answer.choices[0].message.tool_calls
    assert call.function.name == "add"
    # A random model need not keep to the schema.
    json.loads(call.function.arguments)
    (experience,) = vllm_gateway.experiences(key)
    assert len(experience.logprobs) == answer.usage.completion_tokens


@pytest.mark.capability("streams")
def test_a_stream_arrives_in_parts_and_is_recorded(server, gateway, server_kind):
    key = gateway.key()
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 32, "seed": 1}
    extra = LLAMA if server_kind == "llama_cpp" else {}
    stream = calls.client(gateway, key).chat.completions.create(
        model="policy", stream=True, extra_body=extra, **body
    )
    parts = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    (experience,) = gateway.experiences(key)
    if server_kind == "llama_cpp":
        # The gateway synthesizes this stream from a whole response.
        answer = server.ask("/v1/chat/completions", body | extra)
        assert "".join(parts) == answer["choices"][0]["message"]["content"] != ""
        assert len(experience.logprobs) == answer["usage"]["completion_tokens"]
    else:
        assert len([part for part in parts if part]) > 1
        tokens = [token for token in calls.response_tokens(experience) if token != tiny_model.END]
        assert "".join(tiny_model.VOCABULARY[token] for token in tokens) == "".join(parts)


@pytest.mark.capability("a conversation is one experience")
def test_turns_continue_each_other(vllm_gateway):
    key = vllm_gateway.key()
    messages, said = [{"role": "user", "content": "hello"}], 0
    for question in ("and then?", "why?", None):
        answer = calls.client(vllm_gateway, key).chat.completions.create(
            model="policy",
            messages=messages,
            max_tokens=12,
            extra_body={"logit_bias": {str(token): -100 for token in (0, 1, 2)}},
        )
        said += answer.usage.completion_tokens
        messages = [*messages, {"role": "assistant", "content": answer.choices[0].message.content}]
        messages += [{"role": "user", "content": question}] if question else []
    (experience,) = vllm_gateway.experiences(key)
    assert int(experience.action_mask.sum()) == said == 36


@pytest.mark.capability("requests of clients that leave are aborted")
def test_a_request_ends_in_the_server_when_its_client_leaves(vllm, vllm_gateway, measured):
    key = vllm_gateway.key()
    stream = calls.client(vllm_gateway, key).chat.completions.create(
        model="policy",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=16_000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    # The server reports its state with a delay.
    wait_for(lambda: vllm.metric("vllm:num_requests_running") == 1)
    stream.close()
    began = time.monotonic()
    wait_for(lambda: vllm.metric("vllm:num_requests_running") == 0)
    measured(f"after {time.monotonic() - began:.2f} s")
    (experience,) = vllm_gateway.experiences(key)
    assert 0 < len(experience.logprobs) < 16_000
