from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest
from tests.unit.config.plan.shapes import SHAPES

from stoker.model.guess import guess
from stoker.model.read import read_config
from stoker.model.sharding import (
    first_layout,
    not_divisible,
    not_parted,
    not_staged,
    of_one_device,
    of_stages,
    own_experts,
    slices,
    stage_parameters,
    stages,
    with_placed_experts,
)
from stoker.model.sizes import count_parameters
from stoker.model.spec import Experts, ModelSpec, Placement
from stoker.model.tensors import model_shapes


def spec_of(name: str) -> ModelSpec:
    return read_config(SHAPES[name][0])[0]


DIVISIBLE = [(name, parts) for name in SHAPES for parts in (2, 4, 8, 16) if not not_divisible(spec_of(name), parts)]


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
        ("mamba-2.8b", 2, "a layer of the kind mamba"),
        ("minimax-m2", 2, "the norm of its queries is over all heads together"),
        ("glm-4.7-flash", 8, "20 attention heads cannot be divided by 8"),
        ("llama-3.1-8b", 3, "32 attention heads cannot be divided by 3"),
        ("llama-3.1-8b", 1, None),
        ("llama-3.1-8b", 32, None),
    ],
)
def test_why_a_model_cannot_be_divided(name: str, parts: int, reason: str | None) -> None:
    assert not_divisible(spec_of(name), parts) == reason


def test_an_expert_must_be_divisible_too() -> None:
    spec = spec_of("mixtral-8x7b")
    narrow = spec.layers[0].feed_forward.model_copy(update={"width": 14337})
    layers = tuple(layer.model_copy(update={"feed_forward": narrow}) for layer in spec.layers)
    reason = "an expert of width 14337 cannot be divided by 2"
    assert not_divisible(spec.model_copy(update={"layers": layers}), 2) == reason


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "qwen3-0.6b"])
def test_stages_have_all_layers_and_all_weights(name: str, number: int) -> None:
    spec = spec_of(name)
    found = stages(spec, number)
    assert [index for stage in found for index in stage] == list(range(spec.num_layers))
    assert all(found)
    held = stage_parameters(spec, number)
    assert sum(held) == count_parameters(spec).total
    assert [part.num_layers for part in of_stages(spec, number)] == [len(stage) for stage in found]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3.1-8b", [15, 17]),  # the output layer is as large as 2.4 layers
        ("qwen3-0.6b", [9, 19]),  # as 10, and the embedding is the same matrix
        ("deepseek-v3", [32, 29]),  # the first three layers are small
    ],
)
def test_stages_read_equally_many_weights(name: str, expected: list[int]) -> None:
    assert [len(stage) for stage in stages(spec_of(name), 2)] == expected


def test_no_other_cuts_have_a_smaller_largest_stage() -> None:
    spec = spec_of("qwen3-0.6b")
    spec = spec.model_copy(update={"layers": spec.layers[:7]})
    outer = count_parameters(spec).total - sum(map(layer_sizes(spec), range(7)))
    size = layer_sizes(spec)

    def largest(cuts: tuple[int, ...]) -> int:
        places = [0, *cuts, 7]
        parts = [sum(map(size, range(*pair))) for pair in itertools.pairwise(places)]
        return max(parts[0] + outer, *parts[1:])

    for number in (2, 3, 4, 7):
        best = min(map(largest, itertools.combinations(range(1, 7), number - 1)))
        assert max(stage_parameters(spec, number)) == best


def layer_sizes(spec: ModelSpec) -> Callable[[int], int]:
    def size(index: int) -> int:
        one, none = (spec.model_copy(update={"layers": layers}) for layers in (spec.layers[index : index + 1], ()))
        return count_parameters(one).total - count_parameters(none).total

    return size


def test_why_a_model_cannot_be_staged() -> None:
    spec = spec_of("qwen3-0.6b")
    assert not_staged(spec, 28) is None
    assert not_staged(spec, 29) == "28 layers cannot be 29 stages"
    reader = spec.layers[-1].mixer.model_copy(update={"keys_of": 0})
    layers = (*spec.layers[:-1], spec.layers[-1].model_copy(update={"mixer": reader}))
    shared = spec.model_copy(update={"layers": layers})
    assert not_staged(shared, 2) == "some layers read the keys and values of others"
    assert not_staged(shared, 1) is None


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


