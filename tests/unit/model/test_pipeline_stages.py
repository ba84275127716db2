from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from tests.unit.config.plan.shapes import spec_of

from stoker.model.pipeline_stages import of_stages, pipeline_problem, stage_parameters, stages
from stoker.model.sizes import count_parameters
from stoker.model.spec import ModelSpec


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
    assert pipeline_problem(spec, 28) is None
    assert pipeline_problem(spec, 29) == "28 layers cannot be 29 stages"
    reader = spec.layers[-1].mixer.model_copy(update={"keys_of": 0})
    layers = (*spec.layers[:-1], spec.layers[-1].model_copy(update={"mixer": reader}))
    shared = spec.model_copy(update={"layers": layers})
    assert pipeline_problem(shared, 2) == "some layers read the keys and values of others"
    assert pipeline_problem(shared, 1) is None
