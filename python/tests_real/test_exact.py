"""Exact histories on a real vLLM: a conversation is one experience although its text drifts."""

from __future__ import annotations

import re
import urllib.request

import calls
import numpy as np
import pytest

pytestmark = pytest.mark.timeout(1800)

TURNS = 10


def outcomes(gateway) -> dict[str, int]:
    """Returns the number of chats that continue a recorded turn, by the treatment of the prompt."""
    headers = {"authorization": f"Bearer {gateway.admin_key}"}
    request = urllib.request.Request(gateway.url + "/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    found = re.findall(r'exact_prompts_total\{outcome="(\w+)"\} (\d+)', text)
    return {name: int(count) for name, count in found}


def converse(gateway, key: str, *, tools: bool) -> None:
    """Holds a conversation. With tools, every second turn is a tool call; some are streams."""
    client = calls.client(gateway, key)
    messages = [{"role": "user", "content": "hello there"}]
    for turn in range(TURNS):
        body = {"model": "policy", "messages": messages, "max_tokens": 700, "seed": turn}
        is_call = tools and turn % 2 == 0
        if tools:
            # A named tool: a random model ends a list of calls rarely.
            named = {"type": "function", "function": {"name": "add"}}
            body |= {"tools": calls.TOOLS, "tool_choice": named if is_call else "none"}
        if turn % 3 == 2:
            with client.chat.completions.stream(**body) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**body).choices[0].message
        reply = message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
        messages.append(reply)
        if is_call:
            assert reply["tool_calls"][0]["function"]["name"] == "add"
            result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "7"}
            messages.append(result)
        else:
            messages.append({"role": "user", "content": f"and {turn}?"})


def turn_numbers(action_mask) -> np.ndarray:
    """Returns the number of the turn that generated a token; -1 for all others."""
    mask = np.asarray(action_mask, dtype=int)
    begins = np.diff(mask, prepend=0) == 1
    return np.where(mask == 1, np.cumsum(begins) - 1, -1)


@pytest.mark.capability("ten turns are one experience (exact histories)")
@pytest.mark.parametrize("tools", [False, True])
def test_ten_turns_are_one_experience(vllm, vllm_gateway, tools, measured):
    key = vllm_gateway.key()
    converse(vllm_gateway, key, tools=tools)
    (experience,) = vllm_gateway.experiences(key)
    assert experience.metrics["turns"] == TURNS
    counted = outcomes(vllm_gateway)
    # A random model generates special tokens, which texts do not show.
    assert counted["spliced"] > 0, counted
    assert counted["spliced"] + counted["reproduced"] == TURNS - 1, counted
    scored = vllm.post(
        "/v1/completions",
        {
            "model": "tiny",
            "prompt": experience.tokens.tolist(),
            "max_tokens": 1,
            "prompt_logprobs": 0,
        },
    )
    entries = scored["choices"][0]["prompt_logprobs"][experience.prompt_length :]
    tokens = experience.tokens[experience.prompt_length :].tolist()
    expected = [entry[str(token)]["logprob"] for entry, token in zip(entries, tokens, strict=True)]
    difference = np.asarray(experience.logprobs) - np.asarray(expected)
    turns = turn_numbers(experience.action_mask)
    assert turns.max() == TURNS - 1
    # A grammar forbids tokens, which makes those of a tool call more probable.
    under_grammar = (turns >= 0) & (turns % 2 == 0) & tools
    assert np.all(difference[under_grammar] > -1e-3), difference[under_grammar].min()
    free = (turns >= 0) & ~under_grammar
    assert free.any() and np.abs(difference[free]).max() < 1e-3, np.abs(difference[free]).max()
    measured(
        f"{TURNS} turns, {counted['spliced']} spliced, {counted['reproduced']} reproduced; "
        f"{free.sum()} tokens recomputed, greatest difference {np.abs(difference[free]).max():.1e}"
        + (f"; {under_grammar.sum()} tokens of tool calls are sampled under a grammar" * tools)
    )