@pytest.mark.parametrize("placement", ["linear", "round_robin"])
def test_each_expert_is_on_one_device(placement: Placement) -> None:
    for count, num_devices in ((8, 2), (5, 4), (128, 3), (7, 7), (1, 1)):
        block = Experts(count=count, per_token=1, width=4, placement=placement)
        held = [own_experts(block, num_devices, rank) for rank in range(num_devices)]
        assert sorted(expert for own in held for expert in own) == list(range(count))
        assert max(map(len, held)) - min(map(len, held)) <= 1
        assert max(map(len, held)) == -(-count // num_devices)  # what memory is planned for


@pytest.mark.parametrize("placement", ["linear", "round_robin"])
def test_experts_that_move_begin_where_they_would_stay(placement: Placement) -> None:
    for count, redundant, num_devices in ((8, 0, 2), (8, 2, 2), (5, 3, 4), (6, 2, 4), (128, 1, 3), (4, 4, 2)):
        block = Experts(count=count, per_token=1, width=4, placement=placement, redundant=redundant)
        layout = first_layout(block, num_devices)
        assert {expert for held in layout for expert in held} == set(range(count))
        assert {len(set(held)) for held in layout} == {(count + redundant) // num_devices}
        for rank, held in enumerate(layout):
            own = own_experts(block, num_devices, rank)
            assert held[: len(own)] == tuple(own)
    block = Experts(count=4, per_token=1, width=4, placement=placement, redundant=2)
    by_hand = {"linear": ((0, 1, 2), (2, 3, 0)), "round_robin": ((0, 2, 1), (1, 3, 2))}
    assert first_layout(block, 2) == by_hand[placement]


def test_experts_that_move_have_equally_many_places_on_each_device() -> None:
    spec = spec_of("qwen3-30b-a3b")

    def why_not(redundant: int) -> str | None:
        return not_divisible(with_placed_experts(spec, "linear", redundant), 4)

    assert why_not(3) == "128 experts and 3 redundant ones cannot be divided by 4"
    assert why_not(388) == "128 experts on 4 devices have at most 384 redundant ones"
    assert why_not(4) is None
    own = of_one_device(with_placed_experts(spec, "linear", 4), 4).layers[0].feed_forward
    assert isinstance(own, Experts)
    assert own.held == 33


def test_replicas_share_experts_and_nothing_else() -> None:
    spec = with_placed_experts(spec_of("qwen3-30b-a3b"), "linear", num_replicas=3)
    assert not_divisible(spec, 1) is None
    assert spec.num_sharing_experts == 3
    own = of_one_device(spec, 1)
    block = own.layers[0].feed_forward
    assert isinstance(block, Experts)
    assert (block.count, block.held, block.width) == (128, 43, 768)
    assert own.layers[0].mixer == spec.layers[0].mixer
    assert own.held_share == 43 / 128
    too_many = with_placed_experts(spec, "linear", num_replicas=129)
    assert not_divisible(too_many, 1) == "128 experts cannot be placed on 129 devices"


def test_placed_experts_are_not_divided() -> None:
    spec = with_placed_experts(spec_of("qwen3-30b-a3b"), "linear")
    assert not any(".experts." in name for name in slices(spec, 4, 1))
    own = of_one_device(spec, 4).layers[0].feed_forward
    assert isinstance(own, Experts)
    assert (own.count, own.held, own.width) == (128, 32, 768)
    assert count_parameters(of_one_device(spec, 4)).total == count_parameters(of_one_device(divided(spec), 4)).total
    assert not_divisible(spec, 3) == "32 attention heads cannot be divided by 3"
    assert not_divisible(spec, 256) == "32 attention heads cannot be divided by 256"


def divided(spec: ModelSpec) -> ModelSpec:
    return with_placed_experts(spec, "divided")


@pytest.mark.parametrize(
    ("name", "devices", "parts", "reason"),
    [
        ("deepseek-v3", 8, 8, None),
        ("deepseek-v3", 8, 4, None),
        ("llama-3.1-8b", 16, 2, None),
        ("llama-3.1-8b", 16, 4, "each of its keys and values is on 2 of 16 processes, no multiple of 4"),
        ("llama-3.1-8b", 8, 2, "each of its keys and values is on 1 of 8 processes, no multiple of 2"),
        ("deepseek-v3.2", 8, 2, "attention is to chosen tokens, and each process chooses among all"),
        ("gemma-3-1b", 2, 2, "some of its layers attend to a window, whose tokens each process keeps"),
        ("qwen3.5-27b", 8, 2, "some of its layers keep a recurrent state, which is of all tokens before"),
    ],
)
def test_tokens_are_shared_by_devices_with_the_same_keys(
    name: str, devices: int, parts: int, reason: str | None
) -> None:
    assert not_parted(spec_of(name), devices, parts) == reason
    assert not_parted(spec_of(name), devices, 1) is None


def test_what_depends_on_more_than_the_kept_tokens_is_not_shared() -> None:
    spec = spec_of("llama-3.1-8b")

    def reason(**changes: object) -> str | None:
        layers = tuple(
            layer.model_copy(update={"mixer": layer.mixer.model_copy(update=changes)})
            for layer in spec.layers
            if layer.mixer is not None
        )
        return not_parted(spec.model_copy(update={"layers": layers}), 16, 2)

    assert reason() is None
    assert reason(has_sinks=True) == "attention has sinks, which would be added once for each process"
    assert "ALiBi" in str(reason(alibi="after_scale"))
