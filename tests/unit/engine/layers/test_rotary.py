"""The table of every rope kind equals transformers' own frequencies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from stoker.engine.layers.rotary import RopeParameters, cos_sin_table, inverse_frequencies, yarn_attention_factor

HEAD_DIM, POSITIONS, TRAINED = 16, 64, 32


def reference(rope: dict[str, Any], max_position: int = TRAINED) -> torch.Tensor:
    config = LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=max_position,
        rope_parameters={"rope_theta": 5e4, **rope},
    )
    positions = torch.arange(POSITIONS)[None]
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    return torch.cat((cos[0, :, : HEAD_DIM // 2], sin[0, :, : HEAD_DIM // 2]), dim=-1)


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"rope_type": "default"}, {"kind": "default"}),
        ({"rope_type": "linear", "factor": 4.0}, {"kind": "linear", "factor": 4.0}),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            {"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        ),
        (
            {"rope_type": "yarn", "factor": 4.0},
            {"kind": "yarn", "factor": 4.0, "attention_factor": yarn_attention_factor(4.0, None, None)},
        ),
        (
            {"rope_type": "yarn", "factor": 2.0, "beta_fast": 8, "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.8},
            {
                "kind": "yarn",
                "factor": 2.0,
                "beta_fast": 8.0,
                "beta_slow": 2.0,
                "attention_factor": yarn_attention_factor(2.0, 1.0, 0.8),
            },
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "truncate": False, "attention_factor": 0.7},
            {"kind": "yarn", "factor": 4.0, "truncate": False, "attention_factor": 0.7},
        ),
    ],
    ids=["default", "linear", "llama3", "yarn", "yarn mscale", "yarn untruncated"],
)
def test_table_equals_transformers(given: dict[str, Any], ours: dict[str, Any]):
    if given["rope_type"] in ("llama3", "yarn"):
        given = {**given, "original_max_position_embeddings": TRAINED}
    rope = RopeParameters(theta=5e4, original_max_position=TRAINED, **ours)
    torch.testing.assert_close(cos_sin_table(rope, HEAD_DIM, POSITIONS), reference(given), atol=1e-6, rtol=1e-5)


def test_dynamic_turns_each_position_as_a_sequence_that_ends_with_it():
    rope = RopeParameters(kind="dynamic", theta=5e4, original_max_position=TRAINED, factor=3.0)
    table = cos_sin_table(rope, HEAD_DIM, POSITIONS)
    plain = cos_sin_table(RopeParameters(kind="default", theta=5e4, original_max_position=TRAINED), HEAD_DIM, POSITIONS)
    torch.testing.assert_close(table[:TRAINED], plain[:TRAINED])
    whole = reference({"rope_type": "dynamic", "factor": 3.0})  # of a sequence of all 64 positions
    torch.testing.assert_close(table[-1], whole[-1], atol=1e-6, rtol=1e-5)


def test_frequencies_fall_from_one_and_odd_heads_are_refused():
    assert inverse_frequencies(4, 100.0).tolist() == pytest.approx([1.0, 0.1])
    with pytest.raises(ValueError, match="head_dim 7 is odd"):
        inverse_frequencies(7, 10_000.0)
