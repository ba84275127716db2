"""docs/guide/parity.md is the page of the last run, which had every family; a family of each kind is computed here."""

import json

import pytest
from tests.models.checkpoints import FAMILIES
from tools.parity.__main__ import PAGE, RECORD, page
from tools.parity.measure import compare


def test_the_page_has_every_family_as_it_was_measured_last():
    record = json.loads(RECORD.read_text("utf-8"))
    assert list(record) == list(FAMILIES)
    assert PAGE.read_text("utf-8") == page(record)


# Keys and values, windows, latents, experts, recurrent states.
@pytest.mark.parametrize("family", ["qwen3", "gemma3", "deepseek_v3", "qwen3_moe", "qwen3_next"])
@pytest.mark.slow
def test_a_family_of_each_kind_equals_transformers_now(family: str):
    found = compare(family)
    assert max(found.largest_change, found.largest_change_in_torch) < 1e-4
    assert found.equal_prompts == 20
    assert min(found.num_mixed_steps, found.num_preemptions, found.prefix_hits) > 0
    assert found.notices_mutation
    assert found.bfloat16.error < 1.1


def test_every_family_equals_transformers_and_notices_a_wrong_cache():
    for family, found in json.loads(RECORD.read_text("utf-8")).items():
        assert found["largest_change"] < 1e-4, family
        assert found["largest_change_in_torch"] < 1e-4, family
        assert found["equal_prompts"] == 20, family
        assert min(found["num_mixed_steps"], found["num_preemptions"]) > 0, family
        assert found["prefix_hits"] > 0, family
        assert found["notices_mutation"], family
        assert found["bfloat16"]["error"] < 1.1, family
        if (library := found.get("through_library")) is not None:
            assert library["largest_change"] < 1e-4, family
            assert library["equal_prompts"] == 20, family
