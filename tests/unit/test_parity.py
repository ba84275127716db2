"""docs/guide/parity.md is that of the last run, which had every family."""

import json

from tests.models.checkpoints import FAMILIES
from tools.parity.__main__ import PAGE, RECORD, page


def test_the_page_has_every_family_as_it_was_measured_last():
    record = json.loads(RECORD.read_text("utf-8"))
    assert list(record) == list(FAMILIES)
    assert PAGE.read_text("utf-8") == page(record)


def test_every_family_equals_transformers_and_notices_a_wrong_cache():
    for family, found in json.loads(RECORD.read_text("utf-8")).items():
        assert found["largest_change"] < 1e-4, family
        assert found["largest_change_in_torch"] < 1e-4, family
        assert found["equal_prompts"] == 20, family
        assert min(found["num_mixed_steps"], found["num_preemptions"]) > 0, family
        assert found["prefix_hits"] > 0, family
        assert found["notices_mutation"], family
        if (library := found.get("through_library")) is not None:
            assert library["largest_change"] < 1e-4, family
            assert library["equal_prompts"] == 20, family
