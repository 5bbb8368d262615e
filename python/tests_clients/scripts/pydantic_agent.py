"""pydantic-ai: two turns of a conversation, a stream, and an agent with typed output."""

import asyncio

import pydantic_ai
from call_report import QUESTION, SERVER_HAS_TOOLS, finish
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel


class Word(BaseModel):
    """A word."""

    word: str



async def main():
    model = OpenAIChatModel("policy")
    settings = {"max_tokens": 48}
    agent = Agent(model, instructions="Be brief", model_settings=settings, retries=0)
    first = await agent.run(QUESTION)
    second = await agent.run("and of rivers", message_history=first.all_messages())
    async with agent.run_stream(QUESTION) as result:
        texts = [second.output, await result.get_output()]
    calls, experiences = 3, 2
    if SERVER_HAS_TOOLS:
        # Arguments that are cut off are no valid output.
        typed = Agent(model, output_type=Word, model_settings={"max_tokens": 512}, retries=0)
        assert (await typed.run(QUESTION)).output.word
        calls, experiences = calls + 1, experiences + 1
    finish(pydantic_ai, calls=calls, experiences=experiences, texts=texts)


asyncio.run(main())
