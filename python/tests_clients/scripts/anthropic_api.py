"""The `anthropic` package: messages, whole and streamed, with tools, and counts of tokens."""

import anthropic
from call_report import MESSAGES, SCHEMA, SERVER_HAS_TOOLS, finish

client = anthropic.Anthropic(max_retries=0)
ask = {"model": "policy", "messages": MESSAGES, "max_tokens": 12}


def text(message):
    return "".join(block.text for block in message.content if block.type == "text")


texts = [text(client.messages.create(**ask))]
with client.messages.stream(**ask) as events:
    texts.append(text(events.get_final_message()))
assert client.messages.count_tokens(model="policy", messages=MESSAGES).input_tokens > 0
if SERVER_HAS_TOOLS:
    tool = {"name": "look_up", "input_schema": SCHEMA}
    called = client.messages.create(
        model="policy",
        messages=MESSAGES,
        max_tokens=64,
        tools=[tool],
        tool_choice={"type": "any"},
    )
    assert called.stop_reason == "tool_use"
    texts.append(text(called))
finish(anthropic, calls=len(texts), experiences=len(texts), texts=texts)
