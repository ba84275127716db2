"""The table of every rope kind equals transformers' own frequencies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from stoker.engine.layers.rotary import (
    RopeParameters,
    cos_sin_table,
    inverse_frequencies,
    longrope_attention_factor,
    query_scales,
    yarn_attention_factor,
)

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


SHORT, LONG = [1.0 + 0.1 * pair for pair in range(HEAD_DIM // 2)], [1.5 + pair for pair in range(HEAD_DIM // 2)]


@pytest.mark.parametrize("num_positions", [TRAINED - 1, TRAINED, TRAINED + 1, POSITIONS])
@pytest.mark.parametrize("given", [{}, {"attention_factor": 1.3}, {"factor": 8.0}])
def test_longrope_has_the_factors_of_the_longest_sequence(num_positions: int, given: dict[str, float]):
    """transformers chooses by the longest position of a batch: the table is that of a batch that reaches the end."""
    config = Phi3Config(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=POSITIONS,
        original_max_position_embeddings=TRAINED,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 5e4,
            "short_factor": SHORT,
            "long_factor": LONG,
            "original_max_position_embeddings": TRAINED,
            **given,
        },
        pad_token_id=0,
    )
    cos, sin = Phi3RotaryEmbedding(config)(torch.zeros(1), torch.arange(num_positions)[None])
    expected = torch.cat((cos[0, :, : HEAD_DIM // 2], sin[0, :, : HEAD_DIM // 2]), dim=-1)
    implied = longrope_attention_factor(given.get("factor", POSITIONS / TRAINED), TRAINED)
    rope = RopeParameters(
        kind="longrope",
        theta=5e4,
        original_max_position=TRAINED,
        attention_factor=given.get("attention_factor", implied),
        short_factors=tuple(SHORT),
        long_factors=tuple(LONG),
    )
    torch.testing.assert_close(cos_sin_table(rope, HEAD_DIM, num_positions), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("num_positions", "scale"), [(TRAINED, 1.1), (TRAINED + 1, 1.4)])
def test_contexts_that_are_longer_may_have_a_scale_of_their_own(num_positions: int, scale: float):
    """Phi-3.5-MoE: the scale replaces that of `longrope`."""
    rope = RopeParameters(
        kind="longrope",
        theta=5e4,
        original_max_position=TRAINED,
        short_factors=tuple(SHORT),
        long_factors=tuple(LONG),
    )
    found = cos_sin_table(replace(rope, attention_factor=1.1, long_attention_factor=1.4), HEAD_DIM, num_positions)
    torch.testing.assert_close(found, scale * cos_sin_table(rope, HEAD_DIM, num_positions))


def test_longrope_factors_of_another_number_of_pairs_are_refused():
    rope = RopeParameters(kind="longrope", theta=5e4, original_max_position=TRAINED, short_factors=(1.0, 2.0))
    with pytest.raises(ValueError, match="longrope has 2 factors for 8 rotated pairs"):
        cos_sin_table(rope, HEAD_DIM, TRAINED)


def test_longrope_does_not_scale_a_context_that_is_not_longer():
    assert longrope_attention_factor(1.0, TRAINED) == 1.0


@pytest.mark.parametrize(("share", "factor"), [(0.25, 1.0), (0.3, 2.0), (1.0, 8.0)])
def test_proportional_has_the_frequencies_of_the_whole_head(share: float, factor: float):
    config = LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        rope_parameters={
            "rope_type": "proportional",
            "rope_theta": 5e4,
            "partial_rotary_factor": share,
            "factor": factor,
        },
    )
    frequencies, _ = ROPE_INIT_FUNCTIONS["proportional"](config)
    angles = torch.arange(POSITIONS)[:, None] * frequencies
    rope = RopeParameters(
        kind="proportional", theta=5e4, original_max_position=TRAINED, factor=factor, rotated_share=share
    )
    expected = torch.cat((angles.cos(), angles.sin()), -1)
    torch.testing.assert_close(cos_sin_table(rope, HEAD_DIM, POSITIONS), expected, atol=1e-6, rtol=1e-5)


def test_scales_of_queries_are_those_of_llama_4_and_ministral_3():
    positions = torch.arange(100)
    llama = torch.log1p(torch.floor((positions.float() + 1.0) / 8)) * 0.1 + 1.0
    torch.testing.assert_close(query_scales(100, interval=8, weight=0.1, first=1), llama)
    ministral = get_llama_4_attn_scale(positions[None], 0.2, 16)[0, 0, :, 0]
    torch.testing.assert_close(query_scales(100, interval=16, weight=0.2, first=0), ministral)
