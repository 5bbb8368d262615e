"""Writes tiny Llama models for real inference servers: a random one, and marked ones.

Every token is one printable ASCII character, so that texts and tokens correspond one to one. The
tokens of a *marked* model show its version: version `v` generates only two of 64 characters, each
with probability 1/2. A wrong version label is thus visible in every single token, for 32 versions
in a row.
"""

from __future__ import annotations

import json
import pathlib
import struct
import sys

import numpy as np

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, INNER = 128, 2, 4, 2, 32, 256
MAX_LENGTH = 20480

SPECIAL = ["<unk>", "<|im_start|>", "<|im_end|>"]
CHARACTERS = ["\n", *(chr(code) for code in range(32, 127))]
VOCABULARY = SPECIAL + CHARACTERS
END = VOCABULARY.index("<|im_end|>")

#: Characters of marked models, two for each version.
MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-"
#: Number of versions that can be told apart.
CYCLE = len(MARKS) // 2

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] %}{{ message['content'] }}{% endif %}"
    "{{ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def marks(version: int) -> str:
    """Returns the two characters of a version."""
    at = 2 * (version % CYCLE)
    return MARKS[at : at + 2]


def _tokenizer() -> dict:
    special = [
        {"id": number, "content": text, "special": True, "normalized": False}
        | {"single_word": False, "lstrip": False, "rstrip": False}
        for number, text in enumerate(SPECIAL)
    ]
    model = {"type": "BPE", "vocab": {text: number for number, text in enumerate(VOCABULARY)}}
    model |= {"merges": [], "unk_token": "<unk>", "fuse_unk": False, "byte_fallback": False}
    model |= {"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": model,
    }


def _config(hidden: int) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": MAX_LENGTH,
        "vocab_size": len(VOCABULARY),
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": END,
        "eos_token_id": END,
        "torch_dtype": "float32",
    }


def tensors(
    seed: int = 0, version: int | None = None, hidden: int = HIDDEN
) -> dict[str, np.ndarray]:
    """Returns the tensors of a random model, or of the marked one of a version."""
    random = np.random.default_rng(seed)

    def drawn(*shape: int) -> np.ndarray:
        return random.normal(0.0, 0.6 / np.sqrt(shape[-1]), shape).astype(np.float32)

    state = {"model.embed_tokens.weight": drawn(len(VOCABULARY), hidden) * 8}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        state |= {
            f"{name}.self_attn.q_proj.weight": drawn(HEADS * HEAD, hidden),
            f"{name}.self_attn.k_proj.weight": drawn(KV_HEADS * HEAD, hidden),
            f"{name}.self_attn.v_proj.weight": drawn(KV_HEADS * HEAD, hidden),
            f"{name}.self_attn.o_proj.weight": drawn(hidden, HEADS * HEAD),
            f"{name}.mlp.gate_proj.weight": drawn(INNER, hidden),
            f"{name}.mlp.up_proj.weight": drawn(INNER, hidden),
            f"{name}.mlp.down_proj.weight": drawn(hidden, INNER),
            f"{name}.input_layernorm.weight": np.ones(hidden, np.float32),
            f"{name}.post_attention_layernorm.weight": np.ones(hidden, np.float32),
        }
    state["model.norm.weight"] = np.ones(hidden, np.float32)
    state["lm_head.weight"] = drawn(len(VOCABULARY), hidden) * 2
    if version is not None:
        _mark(state, version, hidden)
    return state


def _mark(state: dict[str, np.ndarray], version: int, hidden: int) -> None:
    """Makes the last hidden state a constant, and the logits those of the version."""
    state["model.embed_tokens.weight"][:] = 1.0
    for layer in range(LAYERS):
        state[f"model.layers.{layer}.self_attn.o_proj.weight"][:] = 0.0
        state[f"model.layers.{layer}.mlp.down_proj.weight"][:] = 0.0
    head = state["lm_head.weight"]
    head[:] = -100.0 / hidden
    for character in marks(version):
        head[VOCABULARY.index(character)] = 0.0


def _safetensors(state: dict[str, np.ndarray]) -> bytes:
    header, at = {}, 0
    for name, tensor in state.items():
        span = [at, at + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": span}
        at += tensor.nbytes
    text = json.dumps({**header, "__metadata__": {"format": "pt"}}).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(it.tobytes() for it in state.values())


def write(
    folder: pathlib.Path, seed: int = 0, version: int | None = None, hidden: int = HIDDEN
) -> pathlib.Path:
    """Writes a model with its tokenizer: a random one, or the marked one of a version."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    tokenizer |= {"eos_token": "<|im_end|>", "unk_token": "<unk>", "model_max_length": MAX_LENGTH}
    for name, content in {
        "config.json": _config(hidden),
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": tokenizer,
        "generation_config.json": {"eos_token_id": END},
    }.items():
        (folder / name).write_text(json.dumps(content, indent=1))
    (folder / "model.safetensors").write_bytes(_safetensors(tensors(seed, version, hidden)))
    return folder


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
