from __future__ import annotations

import math

import pytest

from stoker.engine.api import CacheScope, InvalidRequest, SamplingParams


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


def test_the_scope_of_an_adapter_cannot_be_named_by_a_salt():
    plain, own = CacheScope("tenant", 2), CacheScope("tenant", 2, adapter="a1b2")
    assert plain.root_text == "epoch 2 tenant"
    assert own.root_text == "adapter a1b2 epoch 2 tenant"
    scopes = [plain, own, CacheScope(own.root_text), CacheScope(own.root_text, adapter="a1b2"), CacheScope("adapter")]
    assert len({scope.root_text for scope in scopes}) == len(scopes)
