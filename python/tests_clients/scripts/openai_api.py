"""The `openai` package: chats, completions and responses, whole and streamed, with tools."""

import openai
from call_report import MESSAGES, QUESTION, SCHEMA, SERVER_HAS_TOOLS, finish

client = openai.OpenAI(max_retries=0)
ask = {"model": "policy", "messages": MESSAGES, "max_tokens": 12}
texts = []

whole = client.chat.completions.create(**ask)
texts.append(whole.choices[0].message.content)
streamed = [
    choice.delta.content or ""
    for chunk in client.chat.completions.create(**ask, stream=True)
    for choice in chunk.choices
]
texts.append("".join(streamed))
completion = client.completions.create(model="policy", prompt=QUESTION, max_tokens=6)
texts.append(completion.choices[0].text)
first = client.responses.create(model="policy", input=QUESTION, max_output_tokens=12)
texts.append(first.output_text)
*_, last = client.responses.create(
    model="policy", input=QUESTION, max_output_tokens=12, stream=True
)
texts.append(last.response.output_text)
if SERVER_HAS_TOOLS:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
    called = client.chat.completions.create(
        model="policy", messages=MESSAGES, tools=[tool], tool_choice="required"
    )
    assert called.choices[0].message.tool_calls[0].function.name == "look_up"
    texts.append(called.choices[0].message.content or "")
finish(openai, calls=len(texts), experiences=len(texts), texts=texts)
