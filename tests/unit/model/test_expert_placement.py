from __future__ import annotations

import pytest
from tests.unit.config.plan.shapes import spec_of

from stoker.model.expert_placement import first_layout, own_experts, with_placed_experts
from stoker.model.feed_forwards import Experts, Placement
from stoker.model.sizes import count_parameters
from stoker.model.spec import ModelSpec
from stoker.model.tensor_parallel import of_one_device, slices, tensor_parallel_problem


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
        return tensor_parallel_problem(with_placed_experts(spec, "linear", redundant), 4)

    assert why_not(3) == "128 experts and 3 redundant ones cannot be divided by 4"
    assert why_not(388) == "128 experts on 4 devices have at most 384 redundant ones"
    assert why_not(4) is None
    own = of_one_device(with_placed_experts(spec, "linear", 4), 4).layers[0].feed_forward
    assert isinstance(own, Experts)
    assert own.held == 33


def test_replicas_share_experts_and_nothing_else() -> None:
    spec = with_placed_experts(spec_of("qwen3-30b-a3b"), "linear", num_replicas=3)
    assert tensor_parallel_problem(spec, 1) is None
    assert spec.num_sharing_experts == 3
    own = of_one_device(spec, 1)
    block = own.layers[0].feed_forward
    assert isinstance(block, Experts)
    assert (block.count, block.held, block.width) == (128, 43, 768)
    assert own.layers[0].mixer == spec.layers[0].mixer
    assert own.held_share == 43 / 128
    too_many = with_placed_experts(spec, "linear", num_replicas=129)
    assert tensor_parallel_problem(too_many, 1) == "128 experts cannot be placed on 129 devices"


def test_placed_experts_are_not_divided() -> None:
    spec = with_placed_experts(spec_of("qwen3-30b-a3b"), "linear")
    assert not any(".experts." in name for name in slices(spec, 4, 1))
    own = of_one_device(spec, 4).layers[0].feed_forward
    assert isinstance(own, Experts)
    assert (own.count, own.held, own.width) == (128, 32, 768)
    assert count_parameters(of_one_device(spec, 4)).total == count_parameters(of_one_device(divided(spec), 4)).total
    assert tensor_parallel_problem(spec, 3) == "32 attention heads cannot be divided by 3"
    assert tensor_parallel_problem(spec, 256) == "32 attention heads cannot be divided by 256"


def divided(spec: ModelSpec) -> ModelSpec:
    return with_placed_experts(spec, "divided")
