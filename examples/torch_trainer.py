"""A trainer in torch: reads experiences, makes GRPO steps, and publishes weights.

`torch_trainer.yaml` starts it beside the explorer:

    rollway run examples/torch_trainer.yaml

The model is the embedded one, implemented in torch, so that this file is a complete trainer. In a
trainer for GPUs, another model takes the place of `scores`.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import rollway as rw

try:
    import torch
    from safetensors import safe_open
    from safetensors.numpy import save_file
except ImportError as error:
    sys.exit(
        f"this trainer needs torch and safetensors ({error}): pip install safetensors; "
        "pip install torch --index-url https://download.pytorch.org/whl/cpu"
    )

#: Clipping range of the probability ratio.
CLIP = 0.2
LEARNING_RATE = 1e-3

# ---- the model -----------------------------------------------------------------------------------

#: Tensors by name, and the metadata of their file.
Weights = dict[str, Any]
Metadata = dict[str, str]

BLOCK = ("attention.norm", "attention.qkv", "attention.out", "feed.norm", "feed.up", "feed.down")


def norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """Root-mean-square normalization."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * gain


def attention(
    x: torch.Tensor, qkv: torch.Tensor, out: torch.Tensor, heads: int
) -> torch.Tensor:
    """Causal multi-head attention."""
    rows, length, width = x.shape
    queries, keys, values = (
        part.reshape(rows, length, heads, width // heads).transpose(1, 2)
        for part in (x @ qkv).split(width, dim=-1)
    )
    seen = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    return seen.transpose(1, 2).reshape(rows, length, width) @ out


def scores(weights: Weights, shape: dict[str, int], tokens: torch.Tensor) -> torch.Tensor:
    """Returns the logits of every next token: (rows, length) in, (rows, length, vocabulary) out."""
    x = weights["tokens"][tokens] + weights["positions"][: tokens.shape[1]]
    for layer in range(shape["layers"]):
        block = {name: weights[f"blocks.{layer}.{name}"] for name in BLOCK}
        normed = norm(x, block["attention.norm"])
        x = x + attention(normed, block["attention.qkv"], block["attention.out"], shape["heads"])
        inner = torch.relu(norm(x, block["feed.norm"]) @ block["feed.up"])
        x = x + inner @ block["feed.down"]
    return norm(x, weights["norm"]) @ weights["tokens"].T


def logprobs(weights: Weights, shape: dict[str, int], tokens: torch.Tensor) -> torch.Tensor:
    """Returns the log-probability of each token but the first: (rows, length - 1)."""
    log_softmax = torch.log_softmax(scores(weights, shape, tokens[:, :-1]), -1)
    return log_softmax.gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)


# ---- learning ------------------------------------------------------------------------------------


def loss_of(now: torch.Tensor, batch: dict[str, Any]) -> tuple[torch.Tensor, float]:
    """Returns the clipped policy-gradient loss of GRPO.

    Also returns the largest difference between the log-probabilities of these weights and the
    recorded ones: with the weights that sampled the tokens, only rounding.
    """
    mask, drawn, advantages = (
        batch[name][:, 1:].float() for name in ("action_mask", "logprobs", "advantages")
    )
    ratio = torch.exp(now - drawn)
    bounded = ratio.clamp(1 - CLIP, 1 + CLIP)
    gain = torch.minimum(ratio * advantages, bounded * advantages)
    drift = ((now.detach() - drawn) * mask).abs().max().item()
    return -(gain * mask).sum() / mask.sum(), drift


def load(path: pathlib.Path) -> tuple[Weights, Metadata]:
    """Returns trainable weights, and the metadata of the file."""
    with safe_open(path, "np") as file:
        weights = {name: torch.from_numpy(file.get_tensor(name)) for name in file.keys()}
        metadata = file.metadata()
    return {name: weight.requires_grad_(True) for name, weight in weights.items()}, metadata


def main() -> None:
    """Reads batches, trains and publishes until the buffer is closed."""
    # A job passes its parameters in the environment of its trainer.
    job = pathlib.Path(os.environ["ROLLWAY_JOB_DIR"])
    name = os.environ["ROLLWAY_TRAINER_NAME"]
    size = int(os.environ["ROLLWAY_TRAIN_BATCH_SIZE"])
    weights, metadata, step = begin(job)
    words = (word.split("=") for word in metadata["rollway-tiny"].split())
    shape = {name: int(number) for name, number in words}
    optimizer = torch.optim.Adam(list(weights.values()), lr=LEARNING_RATE, betas=(0.9, 0.99))
    with (
        rw.Synchronizer(job, name=name) as synchronizer,
        rw.ExperienceReader(os.environ["ROLLWAY_BUFFER"], batch_size=size, name=name) as reader,
        (job / "torch_trainer.jsonl").open("a") as log,
    ):
        for batch in batches(reader, synchronizer):
            step += 1
            arrays = batch.torch()
            loss, drift = loss_of(logprobs(weights, shape, arrays["tokens"]), arrays)
            optimizer.zero_grad()
            loss.backward()
            gradient = torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
            optimizer.step()
            publish(synchronizer, weights, metadata, step)
            reward = sum(experience.reward or 0.0 for experience in batch) / len(batch)
            report = {"step": step, "reward": reward, "gradient": gradient.item(), "drift": drift}
            print(json.dumps(report), file=log, flush=True)


def begin(job: pathlib.Path) -> tuple[Weights, Metadata, int]:
    """Returns the newest weights, the metadata of their file, and their version."""
    newest = job / "latest_state_dict_iteration.txt"
    if newest.exists():
        step = int(newest.read_text())
        return *load(job / f"global_step_{step}" / "model.safetensors"), step
    path = job / "start.safetensors"
    rw.models.Tiny.export(path)
    return *load(path), 0


def batches(
    reader: rw.ExperienceReader, synchronizer: rw.Synchronizer
) -> Iterator[rw.ExperienceBatch]:
    """Yields experiences; reports to waiting explorers when there are none."""
    while True:
        last_wait = synchronizer.last_wait()
        try:
            batch = reader.read(timeout=1)
        except TimeoutError:
            synchronizer.set_idle(last_wait)
            continue
        except StopIteration:
            return
        synchronizer.set_training()
        yield batch


def publish(synchronizer: rw.Synchronizer, weights: Weights, metadata: Metadata, step: int) -> None:
    """Publishes the weights to the explorers."""
    arrays = {name: weight.detach().numpy() for name, weight in weights.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.safetensors"
        save_file(arrays, path, metadata=metadata)
        synchronizer.publish(path, version=step)


if __name__ == "__main__":
    main()
