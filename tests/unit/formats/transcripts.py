"""Answers of models as they write them, and what is in them: the golden tests of the declarations."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.formats.events import CallArguments, CallBegin, CallEnd, Content, Event, Reasoning
from stoker.formats.format import Format
from stoker.formats.parser import AnswerParser


@dataclass(frozen=True)
class Answer:
    """All of an answer: its texts, and each call as a name and the text of its arguments."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def read(
    format: Format, pieces: Sequence[str], tools: dict[str, Any] | None = None, starts_in_reasoning: bool = False
) -> list[Event]:
    numbers = itertools.count()
    parser = AnswerParser(
        format, tools=tools, starts_in_reasoning=starts_in_reasoning, new_id=lambda: f"call_{next(numbers)}"
    )
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish()


def joined(events: Sequence[Event]) -> Answer:
    """The events of an answer put together. Checks that their order is a legal one."""
    texts = {Reasoning: "", Content: ""}
    calls: list[tuple[str, str]] = []
    is_open = False
    for event in events:
        if isinstance(event, Reasoning | Content):
            assert not is_open
            assert event.text
            texts[type(event)] += event.text
        elif isinstance(event, CallBegin):
            assert not is_open
            assert event.index == len(calls)
            calls.append((event.name, ""))
            is_open = True
        else:
            assert is_open
            assert event.index == len(calls) - 1
            if isinstance(event, CallArguments):
                calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
            is_open = not isinstance(event, CallEnd)
    assert not is_open
    return Answer(texts[Reasoning], texts[Content], calls)


def with_values(answer: Answer) -> tuple[str, str, list[tuple[str, Any]]]:
    return answer.reasoning, answer.content, [(name, json.loads(arguments)) for name, arguments in answer.calls]
