"""Harmony: an answer is messages, each with a header that has its channel and, for a call, its recipient."""

from __future__ import annotations

import re

from ..events import Content, Reasoning
from .json_text import pass_value
from .schema_types import quoted
from .sink import Sink
from .source import Reading, Source, pass_until, skip_space, take

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
TOKENS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"

_HEADER_BEGINS = frozenset({START, CHANNEL})
_BODY_ENDS = frozenset({END, CALL, RETURN, START, CHANNEL})
_AFTER = frozenset(TOKENS)
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_NO_CALL = re.compile(r"assistant|user|all")


def read_harmony(
    source: Source, sink: Sink, *, reads_calls: bool, reads_reasoning: bool, starts_in_reasoning: bool
) -> Reading[None]:
    """Read a whole answer. The prompt has written <|start|>assistant, and perhaps a header."""
    thoughts = Reasoning if reads_reasoning else Content
    if starts_in_reasoning:
        sink.marker()
        sink.in_reasoning = reads_reasoning
        yield from pass_until(source, _BODY_ENDS, lambda text: sink.text(thoughts, text))
        yield from _take_end(source, sink)
    header: list[str] = []  # before the first marker, the header may go on: ` to=functions.f<|channel|>`
    begin = yield from pass_until(source, _AFTER, header.append)
    if text := "".join(header):
        if begin == CHANNEL and _RECIPIENT.search(text):
            yield from _read_message(source, sink, reads_calls, thoughts, text)
        elif not (source.is_cut and _RECIPIENT.match(text.lstrip())):
            sink.text(Content, text)
    while True:
        begin = yield from pass_until(source, _AFTER, lambda text: sink.text(Content, text))
        if not begin:
            break
        if begin in _HEADER_BEGINS:
            yield from _read_message(source, sink, reads_calls, thoughts, "")
        else:
            source.at += len(begin)
            sink.marker()
    sink.flush()


def _read_message(
    source: Source, sink: Sink, reads_calls: bool, thoughts: type[Reasoning] | type[Content], before: str
) -> Reading[None]:
    pieces = [before]
    source.keep()
    while marker := (yield from pass_until(source, _AFTER, pieces.append)):
        if marker == MESSAGE or marker in (END, CALL, RETURN):
            break
        pieces.append(marker)
        source.at += len(marker)
    if marker != MESSAGE:  # not a header
        source.forget()
        if marker or not source.is_cut:
            sink.text(Content, "".join(pieces))
        return
    header = "".join(pieces)
    source.at += len(MESSAGE)
    recipient = _RECIPIENT.search(header)
    channel = _CHANNEL_NAME.search(header)
    if recipient and not _NO_CALL.fullmatch(recipient[1]):
        if not reads_calls:
            sink.text(Content, before + source.kept())
            yield from pass_until(source, _BODY_ENDS, lambda text: sink.text(Content, text))
            return
        sink.begin(recipient[1])
        if (yield from skip_space(source)) == "{":
            yield from pass_value(source, sink.write, "<|")
            sink.end()
            # what follows the object is not part of it
            yield from pass_until(source, _BODY_ENDS, lambda text: sink.text(Content, text))
        else:
            yield from _pass_text(source, sink)
            sink.end()
    else:
        source.forget()
        sink.marker()
        kind = thoughts if channel and channel[1] == "analysis" else Content
        sink.in_reasoning = kind is Reasoning
        yield from pass_until(source, _BODY_ENDS, lambda text: sink.text(kind, text))
    yield from _take_end(source, sink)


def _pass_text(source: Source, sink: Sink) -> Reading[None]:
    """Pass on arguments that are not an object, as a string of JSON: an input of another form. Nothing is `{}`."""
    is_empty = True

    def write(text: str) -> None:
        nonlocal is_empty
        sink.write(('"' if is_empty else "") + quoted(text)[1:-1])
        is_empty = False

    end = yield from pass_until(source, _BODY_ENDS, write)
    if end:
        sink.write("{}" if is_empty else '"')


def _take_end(source: Source, sink: Sink) -> Reading[None]:
    for marker in (END, CALL, RETURN):
        if (yield from take(source, marker)):
            break
    sink.marker()
    sink.in_reasoning = False
