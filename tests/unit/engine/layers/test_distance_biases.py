"""Biases of distances between keys and queries."""

from __future__ import annotations

import torch
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from stoker.engine.layers.distance_biases import DistanceBiases, buckets_of

OFFSETS = torch.arange(-600, 601)


class Given:
    """A reader of one tensor."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def read(self, name: str, into: torch.Tensor) -> None:
        assert name == "biases.weight"
        into.copy_(self.values)


def test_buckets_are_those_of_transformers():
    for num_buckets in (8, 32, 64):
        expected = MPNetEncoder.relative_position_bucket(OFFSETS, num_buckets)
        assert torch.equal(buckets_of(OFFSETS, num_buckets), expected)


def test_the_table_has_the_bias_of_each_distance_up_to_the_last_bucket():
    values = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    biases = DistanceBiases("biases.weight", 32, 3, torch.float32, torch.device("cpu"))
    biases.load(Given(values))
    span = biases.table.shape[1] // 2
    expected = values[MPNetEncoder.relative_position_bucket(OFFSETS)]
    assert torch.equal(biases.table[:, OFFSETS.clamp(-span, span) + span].T, expected)
    other = DistanceBiases("biases.weight", 32, 3, torch.float32, torch.device("cpu"))
    other.hold(biases.held())
    assert torch.equal(other.table, biases.table)
    third = DistanceBiases("biases.weight", 32, 3, torch.float32, torch.device("cpu"))
    third.take_weights(other)
    assert torch.equal(third.table, biases.table)
