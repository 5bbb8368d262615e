"""Real clients against the gateway, in front of simulated servers that speak as vLLM and SGLang do.

What the gateway records must be what the server says of its tokens when it is asked directly.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import openai
import pytest
from programs import program
from servers import Gateway, post

# The servers of module fixtures start once.
pytestmark = pytest.mark.xdist_group("gateway_clients")

MESSAGES = [{"role": "user", "content": "tell me of the sea"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string"}},
                "required": ["word"],
            },
        },
    }
]


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def gateway(request):
    gateway = Gateway("--runs", "16", f"{request.param}=simulated", "openai=simulated")
    gateway.engine = request.param
    yield gateway
    gateway.close()


def options(gateway, key):
    return {"base_url": gateway.base_url, "api_key": key, "max_retries": 0}


def direct_chat(gateway, **body):
    """Asks the server itself: the text, the prompt's tokens, the answer's, their logprobs."""
    body = {"model": "simulated", "messages": MESSAGES, "logprobs": True, **body}
    url = gateway.servers[0] + "/v1/chat/completions"
    if gateway.engine == "vllm":
        answer = post(url, {**body, "return_token_ids": True})
        choice = answer["choices"][0]
        logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        return choice["message"], answer["prompt_token_ids"], choice["token_ids"], logprobs
    answer = post(url, {**body, "return_meta_info": True, "return_prompt_token_ids": True})
    choice = answer["choices"][0]
    entries = choice["meta_info"]["output_token_logprobs"]
    tokens = [entry[1] for entry in entries]
    return choice["message"], choice["prompt_token_ids"], tokens, [entry[0] for entry in entries]


def check(experience, prompt, tokens, logprobs):
    assert experience.tokens.tolist() == prompt + tokens
    assert experience.prompt_length == len(prompt)
    assert experience.logprobs.tolist() == np.float32(logprobs).tolist()
    assert experience.action_mask.all()
    # The weights were not updated.
    assert experience.info["model_version"] == 0


def test_a_whole_answer(gateway):
    key = gateway.key()
    client = openai.OpenAI(**options(gateway, key))
    answer = client.chat.completions.create(model="policy", messages=MESSAGES, max_tokens=20)
    message, *expected_tokens = direct_chat(gateway, max_tokens=20)
    assert answer.choices[0].message.content == message["content"]
    assert answer.usage.completion_tokens == len(expected_tokens[1])
    assert answer.choices[0].logprobs is None
    (experience,) = gateway.experiences(key)
    check(experience, *expected_tokens)
    assert experience.info["message_ids"] == [answer.id]


def test_a_stream(gateway):
    key = gateway.key()
    client = openai.OpenAI(**options(gateway, key))
    streamed_text, ids = "", set()
    stream = client.chat.completions.create(
        model="policy", messages=MESSAGES, max_tokens=20, stream=True
    )
    for chunk in stream:
        assert chunk.usage is None and len(chunk.choices) == 1
        streamed_text += chunk.choices[0].delta.content or ""
        ids.add(chunk.id)
    message, *expected_tokens = direct_chat(gateway, max_tokens=20)
    assert streamed_text == message["content"]
    (experience,) = gateway.experiences(key)
    check(experience, *expected_tokens)
    assert experience.info["message_ids"] == list(ids)


async def test_asynchronous_calls(gateway):
    key = gateway.key()
    async with openai.AsyncOpenAI(**options(gateway, key)) as client:
        whole = await client.chat.completions.create(
            model="policy", messages=MESSAGES, max_tokens=20
        )
        streamed_text = ""
        stream = await client.completions.create(
            model="policy", prompt="the sea", max_tokens=9, stream=True
        )
        async for chunk in stream:
            streamed_text += chunk.choices[0].text
    message, *expected_tokens = direct_chat(gateway, max_tokens=20)
    assert whole.choices[0].message.content == message["content"]
    chat, completion = gateway.experiences(key)
    check(chat, *expected_tokens)
    assert completion.response_text == streamed_text
    assert len(completion.tokens) - completion.prompt_length == 9


def test_tool_calls_and_following_turns(gateway):
    key = gateway.key()
    client = openai.OpenAI(**options(gateway, key))
    first = client.chat.completions.create(
        model="policy", messages=MESSAGES, tools=TOOLS, tool_choice="required"
    )
    assert first.choices[0].finish_reason == "tool_calls"
    (call,) = first.choices[0].message.tool_calls
    assert call.function.name == "look_up" and "word" in json.loads(call.function.arguments)
    _, *expected_tokens = direct_chat(gateway, tools=TOOLS, tool_choice="required")
    (experience,) = gateway.experiences(key)
    check(experience, *expected_tokens)

    result = {"role": "tool", "tool_call_id": call.id, "content": "salt water"}
    history = [*MESSAGES, first.choices[0].message.model_dump(exclude_none=True), result]
    second = client.chat.completions.create(
        model="policy", messages=history, tools=TOOLS, tool_choice="none", max_tokens=8
    )
    assert second.choices[0].message.content
    (conversation,) = gateway.experiences(key)
    expected = len(expected_tokens[1]) + second.usage.completion_tokens
    assert int(conversation.action_mask.sum()) == expected
    assert not conversation.action_mask.all()


def test_tools_in_a_stream(gateway):
    key = gateway.key()
    client = openai.OpenAI(**options(gateway, key))
    with client.chat.completions.stream(
        model="policy", messages=MESSAGES, tools=TOOLS, tool_choice="required"
    ) as stream:
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls
    assert call.function.name == "look_up" and json.loads(call.function.arguments)
    _, *expected_tokens = direct_chat(gateway, tools=TOOLS, tool_choice="required")
    (experience,) = gateway.experiences(key)
    check(experience, *expected_tokens)


def test_a_call_that_is_repeated_is_one_sample(gateway):
    key = gateway.key()
    client = openai.OpenAI(**options(gateway, key))
    ask = {"model": "policy", "messages": MESSAGES, "max_tokens": 20}
    ids = [
        client.chat.completions.create(extra_headers={"Idempotency-Key": name}, **ask).id
        for name in ("one", "one", "two")
    ]
    assert ids[0] == ids[1] != ids[2]
    assert len(gateway.experiences(key)) == 2


def test_a_judge_answers_and_is_not_recorded(gateway):
    key = gateway.key()
    client = openai.OpenAI(**options(gateway, key))
    answer = client.chat.completions.create(model="judge-1", messages=MESSAGES, max_tokens=8)
    assert answer.model == "judge-1" and answer.choices[0].message.content
    assert gateway.experiences(key) == []
    names = {model.id for model in client.models.list()}
    assert names == {"policy", "judge-1"}


def test_errors_are_those_that_clients_know(gateway):
    key = gateway.key()
    client = openai.OpenAI(**options(gateway, key))
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(**options(gateway, "rw-wrong")).models.list()
    with pytest.raises(openai.NotFoundError, match="unknown-model"):
        client.chat.completions.create(model="unknown-model", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="policy", messages=MESSAGES, n=0)
    assert caught.value.param == "n"
    assert gateway.experiences(key) == []


def test_a_server_without_token_ids_is_counted():
    gateway = Gateway("openai=simulated")
    try:
        key = gateway.key()
        client = openai.OpenAI(**options(gateway, key))
        answer = client.chat.completions.create(model="policy", messages=MESSAGES, max_tokens=8)
        assert answer.choices[0].message.content
        status, message = gateway.refusal(key)
        assert status == 409 and "reports no token ids" in message
    finally:
        gateway.close()


def test_another_language(gateway):
    modules = program("ROLLWAY_NODE_MODULES")
    key = gateway.key()
    script = Path(__file__).with_name("openai_client.cjs")
    environment = {
        **os.environ,
        "NODE_PATH": modules,
        "OPENAI_BASE_URL": gateway.base_url,
        "OPENAI_API_KEY": key,
    }
    node = os.environ.get("ROLLWAY_NODE", "node")
    run = subprocess.run(
        [node, str(script)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    got = json.loads(run.stdout)
    message, *expected_tokens = direct_chat(gateway, max_tokens=12)
    assert got["whole"] == got["streamed"] == message["content"]
    assert got["usage"]["completion_tokens"] == 12
    assert got["tool"] == "look_up" and json.loads(got["arguments"])
    assert got["status"] == 401 and set(got["models"]) == {"policy", "judge-1"}
    whole, streamed, called, text = gateway.experiences(key)
    check(whole, *expected_tokens)
    check(streamed, *expected_tokens)
    assert called.info["finish_reason"] == "tool_calls"
    assert text.response_text == got["text"]
    recorded = [experience.info["message_ids"] for experience in (whole, called, text)]
    assert [[name] for name in got["ids"]] == recorded
