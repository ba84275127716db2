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


def test_unequal_scopes_have_unequal_roots_whatever_salts_clients_choose():
    """The salt "epoch 3 x" in epoch 0 had the root of the salt "x" in epoch 3."""
    assert CacheScope("x").root_text == "x"
    assert CacheScope("x", 3).root_text == "epoch 3 x"
    scopes = {CacheScope(salt, epoch, (), adapter) for salt in ("", "x") for epoch in (0, 3) for adapter in ("", "a1")}
    for _ in range(2):  # the roots as salts, and the roots of these
        salts = {scope.root_text for scope in scopes} | {"epoch", "epoch ", "adapter ", "adapter  epoch 0 x"}
        scopes |= {CacheScope(salt, epoch, (), adapter) for salt in salts for epoch in (0, 3) for adapter in ("", "a1")}
    assert len(scopes) > 200
    assert len({scope.root_text for scope in scopes}) == len(scopes)


def test_the_root_of_another_server_stays_as_it_is():
    """A prefill server must find blocks by the hashes of the server that reads them."""
    for scope in CacheScope("x"), CacheScope("x", 3), CacheScope("epoch 3 x"):
        assert CacheScope(scope.root_text, is_root=True).root_text == scope.root_text
    assert CacheScope("epoch 3 x", 2, is_root=True).root_text == "epoch 2 epoch 3 x"
    own = CacheScope("x", adapter="a1b2").root_text
    assert CacheScope(own, is_root=True).root_text != own  # the blocks are not computed with the adapter
