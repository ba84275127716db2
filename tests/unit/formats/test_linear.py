"""The work of reading grows with the length of an answer, also of one that is made to be slow. Counted, not timed."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests.unit.formats.golden import TOOLS

from stoker.formats.format import BareKeys, Format, Pythonic, XmlCall
from stoker.formats.parser import AnswerParser
from stoker.formats.reading.source import Source
from stoker.formats.registry import FORMATS

from ...slow_cases import slow_but

LENGTH = 150


def hostile_answers(format: Format) -> list[tuple[str, str]]:
    """What an answer begins with, and what is repeated after it."""
    markers = sorted(marker for marker in format.special_tokens if len(marker) > 1)
    ends = [marker[:-1] for marker in markers]
    openings = [""]
    inside: list[str] = []
    if format.calls:
        begin = format.calls.begin or format.calls.bare
        section = format.calls.section[0] if format.calls.section else ""
        openings += [
            begin,
            section,
            section + begin,
            section + begin + '{"name": "get_weather", "arguments": {"city": "',
        ]
        if isinstance(style := format.calls.style, XmlCall):
            openings.append(section + begin + style.name_begin + "get_weather" + style.name_end + style.key_begin)
            openings[-1] += "city" + style.key_end + style.tag_end * style.string_attribute + style.value_begin
            inside = [style.value_end, f"{style.key_begin}days{style.key_end}", f"{style.value_end} <"]
        elif isinstance(style, Pythonic):
            openings.append(section + begin + "[" * style.is_list + "get_weather(city='")
            inside = ["'", "',", "' "]
        elif isinstance(style, BareKeys):
            openings.append(f"{section}{begin}{style.prefix}get_weather{{city:{style.quote}")
            inside = [style.quote, f"{style.quote}, a", f"{style.quote} "]
    single = ["<", "{", "[", "\\", " ", '"', '" ', '",', '{"name": "', "`", "\n"]
    return [(opening, each) for opening in dict.fromkeys(openings) for each in [*single, *markers, *ends, *inside]]


def work(format: Format, text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Calls of functions while the text is read by character, and characters that are carried from piece to piece."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    push = Source.push

    def counted_push(self: Source, piece: str) -> None:
        nonlocal count
        count += len(self.text) - self.at
        push(self, piece)

    monkeypatch.setattr(Source, "push", counted_push)
    parser = AnswerParser(format, tools=TOOLS, starts_in_reasoning=False, new_id=lambda: "call")
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        for character in text:
            parser.feed(character)
        parser.finish()
    finally:
        sys.setprofile(before)
        monkeypatch.undo()
    return count


@pytest.mark.parametrize("name", slow_but(sorted(FORMATS), "qwen_xml"))
def test_twice_the_text_is_twice_the_work(name: str, monkeypatch: pytest.MonkeyPatch):
    format = FORMATS[name]
    for opening, repeated in hostile_answers(format):
        num = LENGTH // len(repeated) + 1
        short, long = (work(format, opening + repeated * num * times, monkeypatch) for times in (2, 4))
        assert long < 2.5 * short, (opening, repeated, short, long)
