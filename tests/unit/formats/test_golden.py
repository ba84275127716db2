"""The golden answer of each declaration, whole and in pieces."""

from __future__ import annotations

import itertools
import json
from random import Random

import pytest
from tests.unit.formats.golden import CALLS, GOLDEN, NO_CONTENT, TOOLS
from tests.unit.formats.transcripts import joined, read, with_values

from stoker.formats.events import CallArguments, CallBegin, CallEnd
from stoker.formats.parser import AnswerParser
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


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("must_call", [False, True], ids=["auto", "required"])
@pytest.mark.quick_cases(12)
def test_an_answer_that_is_cut_anywhere_shows_no_markup(name: str, must_call: bool):
    """Before, the beginning of a call without its name was content: `<tool_call>\\n{"name": "get_we`."""
    format = FORMATS[name]
    text = GOLDEN[name]
    whole = joined(read(format, [text], TOOLS))
    for end in range(len(text)):
        parser = AnswerParser(format, tools=TOOLS, starts_in_reasoning=False, must_call=must_call)
        cut = joined(parser.feed(text[:end]) + parser.finish(is_cut=True))
        for shown, all_of_it in ((cut.content, whole.content), (cut.reasoning, whole.reasoning)):
            if not must_call and shown and shown[-1] == text[end - 1]:  # one character is not a marker yet
                shown = shown[:-1]
            assert all_of_it.startswith(shown.rstrip()), text[:end]
        assert [each for each, _ in cut.calls] == [each for each, _ in whole.calls][: len(cut.calls)]


def with_mistakes(text: str, random: Random) -> str:
    """The answer with one to three characters that are missing, wrong or too many."""
    characters = list(text)
    for _ in range(random.randint(1, 3)):
        place = random.randrange(len(characters))
        characters[place : place + random.randrange(2)] = random.choice(["", *"\"'{}[],:()\\\n\t<> aTN1."])
    return "".join(characters)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.quick_cases(14)
def test_arguments_of_calls_that_have_ended_are_json_whatever_the_model_wrote(name: str):
    format, random = FORMATS[name], Random(5)
    for _ in range(20):
        text = with_mistakes(GOLDEN[name], random)
        parser = AnswerParser(format, tools=TOOLS, starts_in_reasoning=False)
        before_the_end = parser.feed(text)
        is_open = before_the_end and isinstance(before_the_end[-1], CallBegin | CallArguments)
        ended = joined([*before_the_end, *([CallEnd(before_the_end[-1].index)] if is_open else [])])
        for _, arguments in ended.calls[:-1] if is_open else ended.calls:
            json.loads(arguments)
        assert joined(read(format, list(text), TOOLS)) == joined(read(format, [text], TOOLS)), text
