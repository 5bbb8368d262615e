"""Workflows with tools and several turns. Two of them:

`long_sum` is for the embedded model, which can only add numbers with two digits. A pad of paper
lets it add longer ones, turn by turn: `rollway run examples/tools.yaml` trains it.

`agent` is for models with function calls, behind any server; README.md has the command. With a mock
server, which generates random text and calls tools (needs `pip install openai`):

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

# ---- a tool for the embedded model ---------------------------------------------------------------


class Pad:
    """A pad of paper for long addition: hands out small sums, writes digits, keeps the carry."""

    def __init__(self, a: str, b: str):
        self.sums = [f"{a[at : at + 2]}+{b[at : at + 2]}=" for at in range(0, len(a), 2)]
        self.digits = ""
        self.carry = self.kept = 0

    @property
    def question(self) -> str | None:
        """The next sum; `None`: there is none."""
        return self.sums[-1] if self.sums else None

    @property
    def number(self) -> str:
        """The number on the pad."""
        return f"{self.carry or ''}{self.digits}"

    def write(self, answer: str) -> bool:
        """Writes an answer: of `117` the digits 17, carry 1. Returns whether it is valid."""
        if re.fullmatch(r"[01]\d\d", answer) is None:
            return False
        self.sums.pop()
        overflow, rest = int(answer[0]), answer[1:]
        if self.carry:
            # The carry needs one more sum.
            self.sums.append(f"{rest}+01=")
            self.carry, self.kept = 0, overflow
        else:
            self.digits = rest + self.digits
            self.carry, self.kept = overflow | self.kept, 0
        return True


@rw.workflow
async def long_sum(task: rw.Task, model: rw.Model) -> float:
    """Adds two numbers with four digits. The reward is the share of digits that are right."""
    a, b = task.raw_task["a"], task.raw_task["b"]
    pad = Pad(a, b)
    while (question := pad.question) is not None:
        reply = await model.chat([{"role": "user", "content": question}], **task.rollout_args)
        if not pad.write(reply.text):
            return 0.0
    right = str(int(a) + int(b)).zfill(len(a))
    pairs = zip(reversed(pad.number), reversed(right), strict=False)
    return sum(one == other for one, other in pairs) / max(len(right), len(pad.number))


# ---- function calls of OpenAI's API --------------------------------------------------------------

OPERATORS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Computes one operation on two integers.",
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
    """Executes a tool call; returns the result or an error message for the model."""
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
        reply = answer.choices[0].message
        messages.append(reply.model_dump(exclude_none=True))
        text = reply.content or ""
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            result = calculate(call.function.arguments)
            used, failed = used + 1, failed + result.startswith("error")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    numbers = re.findall(r"-?\d+", text)
    reward = float(numbers[-1:] == [task.raw_task["answer"]])
    if task.is_eval:
        return reward
    # The recorded turns are the experiences. Returning the reward would give the same ones; here
    # they also get metrics.
    experiences = await model.extract_experience_from_history_async()
    for experience in experiences:
        experience.reward = reward
        experience.metrics = {"tool_calls": used, "tool_errors": failed}
    return experiences


def main() -> None:
    """Runs the agent on a mock server, and prints counts and score."""
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
