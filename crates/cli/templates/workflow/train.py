"""Trainer of server.yaml: reads experiences, publishes weights, resumes after it was stopped.

`Learner` is the part to replace by a model and its optimizer. This one has a single number, the
mean reward, so that the job runs without torch and without a GPU.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import numpy as np
import rollway as rw


class Learner:
    """EDIT: your model and its optimizer."""

    def __init__(self) -> None:
        self.mean_reward = 0.0

    def step(self, batch: rw.ExperienceBatch) -> None:
        """One optimizer step. `batch.torch()` has the same arrays as torch tensors."""
        arrays = batch.to_numpy()  # tokens, action_mask, logprobs, advantages, rewards, …
        self.mean_reward += 0.1 * (float(arrays["rewards"].mean()) - self.mean_reward)

    def weights(self) -> dict[str, Any]:
        """The state dict, with the names of the checkpoint that the server has loaded."""
        return {"mean_reward": np.array([self.mean_reward], dtype=np.float32)}

    def state(self) -> dict[str, Any]:
        """Everything that a resumed trainer needs, such as the state of the optimizer."""
        return {"mean_reward": self.mean_reward}

    def load(self, state: dict[str, Any]) -> None:
        """Restores `state()`."""
        self.mean_reward = state["mean_reward"]


def main() -> None:
    """Trains until the job has no more experiences."""
    job, name = pathlib.Path(os.environ["ROLLWAY_JOB_DIR"]), os.environ["ROLLWAY_TRAINER_NAME"]
    saved, learner, step = job / "my_trainer.json", Learner(), 0
    buffer, size = os.environ["ROLLWAY_BUFFER"], int(os.environ["ROLLWAY_TRAIN_BATCH_SIZE"])
    with (
        rw.Synchronizer(job, name=name) as sync,
        rw.ExperienceReader(buffer, batch_size=size, name=name) as reader,
    ):
        if saved.exists():
            state = json.loads(saved.read_text())
            learner.load(state["learner"])
            reader.load_state_dict(state["reader"])
            step = state["step"]
            if rw.latest_version(job) < step:  # stopped between saving and publishing
                sync.publish(learner.weights(), version=step)
        while True:
            seen = sync.last_wait()  # before the read
            try:
                batch = reader.read(timeout=1)
            except TimeoutError:
                sync.set_idle(seen)  # explorers that wait for weights continue
                continue
            except StopIteration:  # the job has no more experiences
                break
            sync.set_training()
            step += 1
            learner.step(batch)
            state = {"learner": learner.state(), "reader": reader.state_dict(), "step": step}
            saved.with_suffix(".new").write_text(json.dumps(state))
            saved.with_suffix(".new").replace(saved)
            sync.publish(learner.weights(), version=step)
            print(f"step {step}: {len(batch)} experiences, {learner.state()}", flush=True)


if __name__ == "__main__":
    main()
