from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.config.cpu_list import MAX_CPU, cpus_problem, format_cpus, parse_cpus


def test_ranges_and_numbers_are_read() -> None:
    assert parse_cpus("0-3,8") == (0, 1, 2, 3, 8)
    assert parse_cpus(" 8 , 2-3,3") == (2, 3, 8)
    assert parse_cpus("") == ()


@pytest.mark.parametrize("text", ["a", "3-1", "-1", "0-", "0:3", "0 1", "1.5", f"0-{MAX_CPU + 1}", "0-99999999999"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a list of cores such as 0-15"):
        parse_cpus(text)


@given(st.sets(st.integers(0, 70)))
def test_a_text_is_read_as_what_it_was_made_of(cpus: set[int]) -> None:
    assert parse_cpus(format_cpus(cpus)) == tuple(sorted(cpus))


def test_a_text_without_cores_is_a_problem() -> None:
    assert [cpus_problem(text) for text in ("0", ",", "a")] == [
        "",
        "names no core",
        "is not a list of cores such as 0-15 or 0-7,32-39",
    ]
