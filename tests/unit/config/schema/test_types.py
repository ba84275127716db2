from __future__ import annotations

import pytest

from stoker.config.schema.options import options
from stoker.config.schema.types import (
    format_about,
    format_duration,
    format_size,
    parse_duration,
    parse_human_int,
    parse_number,
    parse_size,
    parse_whole,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1k", 1000),
        ("1K", 1024),
        ("25.6k", 25600),
        ("2M", 2097152),
        ("2m", 2000000),
        ("1g", 10**9),
        ("7", 7),
        (64.0, 64),
    ],
)
def test_small_letters_are_decimal_and_capitals_binary(text: str, number: int) -> None:
    assert parse_human_int(text) == number


def test_a_fraction_of_a_binary_unit_is_refused_with_the_decimal_form() -> None:
    with pytest.raises(ValueError, match=r"write 1\.5k"):
        parse_human_int("1.5K")


@pytest.mark.parametrize("value", ["", "k", "1kk", "-1", "1.5", "0.0001k", "1e3", "٣", "9" * 50, True, None, 1.5, [1]])
def test_an_invalid_human_int_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"not a|not numbers"):
        parse_human_int(value)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("20GiB", 20 * 1024**3),
        ("1.5GiB", 1610612736),
        ("0.3GiB", 322122547),  # part of a byte is left out
        ("4GB", 4 * 10**9),
        ("512 MiB", 512 * 1024**2),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("4G", 4 * 1024**3),
        ("17B", 17),
        (4096, 4096),
        ("1152921504606846975B", 2**60 - 1),
    ],
)
def test_sizes_take_units(text: str, number: int) -> None:
    assert parse_size(text) == number


@pytest.mark.parametrize("value", ["4gib", "GiB", "0.3B", "4 G B", True, ""])
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse_size(value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("500ms", 0.5),
        ("2m", 120),
        ("1h", 3600),
        ("1m30s", 90),
        ("1d", 86400),
        (7, 7),
        ("7", 7),
        (0.5, 0.5),
    ],
)
def test_durations_take_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("value", ["30 s", "s", "1x", True, None, "1s2", "-1s"])
def test_an_invalid_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"not a|not durations"):
        parse_duration(value)


def test_true_is_not_a_number() -> None:
    for parse in (parse_whole, parse_number):
        with pytest.raises(ValueError, match="not numbers"):
            parse(True)


@pytest.mark.parametrize("value", ["0x10", "1_000", "1e999999", "nan", "", [], None])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not a whole number"):
        parse_whole(value)


def test_sizes_and_durations_are_shown_as_people_write_them() -> None:
    assert [format_size(number) for number in (4 << 30, 1000, 1536 << 10, 1 << 10)] == [
        "4GiB",
        "1000",
        "1536KiB",
        "1KiB",
    ]
    assert [format_duration(seconds) for seconds in (30.0, 0.5, 90.0, 0.0001)] == ["30s", "500ms", "90s", "0.0001s"]
    assert format_about(4831838208) == "4.50 GiB"
    assert [format_about(size) for size in (12, 9_444_096, 67_108_864)] == ["12 B", "9.0 MiB", "64 MiB"]


def test_another_spelling_of_a_choice_is_the_choice() -> None:
    """`half` was once replaced in two places, and compared as it was written in others."""
    dtype, kv_dtype = options()["model.dtype"], options()["cache.kv_cache_dtype"]
    assert [dtype.adapter.validate_python(word) for word in ("half", "float", "auto")] == ["float16", "float32", "auto"]
    assert kv_dtype.adapter.validate_python("fp8_e4m3") == "fp8"
    assert "half" in dtype.choices
