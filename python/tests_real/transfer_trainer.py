"""Trainer of `test_transfer.py`: it sends marked weights and checks what it trains on.

It runs in the environment of vLLM, which has PyTorch.
"""

from __future__ import annotations

import logging
import os
import sys

import tiny_model

import rollway as rw

logging.basicConfig(stream=sys.stdout)


def check(batch) -> tuple[int, int]:
    """Returns the numbers of generated tokens with the right and with another label."""
    right = other = 0
    for experience in batch.experiences:
        at = experience.prompt_length
        tokens = experience.tokens[at:].tolist()
        labels = [version for version, count in experience.model_versions for _ in range(count)]
        for token, label, is_action in zip(tokens, labels, experience.action_mask):
            if is_action and label:
                is_right = tiny_model.VOCABULARY[token] in tiny_model.marks(label)
                right, other = right + is_right, other + (not is_right)
    return right, other


def main() -> None:
    """Publishes a new version after every batch."""
    version = 0
    size = int(os.environ["ROLLWAY_TRAIN_BATCH_SIZE"])
    for batch in rw.ExperienceReader(os.environ["ROLLWAY_BUFFER"], batch_size=size):
        right, other = check(batch)
        print(f"checked {right} right, {other} wrong", flush=True)
        version += 1
        state = tiny_model.tensors(version=version)
        job = os.environ["ROLLWAY_JOB_DIR"]
        used = rw.publish_weights(job, state, version, method="gloo", transfer_timeout=60)
        print(f"published {version} by {used}", flush=True)


if __name__ == "__main__":
    main()
