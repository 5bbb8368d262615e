"""The gateway in front of a real inference server: what it records is what the server says."""

import asyncio

import numpy as np
import openai
import pytest
from servers import Gateway, Llama

# The servers of module fixtures start once.
pytestmark = pytest.mark.xdist_group("llama")

# A token of the tiny model is a byte, after five marks. The fifth ends an answer.
FIRST_BYTE = 5
END = 4
# What its tokenizer reads otherwise than it was written, so that a conversation would not go on.
SPACE = FIRST_BYTE + ord(" ")

# The same request with the same seed gets the same answer: all tokens allowed, nothing kept.
FIXED = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "cache_prompt": False}
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def llama():
    server = Llama()
    yield server
    server.close()


@pytest.fixture(scope="module")
def gateway(llama):
    gateway = Gateway("--runs", "16", f"llama_cpp={llama.url}")
    yield gateway
    gateway.close()


def client_of(gateway, key):
    return openai.OpenAI(base_url=gateway.base_url, api_key=key, max_retries=0)


def text_of(tokens):
    reply = bytes(int(token) - FIRST_BYTE for token in tokens if token >= FIRST_BYTE)
    return reply.decode("utf-8", "replace")


def response_of(experience):
    return experience.tokens[experience.prompt_length :].tolist()


def served(choice):
    """Returns the token ids and log-probabilities in the response of the server."""
    entries = choice["logprobs"]["content"]
    return [entry["id"] for entry in entries], [entry["logprob"] for entry in entries]


def check(experience, prompt, choice):
    ids, logprobs = served(choice)
    assert experience.tokens[: experience.prompt_length].tolist() == prompt
    assert response_of(experience) == ids
    # The same numbers, not nearly the same: they come from the same words.
    assert experience.logprobs.tolist() == np.float32(logprobs).tolist()
    assert experience.action_mask.all() and len(experience.action_mask) == len(ids)


@pytest.mark.parametrize("seed", range(4))
def test_a_chat_is_recorded_with_the_tokens_of_the_server(llama, gateway, seed):
    body = {"messages": HELLO, "max_tokens": 24, "seed": seed, "temperature": 1.0}
    direct = llama.ask(
        "/v1/chat/completions", {**body, **FIXED, "logprobs": True, "top_logprobs": 1}
    )
    prompt = llama.tokenize(llama.ask("/apply-template", {"messages": HELLO})["prompt"])

    key = gateway.key()
    answer = client_of(gateway, key).chat.completions.create(
        model="policy", extra_body=FIXED, **body
    )
    assert answer.choices[0].message.content == direct["choices"][0]["message"]["content"]
    assert answer.choices[0].logprobs is None
    assert answer.model == "policy"
    (experience,) = gateway.experiences(key)
    check(experience, prompt, direct["choices"][0])
    assert text_of(response_of(experience)) == (answer.choices[0].message.content or "")


def test_greedy_answers_agree_too(llama, gateway):
    body = {"messages": HELLO, "max_tokens": 24, "temperature": 0.0}
    direct = llama.ask(
        "/v1/chat/completions", {**body, **FIXED, "logprobs": True, "top_logprobs": 1}
    )
    key = gateway.key()
    client_of(gateway, key).chat.completions.create(model="policy", extra_body=FIXED, **body)
    (experience,) = gateway.experiences(key)
    prompt = experience.tokens[: experience.prompt_length].tolist()
    check(experience, prompt, direct["choices"][0])


def test_a_stream_is_recorded_with_the_token_that_ends_it(llama, gateway):
    # The mark of the end is made likely; a stream of the server itself would not tell it.
    body = {"messages": HELLO, "max_tokens": 200, "seed": 1, "temperature": 1.0}
    likely = {**FIXED, "logit_bias": {str(END): 2.0}}
    direct = llama.ask(
        "/v1/chat/completions", {**body, **likely, "logprobs": True, "top_logprobs": 1}
    )
    key = gateway.key()
    stream = client_of(gateway, key).chat.completions.create(
        model="policy",
        stream=True,
        stream_options={"include_usage": True},
        extra_body=likely,
        **body,
    )
    reply, ends, counted = "", [], None
    for chunk in stream:
        for choice in chunk.choices:
            reply += choice.delta.content or ""
            ends += [choice.finish_reason] if choice.finish_reason else []
        counted = chunk.usage or counted
    assert ends == ["stop"]
    assert reply == direct["choices"][0]["message"]["content"]
    (experience,) = gateway.experiences(key)
    tokens = response_of(experience)
    assert tokens == served(direct["choices"][0])[0]
    assert tokens[-1] == END and text_of(tokens) == reply
    assert counted.completion_tokens == len(tokens)


def test_completions_take_a_text_or_token_ids(llama, gateway):
    ids = llama.tokenize("once upon")
    body = {"max_tokens": 16, "seed": 5, "temperature": 1.0}
    direct = llama.ask("/v1/completions", {**body, **FIXED, "prompt": ids, "logprobs": 1})
    for prompt in ("once upon", ids):
        key = gateway.key()
        answer = client_of(gateway, key).completions.create(
            model="policy", prompt=prompt, extra_body=FIXED, **body
        )
        assert answer.choices[0].text == direct["choices"][0]["text"]
        (experience,) = gateway.experiences(key)
        check(experience, ids, direct["choices"][0])


