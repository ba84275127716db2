"""Stop strings in answers with reasoning and calls: the same for every way to divide the text into pieces."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from stoker.engine.api import SamplingParams
from stoker.formats.events import CallArguments, Content, Event, Reasoning
from stoker.formats.parser import open_parser
from stoker.formats.registry import find
from stoker.server.answers.stopped_events import StoppedEvents

ANSWER = (
    "<think>\nplan step one\n\nstep two\n</think>\n\nFinal step.\n\nMore step. <tool_call>\n"
    '{"name": "step", "arguments": {"code": "a step"}}\n</tool_call>\n'
)


def read(pieces: Sequence[str], stops: Sequence[str], *, starts_in_reasoning: bool = False, include: bool = False):
    """(reasoning, content, arguments, stop string)."""
    parser = open_parser(find("hermes"), tools={"step": {}}, starts_in_reasoning=starts_in_reasoning)
    stopped = StoppedEvents(SamplingParams(stop=tuple(stops), include_stop_str_in_output=include))
    events: list[Event] = []
    stop = None
    for piece in pieces:
        found, stop = stopped.feed(parser, piece, may_stop=True)
        events += found
        if stop is not None:
            break
    else:
        found, stop = stopped.finish(parser.finish(), may_stop=True)
        events += found
    texts = {kind: "".join(event.text for event in events if isinstance(event, kind))
             for kind in (Reasoning, Content, CallArguments)}  # fmt: skip
    return texts[Reasoning], texts[Content], texts[CallArguments], stop


THOUGHT = "plan step one\n\nstep two"
WHOLE = "Final step.\n\nMore step."
ARGUMENTS = '{"code": "a step"}'


@pytest.mark.parametrize(
    ("stops", "content", "arguments", "stop"),
    [
        (["zzz"], WHOLE, ARGUMENTS, None),
        (["step"], "Final ", "", "step"),
        (["\n\n"], "Final step.", "", "\n\n"),  # the line breaks after the thinking are not of the answer
        (["\n"], "Final step.", "", "\n"),
        (["step.\n"], "Final ", "", "step.\n"),
        (["\nM"], "Final step.\n", "", "\nM"),
        (["a st"], WHOLE, '{"code": "', "a st"),
        (["think", "tool_call", "name", "plan"], WHOLE, ARGUMENTS, None),  # neither the markers nor the names
        (["More step. "], "Final step.\n\n", "", "More step. "),
        ([". \n"], WHOLE, ARGUMENTS, None),  # the white space before a call is not of the answer
        (["}"], WHOLE, '{"code": "a step"', "}"),
    ],
)
def test_they_end_the_content_and_the_arguments_but_not_the_reasoning(
    stops: list[str], content: str, arguments: str, stop: str | None
):
    """Before, a stop string in the thinking ended it, and with it the answer."""
    generator = random.Random(7)
    divisions = [[ANSWER], list(ANSWER)]
    for _ in range(20):
        cuts = sorted(generator.sample(range(len(ANSWER)), 9))
        divisions.append([ANSWER[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)])
    for pieces in divisions:
        assert read(pieces, stops) == (THOUGHT, content, arguments, stop), pieces


def test_white_space_that_a_marker_follows_is_forgotten():
    text = 'Now \n<tool_call>\n{"name": "step", "arguments": {}}\n</tool_call>\nx'
    assert read([text], [" \nx", "\n<"]) == ("", "Nowx", "{}", None)
    assert read(["a  \n b"], ["\n b"]) == ("", "a  ", "", "\n b")
    assert read(["\n b"], ["\n b"], include=True) == ("", "\n b", "", "\n b")
    assert read(["\nHi"], ["\nB"]) == ("", "\nHi", "", None)


def test_long_white_space_is_matched_once():
    text = "x" + " \n" * 20_000 + "y"  # a minute if it were matched again with each character
    assert read([text], ["\n\n", " \ny"])[1:] == (text[:-3], "", " \ny")
