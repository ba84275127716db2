from __future__ import annotations

import math

import pytest

from stoker.engine.api import InvalidRequest, SamplingParams


@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_of_sampling_is_finite(name: str, value: float):
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(**{name: value}).validate()
    assert refused.value.param == name


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bias_is_finite(value: float):
    """Before, such a bias was accepted, and token 0 was sampled."""
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(logit_bias={5: 1.0, 7: value}).validate()
    assert refused.value.param == "logit_bias"
