"""What config.json of Qwen4 says about n-grams, streams and the index of blocks."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from stoker.config.plan.kv import kv_cost
from stoker.model.config_json import ModelConfigError
from stoker.model.mixers import Attention, GatedDelta
from stoker.model.ngrams import _primes
from stoker.model.offload import weight_offload
from stoker.model.pipeline_stages import pipeline_problem
from stoker.model.read import read_config
from stoker.model.sizes import state_bytes, weights_bytes
from stoker.model.spec import ModelSpec
from stoker.model.support import support_problem
from stoker.model.tensor_parallel import of_one_device, slices, tensor_parallel_problem
from stoker.model.tensors import model_shapes

CONFIG = {
    "architectures": ["Qwen4ExpForCausalLM"],
    "num_hidden_layers": 4,
    "eos_token_id": [7, 8],
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 64,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 16,
    "ple_layer_ids": [3, 2],
    "ngram_vocab_size_base": 100,
    "split_ngram_parts": 5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}


def spec_of(**changes: Any) -> ModelSpec:
    return read_config({**CONFIG, **changes})[0]


def test_layers_and_their_parts():
    spec = spec_of()
    assert [layer.mixer.kind for layer in spec.layers if layer.mixer] == ["gated_delta"] * 3 + ["attention"]
    assert [layer.ngrams is not None for layer in spec.layers] == [False, True, True, False]
    assert spec.stream_width == 4 * 2048
    mixer = spec.layers[3].mixer
    assert isinstance(mixer, Attention)
    assert mixer.index is not None
    assert (mixer.index.count, mixer.index.num_tokens) == (128, 2048 + 15)
    assert not spec.unsupported


def test_tables_of_a_layer_have_primes_that_no_other_has():
    second, third = (layer.ngrams for layer in spec_of().layers[1:3])
    assert second is not None
    assert third is not None
    sizes = second.table_sizes + third.table_sizes
    assert sizes[:4] == (101, 103, 107, 109)
    assert len(set(sizes)) == 32
    assert second.num_rows % 128 == 0
    assert sum(second.rows_of_files) == second.num_rows
    assert len(second.rows_of_files) == 5
    assert second.end_id == 7
    assert second.multipliers != third.multipliers


def test_primes():
    assert list(islice(_primes(1), 6)) == [2, 3, 5, 7, 11, 13]
    assert list(islice(_primes(89), 2)) == [89, 97]


def test_the_state_of_a_layer_has_the_inputs_of_both_convolutions():
    first, second = spec_of().states[:2]
    assert first is not None
    assert second is not None
    assert second.beside == (9, 4 * 2048)
    assert second.keeps.width - first.keeps.width == 9 * 4 * 2048


@pytest.mark.parametrize(("given", "gate"), [(None, "silu"), ("sigmoid", "sigmoid")])
def test_the_gate_of_recurrent_layers(given: str | None, gate: str):
    mixer = spec_of(output_gate_type=given).layers[0].mixer
    assert isinstance(mixer, GatedDelta)
    assert mixer.gate == gate


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indexer_n_heads": None}, "`indexer_n_heads` is None"),
        ({"indexer_kv_heads": 2}, "`indexer_kv_heads` must be 1"),
        ({"indexer_budget": 100}, "no multiple of `indexer_compress_ratio`"),
        ({"indexer_head_dim": 512}, "at most `head_dim`"),
        ({"indexer_head_dim": 32}, "less than the 64 elements that are rotated"),
        ({"hc_count": 1}, "`hc_count` is 1"),
        ({"ple_layer_ids": [0]}, "`ple_layer_ids`"),
        ({"ple_layer_ids": [4]}, "has no recurrent state"),
        ({"ple_embed_dim": 100}, "no multiple of the number of tables, 16"),
        ({"ngram_size": 1}, "`ngram_size` 1"),
        ({"split_ngram_parts": 2**31 - 1}, "`split_ngram_parts` is 2147483647; allowed: up to 4096"),
        ({"ple_conv_kernel_size": 1}, "`ple_conv_kernel_size` is 1"),
        ({"heads_per_ngram": 1000}, "`heads_per_ngram` 1000"),
        ({"ngram_vocab_size_base": 2**31 - 1, "eos_token_id": None}, "`eos_token_id` must be set"),
        ({"output_gate_type": "tanh"}, "`output_gate_type` is 'tanh'"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ModelConfigError, match=message):
        spec_of(**changes)


def test_attention_without_an_index_is_refused():
    """The class of transformers has none: nothing could be compared with it."""
    keys = dict.fromkeys(key for key in CONFIG if key.startswith("indexer_"))
    assert (
        support_problem(spec_of(**keys)) == "`indexer_n_heads` is missing: attention without an index is not supported"
    )


def test_devices_have_some_columns_of_the_tables():
    spec = spec_of()
    own = of_one_device(spec, 2)
    shapes, whole = model_shapes(own), model_shapes(spec)
    table = "model.layers.1.ple.ple_embedding.ngram_embedding.shard_0.weight"
    assert (whole[table][1], shapes[table][1]) == (128, 64)
    assert shapes["model.layers.1.ple.key_proj.weight"] == (8192, 1024)
    part = slices(spec, 2, 1)["model.layers.1.ple.value_proj.weight"]
    assert (part.dim, part.ranges[:2]) == (1, (range(64, 128), range(192, 256)))
    assert len(part.ranges) == 16
    assert tensor_parallel_problem(spec_of(ple_embed_dim=48), 2) == (
        "embeddings of n-grams of width 3 cannot be divided by 2"
    )


def test_ngrams_are_not_divided_into_stages():
    assert pipeline_problem(spec_of(), 2) == "some layers read token ids, which only the first stage has"
    assert pipeline_problem(spec_of(ple_layer_ids=None), 2) is None


def test_tables_are_not_moved_to_the_host():
    """A place on the device has the size of the largest layer, so that one table would fill what was saved."""
    spec = spec_of()
    num_bytes = weights_bytes(spec, "bfloat16")
    assert weight_offload(spec, "bfloat16", num_bytes, num_bytes / 2**31, 1) is None
    assert weight_offload(spec_of(ple_layer_ids=None), "bfloat16", num_bytes, num_bytes / 2**31, 1) is not None


def test_the_plan_counts_the_states_of_ngrams():
    spec = spec_of()
    assert kv_cost(spec, "bfloat16", 16).sequence_bytes == state_bytes(spec, "bfloat16")
