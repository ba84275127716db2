"""The golden answer of each declaration, whole and in pieces."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from tests.unit.formats.golden import CALLS, GOLDEN, NO_CONTENT, TOOLS
from tests.unit.formats.transcripts import joined, read, with_values

from stoker.formats.registry import FORMATS


def test_every_declaration_has_a_golden_answer():
    assert GOLDEN.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_a_golden_answer_is_read_whole_and_character_by_character(name: str):
    format, text = FORMATS[name], GOLDEN[name]
    whole = joined(read(format, [text], TOOLS))
    assert with_values(whole) == (
        "Let me look." if format.reasoning else "",
        "" if name in NO_CONTENT else "One moment.",
        CALLS,
    )
    assert joined(read(format, list(text), TOOLS)) == whole
    assert joined(read(format, [text[at : at + 7] for at in range(0, len(text), 7)], TOOLS)) == whole


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_a_golden_answer_is_the_same_at_every_split(name: str):
    format, text = FORMATS[name], GOLDEN[name]
    whole = joined(read(format, [text], TOOLS))
    for place in range(len(text)):
        assert joined(read(format, [text[:place], text[place:]], TOOLS)) == whole


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_that_ends_anywhere_is_the_same_in_pieces(name: str):
    format = FORMATS[name]
    for end in range(len(GOLDEN[name])):
        text = GOLDEN[name][:end]
        assert joined(read(format, list(text), TOOLS)) == joined(read(format, [text], TOOLS))


def scrambled(text: str, random: Random) -> str:
    """Pieces of an answer in any order: what no model should write."""
    cuts = sorted(random.choices(range(len(text)), k=8))
    pieces = [text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)])]
    return "".join(random.choices(pieces, k=8))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_what_no_model_should_write_is_the_same_in_pieces(name: str):
    format, random = FORMATS[name], Random(3)
    for _ in range(200):
        text = scrambled(GOLDEN[name], random)
        inside = random.random() < 0.3
        whole = joined(read(format, [text], TOOLS, inside))
        assert joined(read(format, list(text), TOOLS, inside)) == whole, text
        cuts = sorted(random.choices(range(len(text) + 1), k=5))
        pieces = [text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)])]
        assert joined(read(format, pieces, TOOLS, inside)) == whole, text
