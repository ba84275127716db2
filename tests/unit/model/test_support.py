from __future__ import annotations

from typing import Any

import pytest
from tests.unit.config.plan.shapes import SHAPES, config_of

from stoker.model.read import read_config
from stoker.model.support import support_problem

QWEN = {**config_of("qwen3-0.6b"), "architectures": ["Qwen3ForCausalLM"]}


def test_a_model_whose_parts_are_all_known_runs() -> None:
    assert support_problem(read_config(QWEN)[0]) == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["NewForCausalLM"]}, "architecture `NewForCausalLM` is not supported; docs/"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "the quantisation method 'aqlm' is not supported"),
        ({"hidden_act": "xielu"}, "`hidden_act` 'xielu' is not supported; supported: "),
        ({"hidden_act": 3}, "`hidden_act` '3' is not supported"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "rope type 'spiral' is not supported; supported: default, "),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, "rope type ['yarn'] is not supported"),
    ],
)
def test_the_first_part_that_is_unknown_is_named(changes: dict[str, Any], reason: str) -> None:
    assert support_problem(read_config({**QWEN, **changes})[0]).startswith(reason)


@pytest.mark.parametrize("name", SHAPES)
def test_every_description_goes_through_json_and_back(name: str) -> None:
    spec, _ = read_config(SHAPES[name][0])
    assert type(spec).model_validate_json(spec.model_dump_json()) == spec
