"""Calls of the tests: random requests, and the check of recorded versions by the tokens."""

from __future__ import annotations

import random
import time

import openai
import tiny_model

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two digits.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "string", "enum": ["1", "2", "3"]},
                    "b": {"type": "string", "enum": ["4", "5", "6"]},
                },
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    }
]


def client(gateway, key: str) -> openai.OpenAI:
    """Returns a client of a run, without retries of its own."""
    return openai.OpenAI(base_url=gateway.base_url, api_key=key, max_retries=0, timeout=600)


def async_client(gateway, key: str) -> openai.AsyncOpenAI:
    """Returns a client of a run, without retries of its own."""
    return openai.AsyncOpenAI(base_url=gateway.base_url, api_key=key, max_retries=0, timeout=600)


def wait_for(condition, seconds: float = 120) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.02)


def random_text(draw: random.Random, most: int = 5) -> str:
    """Returns random lower-case words."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    count = draw.randint(1, most)
    return " ".join("".join(draw.choices(letters, k=draw.randint(1, 6))) for _ in range(count))


def response_tokens(experience) -> list[int]:
    """Returns the tokens after the first prompt."""
    return experience.tokens[experience.prompt_length :].tolist()


def labels(experience) -> list[int | None]:
    """Returns the version of each token after the first prompt."""
    return [version for version, count in experience.model_versions for _ in range(count)]


class Labels:
    """Counts of right, unknown and wrong versions of generated tokens."""

    def __init__(self) -> None:
        self.right = self.unknown = self.wrong = 0
        self.examples: list[str] = []

    def check(self, experience) -> None:
        """Compares the labels with the characters that the marked models generate."""
        tokens, versions = response_tokens(experience), labels(experience)
        assert len(tokens) == len(versions) == len(experience.action_mask)
        for token, version, is_action in zip(tokens, versions, experience.action_mask):
            if not is_action:
                continue
            if version is None:
                self.unknown += 1
            elif tiny_model.VOCABULARY[token] in tiny_model.marks(version):
                self.right += 1
            else:
                self.wrong += 1
                character = tiny_model.VOCABULARY[token]
                self.examples.append(f"{character!r} has the label {version}")

    def __str__(self) -> str:
        return f"{self.right} tokens right, {self.unknown} without a version, {self.wrong} wrong"
