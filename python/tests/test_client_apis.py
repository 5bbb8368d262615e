"""Clients of the Responses and Messages APIs: their calls are recorded like chats."""

import json

import anthropic
import numpy as np
import openai
import pytest
from servers import Gateway

pytestmark = pytest.mark.xdist_group("client_apis")

QUESTION = "tell me of the sea"
SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string"}, "depth": {"type": "integer"}},
    "required": ["word"],
}
RESULT = "salt water"


@pytest.fixture(scope="module", params=["vllm", "sglang", "vllm drifting", "sglang drifting"])
def gateway(request):
    kind, *drifting = request.param.split()
    options = ["--retokenize", "true"] if drifting else []
    gateway = Gateway("--runs", "16", *options, f"{kind}=simulated")
    yield gateway
    gateway.close()


def openai_client(gateway, key):
    return openai.OpenAI(base_url=gateway.base_url, api_key=key, max_retries=0)


def anthropic_client(gateway, key):
    return anthropic.Anthropic(base_url=gateway.url, api_key=key, max_retries=0)


def chat(gateway, key, stream):
    """A conversation of two turns with a tool call, through the Chat API."""
    client = openai_client(gateway, key)
    function = {"name": "look_up", "parameters": SCHEMA}
    ask = {"model": "policy", "tools": [{"type": "function", "function": function}]}
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": QUESTION}]

    def turn(**more):
        if not stream:
            return client.chat.completions.create(messages=messages, **ask, **more)
        with client.chat.completions.stream(messages=messages, **ask, **more) as events:
            return events.get_final_completion()

    first = turn(max_tokens=64, tool_choice="required").choices[0].message
    (call,) = first.tool_calls
    messages.append(first.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULT})
    # The helper for streams refuses a response that is cut off.
    last = {**ask, "messages": messages, "max_tokens": 12, "tool_choice": "none"}
    if not stream:
        return client.chat.completions.create(**last).choices[0].message.content
    events = client.chat.completions.create(**last, stream=True)
    return "".join(event.choices[0].delta.content or "" for event in events)


def responses(gateway, key, stream):
    """The same conversation through the Responses API."""
    client = openai_client(gateway, key)
    tool = {"type": "function", "name": "look_up", "parameters": SCHEMA, "strict": None}
    ask = {"model": "policy", "instructions": "Be brief", "tools": [tool]}
    items = [{"role": "user", "content": QUESTION}]

    def turn(**more):
        if not stream:
            return client.responses.create(input=items, **ask, **more)
        # Ends with `response.completed` or `response.incomplete`.
        *_, last = client.responses.create(input=items, **ask, **more, stream=True)
        return last.response

    first = turn(max_output_tokens=64, tool_choice="required")
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert call.name == "look_up" and json.loads(call.arguments)["word"]
    items.extend(item.model_dump(exclude_none=True) for item in first.output)
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": RESULT})
    second = turn(max_output_tokens=12, tool_choice="none")
    # The mock server uses all tokens.
    assert second.status == "incomplete"
    assert second.incomplete_details.reason == "max_output_tokens"
    assert second.usage.output_tokens == 12
    return second.output_text


def messages(gateway, key, stream):
    """The same conversation through the Messages API."""
    client = anthropic_client(gateway, key)
    tool = {"name": "look_up", "input_schema": SCHEMA}
    ask = {"model": "policy", "system": "Be brief", "tools": [tool]}
    turns = [{"role": "user", "content": QUESTION}]

    def turn(**more):
        if not stream:
            return client.messages.create(messages=turns, **ask, **more)
        with client.messages.stream(messages=turns, **ask, **more) as events:
            return events.get_final_message()

    first = turn(max_tokens=64, tool_choice={"type": "any"})
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert call.name == "look_up" and call.input["word"]
    turns.append({"role": "assistant", "content": [block.to_dict() for block in first.content]})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
    turns.append({"role": "user", "content": [result]})
    second = turn(max_tokens=12, tool_choice={"type": "none"})
    assert second.stop_reason == "max_tokens" and second.usage.output_tokens == 12
    return "".join(block.text for block in second.content if block.type == "text")


@pytest.mark.parametrize("stream", [False, True])
def test_the_same_conversation_gives_equal_experiences(gateway, stream):
    recorded = []
    for conversation in (chat, responses, messages):
        key = gateway.key()
        text = conversation(gateway, key, stream)
        # One unbroken sequence: the history has the tokens that were sampled.
        (experience,) = gateway.experiences(key)
        assert experience.response_text.endswith(text)
        recorded.append(experience)
    first = recorded[0]
    for other in recorded[1:]:
        assert other.tokens.tolist() == first.tokens.tolist()
        assert other.prompt_length == first.prompt_length
        assert other.action_mask.tolist() == first.action_mask.tolist()
        np.testing.assert_array_equal(other.logprobs, first.logprobs)
        assert other.model_versions == first.model_versions


