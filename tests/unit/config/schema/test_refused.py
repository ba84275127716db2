from __future__ import annotations

import pytest
from pydantic import Field

from stoker.config.schema.options import options, sections
from stoker.config.schema.refused import REFUSED, with_refused
from stoker.config.schema.section import Section, about
from stoker.config.schema.types import Count


def test_every_row_is_a_refused_option_of_its_section_and_there_are_no_others() -> None:
    rows = [f"{section}.{row.name}" for section, section_rows in REFUSED.items() for row in section_rows]
    assert len(set(rows)) == len(rows)
    assert sorted(rows) == sorted(path for path, option in options().items() if option.status == "refused")


def test_a_row_becomes_an_option_that_accepts_its_default_and_what_means_the_same() -> None:
    option = options()["structured_outputs.disable_fallback"]
    assert (option.status, option.accepted) == ("refused", (False, True))
    assert option.reason == "there is one library of grammars, so none is tried after another"
    assert options()["parallel.tensor_parallel_size"].flags == (
        *("--tensor-parallel-size", "-tp", "--parallel.tensor-parallel-size"),
    )


def test_the_class_of_a_section_keeps_its_name_its_text_and_its_flags() -> None:
    speculative = sections()["speculative"]
    assert (speculative.__name__, speculative.__doc__) == ("SpeculativeConfig", "Draft tokens.")
    assert speculative.json_flags == ("--speculative-config", "-sc")


def test_a_row_that_was_left_in_the_table_of_an_implemented_option_is_an_error() -> None:
    """Else the row would replace the declared field, and the option would still be refused."""

    class Implemented(Section):
        max_prompt_adapters: Count = Field(1, description="Soft prompts.", json_schema_extra=about(reload="model"))

    with pytest.raises(AssertionError, match=r"lora: declared and still in the table .*\['max_prompt_adapters'\]"):
        with_refused("lora")(Implemented)
