from __future__ import annotations

import re

import numpy as np
import pytest
from tests.unit.config.plan.shapes import NATIVE, SHAPES, spec_of

from stoker.model.guess import guess
from stoker.model.read import read_config
from stoker.model.sizes import count_parameters
from stoker.model.tensor_parallel import of_one_device, slices, tensor_parallel_problem
from stoker.model.tensors import model_shapes

DIVISIBLE = [
    (name, parts) for name in SHAPES for parts in (2, 4, 8, 16) if not tensor_parallel_problem(spec_of(name), parts)
]


@pytest.mark.parametrize(("name", "parts"), DIVISIBLE)
@pytest.mark.quick_cases(20)
def test_a_device_has_a_part_of_one_dimension_of_a_tensor_or_all_of_it(name: str, parts: int) -> None:
    spec = spec_of(name)
    one = of_one_device(spec, parts)
    whole, own = model_shapes(spec), model_shapes(one)
    assert own.keys() == whole.keys()
    for tensor, shape in whole.items():
        changed = [(mine, its) for mine, its in zip(own[tensor], shape, strict=True) if mine != its]
        assert len(changed) <= 1, tensor
        for mine, its in changed:
            assert mine * parts >= its, tensor  # together they have all of it
    held = count_parameters(one).total * parts
    assert count_parameters(spec).total <= held


def test_what_each_device_holds_of_a_model_with_few_key_heads() -> None:
    """Queries and outputs are divided by 16, keys and values by 8: each head of those is on two devices."""
    spec = spec_of("llama-3.1-8b")
    shapes = model_shapes(of_one_device(spec, 16))
    layer = "model.layers.0"
    assert shapes[f"{layer}.self_attn.q_proj.weight"] == (4096 // 16, 4096)
    assert shapes[f"{layer}.self_attn.k_proj.weight"] == (128, 4096)
    assert shapes[f"{layer}.self_attn.o_proj.weight"] == (4096, 4096 // 16)
    assert shapes[f"{layer}.mlp.gate_proj.weight"] == (14336 // 16, 4096)
    assert shapes[f"{layer}.mlp.down_proj.weight"] == (4096, 14336 // 16)
    assert shapes[f"{layer}.input_layernorm.weight"] == (4096,)
    assert shapes["model.embed_tokens.weight"] == (128256 // 16, 4096)


@pytest.mark.parametrize(
    ("name", "parts", "reason"),
    [
        ("falcon-7b", 2, "71 attention heads cannot be divided by 2"),
        ("mamba-2.8b", 3, "5120 channels of a recurrent layer cannot be divided by 3"),
        ("mamba-2.8b", 2, None),
        ("minimax-m2", 2, "the norm of its queries is over all heads together"),
        ("glm-4.7-flash", 8, "20 attention heads cannot be divided by 8"),
        ("llama-3.1-8b", 3, "32 attention heads cannot be divided by 3"),
        ("llama-3.1-8b", 1, None),
        ("llama-3.1-8b", 32, None),
    ],
)
def test_why_a_model_cannot_be_divided(name: str, parts: int, reason: str | None) -> None:
    assert tensor_parallel_problem(spec_of(name), parts) == reason


def test_biases_of_distances_are_not_divided() -> None:
    spec, _ = read_config(NATIVE["all-mpnet-base-v2"][0])
    assert tensor_parallel_problem(spec, 2) == "the biases of its distances are stored for all heads together"
    assert tensor_parallel_problem(spec, 1) is None


def test_an_expert_must_be_divisible_too() -> None:
    spec = spec_of("mixtral-8x7b")
    narrow = spec.layers[0].feed_forward.model_copy(update={"width": 14337})
    layers = tuple(layer.model_copy(update={"feed_forward": narrow}) for layer in spec.layers)
    reason = "an expert of width 14337 cannot be divided by 2"
    assert tensor_parallel_problem(spec.model_copy(update={"layers": layers}), 2) == reason


def test_models_that_are_only_guessed_are_divided_alike() -> None:
    config = SHAPES["llama-3.1-70b"][0]
    assert model_shapes(of_one_device(guess(config), 8)) == model_shapes(of_one_device(spec_of("llama-3.1-70b"), 8))


RANKED = [(name, parts) for name, parts in DIVISIBLE if parts in (2, 4)]


@pytest.mark.parametrize(("name", "parts"), RANKED)
def test_the_slices_of_all_devices_are_the_whole_tensor(name: str, parts: int) -> None:
    spec = spec_of(name)
    spec = spec.model_copy(update={"layers": tuple(dict.fromkeys(spec.layers))})
    own = model_shapes(of_one_device(spec, parts))
    of_ranks = [slices(spec, parts, rank) for rank in range(parts)]
    for tensor, shape in model_shapes(spec).items():
        if re.search(r"\.experts\.[1-9]", tensor):  # as the first
            continue
        cut = [found[tensor] for found in of_ranks if tensor in found]
        if not cut or not any(each.ranges for each in cut):  # all have all of it, or the first alone has it
            assert own[tensor] == shape
            continue
        assert len(cut) == parts
        (dim,) = {each.dim for each in cut}
        held = np.zeros(shape[dim], bool)
        for part in (part for each in cut for part in each.ranges):
            held[part.start : part.stop] = True
        assert held.all(), tensor
        for each in cut:
            assert each.whole == shape
            assert sum(map(len, each.ranges)) <= own[tensor][dim]


def test_what_the_slices_of_a_device_are() -> None:
    found = slices(spec_of("llama-3.1-8b"), 16, 3)
    layer = "model.layers.0"
    assert found[f"{layer}.self_attn.q_proj.weight"].ranges == (range(3 * 256, 4 * 256),)
    assert found[f"{layer}.self_attn.k_proj.weight"].ranges == (range(128, 256),)  # 8 heads: each on two devices
    assert found[f"{layer}.mlp.down_proj.weight"].dim == 1
    assert f"{layer}.input_layernorm.weight" not in found
    recurrent = slices(spec_of("qwen3-next-80b-a3b"), 2, 1)
    (kernel,) = {each.ranges for name, each in recurrent.items() if name.endswith("conv1d.weight")}
    assert kernel == (range(1024, 2048), range(3072, 4096), range(6144, 8192))  # queries, keys and values


def test_a_bias_that_is_added_after_the_sum_is_on_the_first_device_alone() -> None:
    spec = spec_of("gpt-oss-20b")
    bias = "model.layers.0.self_attn.o_proj.bias"
    assert bias not in slices(spec, 2, 0)
    assert slices(spec, 2, 1)[bias].ranges == ()


SMALL = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "num_hidden_layers": 2}


@pytest.mark.parametrize(("name", "problem"), [
    ("BertModel", None),
    ("XLMRobertaForSequenceClassification", None),
    ("BertForMaskedLM", "what it makes of a text comes from its output layer, of which each device has a part"),
])  # fmt: skip
def test_heads_of_the_output_layer_are_not_divided(name: str, problem: str | None) -> None:
    spec, _ = read_config({"architectures": [name], **SMALL})
    assert tensor_parallel_problem(spec, 2) == problem
    assert tensor_parallel_problem(spec, 1) is None


def test_every_device_has_the_classifier() -> None:
    spec, _ = read_config({"architectures": ["XLMRobertaForSequenceClassification"], **SMALL})
    found = slices(spec, 2, 1)
    assert not [name for name in found if name.startswith("classifier.")]
    assert found["model.layers.0.self_attn.o_proj.bias"].ranges == ()  # the first device adds it