def test_a_client_can_read_its_recording(gateway):
    key = gateway.key()
    answer = client_of(gateway, key).chat.completions.create(
        model="policy",
        messages=HELLO,
        max_tokens=8,
        logprobs=True,
        top_logprobs=3,
        extra_body={"return_token_ids": True},
    )
    (experience,) = gateway.experiences(key)
    entries = answer.choices[0].logprobs.content
    assert [entry.logprob for entry in entries] == pytest.approx(experience.logprobs.tolist())
    assert all(len(entry.top_logprobs) == 3 for entry in entries)
    assert answer.choices[0].model_extra["token_ids"] == response_of(experience)
    prompt = experience.tokens[: experience.prompt_length].tolist()
    assert answer.model_extra["prompt_token_ids"] == prompt


def test_a_conversation_is_one_experience(gateway):
    key = gateway.key()
    client = client_of(gateway, key)
    messages = list(HELLO)
    lengths = []
    for question in ("and then?", "why?", None):
        answer = client.chat.completions.create(
            model="policy",
            messages=messages,
            max_tokens=8,
            temperature=1.0,
            extra_body={**FIXED, "logit_bias": {str(END): -100, str(SPACE): -100}},
        )
        lengths.append(answer.usage.completion_tokens)
        content = answer.choices[0].message.content
        messages += [{"role": "assistant", "content": content}]
        messages += [{"role": "user", "content": question}] if question else []
    (experience,) = gateway.experiences(key)
    assert int(experience.action_mask.sum()) == sum(lengths) == 24
    assert len(experience.action_mask) > 24
    reply = "".join(message["content"] for message in messages if message["role"] == "assistant")
    assert text_of(np.asarray(response_of(experience))[experience.action_mask]) == reply


def test_several_choices_are_recorded_separately(gateway):
    key = gateway.key()
    answer = client_of(gateway, key).chat.completions.create(
        model="policy", messages=HELLO, max_tokens=12, n=3, temperature=1.0, extra_body=FIXED
    )
    assert len(answer.choices) == 3
    reply = {choice.message.content or "" for choice in answer.choices}
    recorded = {text_of(response_of(experience)) for experience in gateway.experiences(key)}
    assert recorded == reply


def test_a_stop_string_is_not_part_of_the_record(llama, gateway):
    body = {"messages": HELLO, "max_tokens": 40, "seed": 2, "temperature": 1.0}
    whole = llama.ask("/v1/chat/completions", {**body, **FIXED})["choices"][0]["message"]["content"]
    stop = whole[5:7]
    key = gateway.key()
    answer = client_of(gateway, key).chat.completions.create(
        model="policy", stop=stop, extra_body=FIXED, **body
    )
    content = answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop" and whole.startswith(content + stop)
    (experience,) = gateway.experiences(key)
    assert text_of(response_of(experience)) == content


def test_characters_of_several_tokens_are_never_recorded_wrongly(llama, gateway):
    # Both bytes of an é: the server's list of log-probabilities is too short.
    bias = {str(FIRST_BYTE + byte): 19.0 for byte in "é".encode()}
    body = {"messages": HELLO, "max_tokens": 12, "temperature": 1.0}
    refused = 0
    for seed in range(8):
        wanted = {**body, **FIXED, "seed": seed, "logit_bias": bias}
        direct = llama.ask("/v1/chat/completions", {**wanted, "logprobs": True, "top_logprobs": 1})
        is_short = len(served(direct["choices"][0])[0]) < direct["usage"]["completion_tokens"]
        key = gateway.key()
        create = client_of(gateway, key).chat.completions.create
        more = {**FIXED, "seed": seed, "logit_bias": bias}
        if is_short:
            # The client and readers of the record get an error, not a partial record.
            with pytest.raises(openai.InternalServerError, match="omits tokens") as caught:
                create(model="policy", extra_body=more, **body)
            assert caught.value.status_code == 502
            status, message = gateway.refusal(key)
            assert status == 409 and "omits tokens" in message, message
            refused += 1
        else:
            answer = create(model="policy", extra_body=more, **body)
            reply = direct["choices"][0]["message"]["content"]
            assert answer.choices[0].message.content == reply
            (experience,) = gateway.experiences(key)
            assert response_of(experience) == served(direct["choices"][0])[0]
    assert refused > 0


async def test_many_runs_at_once_are_not_mixed_up(gateway):
    async def one(number):
        key = gateway.key()
        async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key=key) as client:
            reply = ""
            if number % 2:
                stream = await client.chat.completions.create(
                    model="policy", messages=HELLO, max_tokens=16, stream=True, seed=number
                )
                async for chunk in stream:
                    reply += chunk.choices[0].delta.content or ""
            else:
                answer = await client.chat.completions.create(
                    model="policy", messages=HELLO, max_tokens=16, seed=number
                )
                reply = answer.choices[0].message.content or ""
        (experience,) = await asyncio.to_thread(gateway.experiences, key)
        assert text_of(response_of(experience)) == reply

    await asyncio.gather(*(one(number) for number in range(48)))
