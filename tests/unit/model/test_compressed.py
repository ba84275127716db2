"""Attention over compressed vectors, as config.json describes it in old and new files."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.config.plan.shapes import config_of

from stoker.model.config_json import ModelConfigError
from stoker.model.mixers import CompressedAttention
from stoker.model.pipeline_stages import pipeline_problem, stages
from stoker.model.read import read_config
from stoker.model.spec import ModelSpec
from stoker.model.support import support_problem

FLASH = config_of("deepseek-v4-flash")


def spec_of(**changes: Any) -> ModelSpec:
    return read_config({key: value for key, value in {**FLASH, **changes}.items() if value is not ...})[0]


def mixers_of(spec: ModelSpec) -> list[CompressedAttention]:
    return [layer.mixer for layer in spec.layers if isinstance(layer.mixer, CompressedAttention)]


def test_each_layer_has_its_own_kind_of_vectors() -> None:
    spec = spec_of()
    assert not support_problem(spec)
    window, _, sparse, dense = mixers_of(spec)[:4]
    assert [mixer.rate for mixer in (window, sparse, dense)] == [0, 4, 128]
    assert [mixer.index_topk for mixer in (window, sparse, dense)] == [0, 512, 0]
    assert [mixer.rope.theta for mixer in (window, sparse, dense)] == [1e4, 1.6e5, 1.6e5]
    assert [mixer.rope.kind for mixer in (window, sparse, dense)] == ["default", "yarn", "yarn"]
    assert sparse.rope.attention_factor == 1  # yarn's own factor would be 1.28
    assert [mixer.keeps.width for mixer in (sparse, dense)] == [160, 4]
    assert sparse.state.sums == (8, 2 * 2 * (512 + 128))
    assert spec.tokens_of_vector == 128


def test_files_of_transformers_say_the_same() -> None:
    names = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    new = spec_of(
        compress_ratios=...,
        num_hash_layers=...,
        qk_rope_head_dim=...,
        rope_scaling=...,
        layer_types=[names[rate] for rate in FLASH["compress_ratios"][:43]],
        compress_rates={names[4]: 4, names[128]: 128},
        mlp_layer_types=["hash_moe"] * 3 + ["moe"] * 40,
        partial_rotary_factor=0.125,
        rope_parameters={
            "main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.125},
            "compress": {
                **{key: value for key, value in FLASH["rope_scaling"].items() if key != "type"},
                "rope_type": "yarn",
                "rope_theta": 160000.0,
                "partial_rotary_factor": 0.125,
                "attention_factor": 1.0,
            },
        },
    )
    assert new == spec_of()


def test_layers_without_a_list_alternate_after_two() -> None:
    rates = [mixer.rate for mixer in mixers_of(spec_of(compress_ratios=..., num_hidden_layers=6))]
    assert rates == [128, 128, 128, 4, 128, 4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_ratios": [0, 4, 5] * 20}, "`compress_ratios` must list one of 0, 4, 128 for each of 43 layers"),
        ({"compress_ratios": [{}] * 43}, "`compress_ratios` must list one of"),
        ({"compress_ratios": [4]}, "`compress_ratios` must list one of"),
        ({"o_groups": 7}, "64 heads cannot be divided into the 7 groups"),
        ({"num_key_value_heads": 2}, "`num_key_value_heads` must be 1"),
        ({"index_head_dim": 32}, "`index_head_dim` is 32, less than what is rotated"),
        ({"compress_rate_csa": 6}, "640 elements cannot be kept in the places of 6 tokens"),
        ({"compress_rates": [4]}, "`compress_rates` must be an object"),
        ({"rope_scaling": "yarn"}, "it must be an object"),
        ({"mlp_layer_types": ["dense"] * 43}, "`mlp_layer_types` must say `hash_moe` or `moe` of layer 0"),
        ({"num_hash_layers": -1}, "`num_hash_layers` is -1"),
        ({"scoring_func": "tanh"}, "`scoring_func` is tanh; known: sqrtsoftplus, softmax, sigmoid"),
        ({"layer_types": ["full_attention"] * 43}, "`layer_types` has 'full_attention'"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        spec_of(**changes)


def test_groups_that_no_block_holds_are_refused() -> None:
    assert "no common multiple below 128" in support_problem(spec_of(compress_rate_hca=256))


def test_stages_after_the_first_have_no_token_ids() -> None:
    spec = spec_of()
    assert pipeline_problem(spec, 2) is None
    assert stages(spec, 20)[0].stop < 3
    assert "token ids" in str(pipeline_problem(spec, 20))
    assert "token ids" in str(pipeline_problem(spec_of(num_hash_layers=43), 2))
