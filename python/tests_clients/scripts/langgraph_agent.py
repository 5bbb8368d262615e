"""LangGraph with `langchain-openai`: an agent with a tool, a stream, and the Responses API."""

import langchain_openai
from call_report import QUESTION, SERVER_HAS_TOOLS, finish
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph


@tool
def look_up(word: str) -> str:
    """Looks a word up."""
    return "salt water"


model = ChatOpenAI(model="policy", max_tokens=64, max_retries=0)
asking = model.bind_tools([look_up], tool_choice="required") if SERVER_HAS_TOOLS else model
calls = 0


def call_model(state):
    global calls
    calls += 1
    has_result = any(isinstance(message, ToolMessage) for message in state["messages"])
    bound = model.bind_tools([look_up], tool_choice="none") if SERVER_HAS_TOOLS else model
    return {"messages": [(bound if has_result else asking).invoke(state["messages"])]}


def call_tool(state):
    results = [look_up.invoke(call) for call in state["messages"][-1].tool_calls]
    return {"messages": results}


def is_done(state):
    return "tool" if state["messages"][-1].tool_calls else END


graph = StateGraph(MessagesState)
graph.add_node("model", call_model)
graph.add_node("tool", call_tool)
graph.add_edge(START, "model")
graph.add_conditional_edges("model", is_done, ["tool", END])
graph.add_edge("tool", "model")
state = graph.compile().invoke({"messages": [HumanMessage(QUESTION)]})
last = state["messages"][-1]
assert isinstance(last, AIMessage) and calls == (2 if SERVER_HAS_TOOLS else 1)

streamed = "".join(chunk.text for chunk in model.stream(QUESTION))
responses = ChatOpenAI(model="policy", max_tokens=64, use_responses_api=True, max_retries=0)
answer = responses.invoke(QUESTION)
texts = [last.text, streamed, answer.text]
finish(langchain_openai, calls=calls + 2, experiences=3, texts=texts)
