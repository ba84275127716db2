"""Measured model shapes and the minimum work of a step, prompt or workload (bytes and floating-point operations)."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

Cost = tuple[float, float]  # bytes, floating-point operations
MODELS = Path(__file__).parents[1] / "models"


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of a decoder."""

    folder: Path  # contains config.json
    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    has_head_norms: bool
    block_size: int = 64

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Numbers of outputs and inputs of a layer's linears."""
        return {
            "qkv": (self.qkv, self.hidden),
            "out": (self.hidden, self.heads * self.head_dim),
            "gate and up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }

    @property
    def num_layer_weights(self) -> int:
        """Weights of the linears of all layers."""
        return self.layers * sum(outputs * inputs for outputs, inputs in self.linears.values())

    @property
    def weights_bytes(self) -> int:
        """Bytes read in a step that samples: the layers and the output layer, 2 bytes per weight."""
        return 2 * (self.num_layer_weights + self.vocab * self.hidden)

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim


def shape_of(folder: Path, name: str) -> Shape:
    """folder: contains the config.json of a Llama or Qwen3 model."""
    config = json.loads((folder / "config.json").read_text())
    heads = config["num_attention_heads"]
    return Shape(
        folder=folder,
        name=name,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        heads=heads,
        kv_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab=config["vocab_size"],
        has_head_norms=config["model_type"] == "qwen3",
    )


QWEN = shape_of(MODELS / "qwen3-0.6b", "Qwen3-0.6B")
LLAMA = shape_of(MODELS / "llama-3.1-8b", "Llama-3.1-8B")
SMALL = replace(shape_of(MODELS / "small", "small"), block_size=16)  # for the interpreter


def decode_cost(shape: Shape, rows: int, tokens_in_cache: float) -> Cost:
    """One step of `rows` rows, each with one query."""
    flops = 2.0 * rows * (shape.num_layer_weights + shape.vocab * shape.hidden)
    return shape.weights_bytes + tokens_in_cache * shape.kv_bytes_per_token, flops


def prefill_cost(shape: Shape, tokens: int) -> Cost:
    """A prompt; only its last token has logits."""
    pairs = tokens * (tokens + 1) / 2
    attention = 4.0 * shape.layers * shape.heads * shape.head_dim * pairs
    flops = 2.0 * tokens * shape.num_layer_weights + 2.0 * shape.vocab * shape.hidden + attention
    return shape.weights_bytes + tokens * shape.kv_bytes_per_token, flops


def workload_cost(shape: Shape, lengths: list[tuple[int, int]]) -> list[Cost]:
    """lengths: of prompt and output of each request. All run concurrently, in as many steps as the longest output."""
    prompts = sum(prompt for prompt, _ in lengths)
    prefills = (0.0, sum(prefill_cost(shape, prompt)[1] for prompt, _ in lengths))
    read = sum(answer * (prompt + (answer + 1) / 2) for prompt, answer in lengths) * shape.kv_bytes_per_token
    steps = max(answer for _, answer in lengths)
    written = (prompts + sum(answer for _, answer in lengths)) * shape.kv_bytes_per_token
    return [prefills, (float(read + written + steps * shape.weights_bytes), 0.0)]
