"""Which layers are in host memory, and what that saves."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stoker.model.offload import weight_offload
from stoker.model.read import read_config
from stoker.model.sizes import weights_bytes
from stoker.model.spec import ModelSpec

from ..config.plan.shapes import config_of

GIB = 1 << 30


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    """Qwen3-0.6B: 28 layers of 15,730,944 parameters; an embedding of 155,582,464; a norm."""
    return read_config(config_of("qwen3-0.6b"))[0]


def test_the_fewest_layers_that_have_as_many_bytes_spread_evenly(spec: ModelSpec) -> None:
    whole = weights_bytes(spec, "bfloat16")
    for count in (3, 4, 7, 14, 27, 28):
        layer = 15_730_944 * 2
        found = weight_offload(spec, "bfloat16", whole, (count * layer - layer / 2) / GIB, 1)
        assert found is not None
        assert len(found.layers) == count
        assert found.layers[-1] == 27
        assert {second - first for first, second in pairwise((-1, *found.layers))} <= {28 // count, -(-28 // count)}
        assert found.layer_bytes == pytest.approx(layer, abs=200)
        assert found.host_bytes == count * found.layer_bytes
        assert found.saved_bytes == (count - 2) * found.layer_bytes


def test_no_more_than_all_layers(spec: ModelSpec) -> None:
    found = weight_offload(spec, "bfloat16", weights_bytes(spec, "bfloat16"), 100, 3)
    assert found is not None
    assert found.layers == tuple(range(28))
    assert found.num_places == 4


@pytest.mark.parametrize(("gibibytes", "prefetch"), [(0, 1), (0.01, 1), (0.05, 1), (100, 27), (100, 50)])
def test_none_if_nothing_would_be_saved(gibibytes: float, prefetch: int, spec: ModelSpec) -> None:
    assert weight_offload(spec, "bfloat16", weights_bytes(spec, "bfloat16"), gibibytes, prefetch) is None
