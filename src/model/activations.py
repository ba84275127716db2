"""The activations of feed-forward blocks that are computed, by their names in config.json.

The three names of gelu_tanh are one formula, computed in different ways.
"""

from __future__ import annotations

from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
HIDDEN_ACTS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
