"""litellm: chats, whole and streamed, the Responses API and its bridge for Anthropic messages."""

import asyncio
import os

import litellm
from call_report import MESSAGES, QUESTION, finish

litellm.telemetry = False
ask = {
    "model": "openai/policy",
    "api_base": os.environ["OPENAI_BASE_URL"],
    "api_key": os.environ["OPENAI_API_KEY"],
}
texts = []
whole = litellm.completion(messages=MESSAGES, max_tokens=12, **ask)
texts.append(whole.choices[0].message.content)
chunks = litellm.completion(messages=MESSAGES, max_tokens=12, stream=True, **ask)
texts.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))
answer = litellm.responses(input=QUESTION, max_output_tokens=12, **ask)
texts.append("".join(part.text for item in answer.output for part in getattr(item, "content", [])))
bridged = asyncio.run(
    litellm.anthropic.messages.acreate(messages=MESSAGES, max_tokens=12, **ask)
)
texts.append("".join(block["text"] for block in bridged["content"] if block["type"] == "text"))
finish(litellm, calls=4, experiences=4, texts=texts)
