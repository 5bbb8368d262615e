"""Workflow and reward of the job."""

from __future__ import annotations

import rollway as rw


async def add(task: rw.Task, model: rw.Model) -> dict[str, float]:
    """One run of a task: calls the model as often as it likes, and returns the reward."""
    messages = [{"role": "user", "content": task.raw_task["question"]}]
    reply = await model.chat(messages, **task.rollout_args)
    scores = await rw.compute_reward(task, reply.text)
    # Other numbers than `reward` become metrics.
    return {**scores, "answer_chars": float(len(reply.text))}


def right_digits(response: str, truth: str) -> float:
    """The share of digits that are right."""
    right = sum(one == other for one, other in zip(response, truth))
    return right / max(len(response), len(truth))
