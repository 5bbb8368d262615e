"""The OpenAI Agents SDK with its default, the Responses API: a tool call and its result."""

import asyncio

import agents
from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled
from call_report import QUESTION, SERVER_HAS_TOOLS, finish

# Nothing leaves this machine.
set_tracing_disabled(True)


@function_tool
def look_up(word: str) -> str:
    """Looks a word up."""
    return "salt water"


settings = ModelSettings(max_tokens=64, tool_choice="required" if SERVER_HAS_TOOLS else None)
tools = [look_up] if SERVER_HAS_TOOLS else []
agent = Agent(
    name="reader", instructions="Be brief", model="policy", tools=tools, model_settings=settings
)


async def main():
    # After a tool call the choice is free again.
    result = await Runner.run(agent, QUESTION, max_turns=4)
    calls = len(result.raw_responses)
    assert calls == (2 if SERVER_HAS_TOOLS else 1), calls
    streamed = Runner.run_streamed(agent, QUESTION, max_turns=4)
    async for _ in streamed.stream_events():
        pass
    calls += len(streamed.raw_responses)
    texts = [str(result.final_output), str(streamed.final_output)]
    finish(agents, calls=calls, experiences=2, texts=texts)


asyncio.run(main())