def test_custom_tools_take_plain_text(gateway):
    key = gateway.key()
    client = openai_client(gateway, key)
    ask = {
        "model": "policy",
        "input": QUESTION,
        "tools": [{"type": "custom", "name": "patch"}, {"type": "web_search"}],
        "tool_choice": "required",
    }
    (call,) = client.responses.create(**ask).output
    assert call.type == "custom_tool_call" and call.name == "patch" and call.input
    with client.responses.stream(**ask) as events:
        kinds = [event.type for event in events]
    assert "response.custom_tool_call_input.done" in kinds and kinds[-1] == "response.completed"


def test_errors_are_those_that_clients_know(gateway):
    key = gateway.key()
    client = anthropic_client(gateway, key)
    ask = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 4}
    with pytest.raises(anthropic.AuthenticationError):
        anthropic_client(gateway, "rw-wrong").messages.create(model="policy", **ask)
    with pytest.raises(anthropic.NotFoundError, match="unknown-model"):
        client.messages.create(model="unknown-model", **ask)
    with pytest.raises(anthropic.BadRequestError, match="prefilled"):
        turns = [*ask["messages"], {"role": "assistant", "content": "Well"}]
        client.messages.create(model="policy", messages=turns, max_tokens=4)
    with pytest.raises(openai.NotFoundError, match="previous_response_id"):
        openai_client(gateway, key).responses.create(
            model="policy", input="Hi", previous_response_id="resp_1"
        )
    assert gateway.experiences(key) == []


def test_a_key_in_the_path(gateway):
    key = gateway.key()
    client = anthropic.Anthropic(
        base_url=f"{gateway.url}/r/{key}", api_key="placeholder", max_retries=0
    )
    ask = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 4}
    assert client.messages.create(model="policy", **ask).content[0].text
    assert len(gateway.experiences(key)) == 1


def test_responses_continue_by_id(gateway):
    key = gateway.key()
    client = openai_client(gateway, key)
    first = client.responses.create(model="policy", input=QUESTION)
    more = {"model": "policy", "input": "and of rivers", "previous_response_id": first.id}
    second = client.responses.create(**more)
    assert second.previous_response_id == first.id
    with client.responses.stream(**more) as events:
        events.until_done()
    # The second continuation is a branch of the first response.
    whole, branch = gateway.experiences(key)
    assert whole.metrics["turns"] == 2
    assert (branch.info["origin"], branch.info["parent"]) == ("branch", first.id)


def test_several_prompts_and_embeddings(gateway):
    key = gateway.key()
    client = openai_client(gateway, key)
    ask = {"model": "policy", "prompt": ["the sea", "a river"], "max_tokens": 5}
    completion = client.completions.create(**ask)
    assert [choice.index for choice in completion.choices] == [0, 1]
    assert completion.usage.completion_tokens == 10
    texts = {}
    for event in client.completions.create(**ask, stream=True):
        for choice in event.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {choice.index: choice.text for choice in completion.choices}
    assert len(gateway.experiences(key)) == 4
    vectors = client.embeddings.create(model="policy", input=["ab", "abc"])
    assert [vector.embedding[0] for vector in vectors.data] == [2, 3]
    assert len(gateway.experiences(key)) == 4


def test_tokens_are_counted(gateway):
    key = gateway.key()
    client = anthropic_client(gateway, key)
    tool = {"name": "look_up", "input_schema": SCHEMA}
    ask = {
        "model": "policy",
        "system": "Be brief",
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [tool],
    }
    counted = client.messages.count_tokens(**ask)
    answer = client.messages.create(**ask, max_tokens=4)
    assert counted.input_tokens == answer.usage.input_tokens
    assert len(gateway.experiences(key)) == 1


def test_sub_agents_are_labelled_by_header(gateway):
    key = gateway.key()
    ask = {"model": "policy", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 4}
    main = openai_client(gateway, key).chat.completions.create(**ask)
    headers = {"X-Rollway-Agent": "title", "X-Rollway-Parent": main.id}
    anthropic_client(gateway, key).messages.create(**ask, extra_headers=headers)
    whole, title = gateway.experiences(key)
    assert "agent" not in whole.info
    assert (title.info["agent"], title.info["parent"]) == ("title", main.id)
