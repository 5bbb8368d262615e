"""Workflows with tools and several turns. Two of them:

`long_sum` is for the embedded model, which can add numbers with two digits and knows nothing else.
A pad of paper lets it add longer ones, turn by turn: `rollway run examples/tools.yaml` teaches it.

`agent` is for models that call functions as OpenAI's API has it, behind any server; README.md tells
how. With a simulated server, which talks nonsense but calls tools (needs `pip install openai`):

    python examples/tools.py
"""

import importlib.util
import json
import operator
import pathlib
import re
import tempfile
from typing import Any

import rollway as rw

# ---- a tool with a language of its own -----------------------------------------------------------


class Pad:
    """A pad of paper for long addition: hands out small sums, writes digits, keeps the carry."""

    def __init__(self, a: str, b: str):
        self.sums = [f"{a[at : at + 2]}+{b[at : at + 2]}=" for at in range(0, len(a), 2)]
        self.digits = ""
        self.carry = self.kept = 0

    @property
    def question(self) -> str | None:
        """The next sum, or None."""
        return self.sums[-1] if self.sums else None

    @property
    def number(self) -> str:
        """The number on the pad."""
        return f"{self.carry or ''}{self.digits}"

    def write(self, said: str) -> bool:
        """Takes an answer such as `117`: writes 17 and carries 1. False: that is no answer."""
        if re.fullmatch(r"[01]\d\d", said) is None:
            return False
        self.sums.pop()
        overflow, rest = int(said[0]), said[1:]
        if self.carry:
            # One more sum: with what was carried.
            self.sums.append(f"{rest}+01=")
            self.carry, self.kept = 0, overflow
        else:
            self.digits = rest + self.digits
            self.carry, self.kept = overflow | self.kept, 0
        return True


@rw.workflow
async def long_sum(task: rw.Task, model: rw.Model) -> float:
    """Adds two numbers with four digits. The reward is the part of the digits that are right."""
    a, b = task.raw_task["a"], task.raw_task["b"]
    pad = Pad(a, b)
    while (question := pad.question) is not None:
        reply = await model.chat([{"role": "user", "content": question}], **task.rollout_args)
        if not pad.write(reply.text):
            return 0.0
    right = str(int(a) + int(b)).zfill(len(a))
    pairs = zip(reversed(pad.number), reversed(right), strict=False)
    return sum(one == other for one, other in pairs) / max(len(right), len(pad.number))


# ---- tools as OpenAI's API has them --------------------------------------------------------------

OPERATORS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Works out one operation on two integers.",
        "parameters": {
            "type": "object",
            "properties": {
                "operation": {"type": "string", "enum": list(OPERATORS)},
                "a": {"type": "integer"},
                "b": {"type": "integer"},
            },
            "required": ["operation", "a", "b"],
        },
    },
}

SYSTEM = "Use the tool for every calculation. End with the answer alone, as a number."

#: Maximum number of tool calls.
TURNS = 6


def calculate(arguments: str) -> str:
    """Does what the model asked for, or tells it what is wrong with that."""
    try:
        given = json.loads(arguments)
        return str(OPERATORS[given["operation"]](int(given["a"]), int(given["b"])))
    except (ValueError, TypeError, KeyError) as error:
        return f"error: {type(error).__name__}: {error}"


@rw.workflow
async def agent(task: rw.Task, model: rw.Model) -> float | list[rw.Experience]:
    """Answers a question with a calculator. The reward is 1 for the right number, else 0."""
    client = model.async_openai_client()
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task.raw_task["question"]},
    ]
    used, failed, text = 0, 0, ""
    for _ in range(TURNS):
        answer = await client.chat.completions.create(
            model=model.name, messages=messages, tools=[CALCULATOR], **task.rollout_args
        )
        said = answer.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        text = said.content or ""
        if not said.tool_calls:
            break
        for call in said.tool_calls:
            result = calculate(call.function.arguments)
            used, failed = used + 1, failed + result.startswith("error")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    numbers = re.findall(r"-?\d+", text)
    reward = float(numbers[-1:] == [task.raw_task["answer"]])
    if task.is_eval:
        return reward
    # The recorded turns are the experiences. With a reward alone they would be the same; here they
    # also carry numbers for the monitor.
    experiences = await model.extract_experience_from_history_async()
    for experience in experiences:
        experience.reward = reward
        experience.metrics = {"tool_calls": used, "tool_errors": failed}
    return experiences


def main() -> None:
    """Has a simulated server answer questions, and tells what came of it."""
    if importlib.util.find_spec("openai") is None:
        raise SystemExit("this example needs the package openai: pip install openai")
    here = pathlib.Path(__file__).parent
    config = rw.Config.load(here / "tools.yaml")
    config.mode, config.name = "bench", "agent"
    config.buffer.explorer_input.default_workflow_type = "agent"
    questions = {"name": "questions", "path": str(here / "tools" / "questions.jsonl")}
    config.buffer.explorer_input.eval_tasksets = [questions]
    model = rw.models.MockServer(tool_call_rate=0.6, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        config.checkpoint_root_dir = folder
        with rw.Explorer(config, model) as explorer:
            (row,) = explorer.benchmark().result()
    answers = [request.body["messages"] for request in model.requests if request.end == "complete"]
    used = sum(messages[-1]["role"] == "tool" for messages in answers)
    print(f"{row['tasks']} questions, {len(answers)} answers, {used} of them after a tool was used")
    print(f"{row['failed']} runs failed; score {row['score']:.2f}")


if __name__ == "__main__":
    main()
