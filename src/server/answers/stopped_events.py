"""Stop strings in an answer that is read: they end its content, and the arguments of its calls.

They do not apply to the reasoning, to markers, or to the names of tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...engine.api import SamplingParams
from ...formats.events import CallArguments, Content, Event
from ...formats.parser import Parser
from ...text.stop_strings import StopStrings

_Found = tuple[list[Event], str | None]  # the events up to the end, and the stop string that is the end


class StoppedEvents:
    def __init__(self, sampling: SamplingParams) -> None:
        self._stops = StopStrings(sampling.stop, is_shown=sampling.include_stop_str_in_output)
        self._last: Content | CallArguments | None = None  # the text of it may go on
        # White space after the content is matched when it arrives, and becomes content when text follows.
        self._before = self._stops.state
        self._num_ahead = 0  # pieces of it that were matched
        self._num_ahead_chars = 0
        self._ahead: list[str] = []  # what of it is decided

    def feed(self, parser: Parser, text: str, *, may_stop: bool) -> _Found:
        """One character after the other, so that white space is matched before a marker that follows it. Most pieces
        are a word, in which no marker begins, and are read at once.
        """
        found: list[Event] = []
        for piece in [text] if text.strip().isalnum() else text:
            stop = self._add(parser.feed(piece), found, may_stop)
            held: Sequence[str] = getattr(parser, "held", ())  # a parser of a user need not have it
            if stop is None:
                stop = self._look_ahead(held, found, may_stop)
            if stop is not None:
                return found, stop
        return found, None

    def finish(self, events: Iterable[Event], *, may_stop: bool) -> _Found:
        """events: the last ones of the parser."""
        found: list[Event] = []
        stop = self._add(events, found, may_stop)
        if stop is None:
            self._flush(found)
        return found, stop

    def _add(self, events: Iterable[Event], found: list[Event], may_stop: bool) -> str | None:
        for event in events:
            if not isinstance(event, Content | CallArguments):
                self._forget_ahead()
                self._flush(found)
                found.append(event)
                continue
            if type(event) is not type(self._last):
                self._flush(found)
            text, self._last = event.text, event
            decided = "".join(self._ahead)
            more, stop = self._stops.feed(text[self._num_ahead_chars :], may_stop=may_stop)
            self._num_ahead = self._num_ahead_chars = 0
            self._ahead.clear()
            if decided or more:
                found.append(replace(event, text=decided + more))
            if stop is not None:
                return stop
        return None

    def _look_ahead(self, held: Sequence[str], found: list[Event], may_stop: bool) -> str | None:
        """Match white space that is held. Without this a line break would end an answer one token too late."""
        if len(held) < self._num_ahead:  # a marker followed
            self._forget_ahead()
        if len(held) == self._num_ahead:
            return None
        if not self._num_ahead:
            if not isinstance(self._last, Content):
                self._flush(found)
                self._last = Content("")
            self._before = self._stops.state
        text = "".join(held[self._num_ahead :])
        self._num_ahead = len(held)
        self._num_ahead_chars += len(text)
        decided, stop = self._stops.feed(text, may_stop=may_stop)
        self._ahead.append(decided)
        if stop is not None and (whole := "".join(self._ahead)):
            found.append(Content(whole))
        return stop

    def _forget_ahead(self) -> None:
        if self._num_ahead:
            self._stops.state = self._before
            self._num_ahead = self._num_ahead_chars = 0
            self._ahead.clear()

    def _flush(self, found: list[Event]) -> None:
        held = self._stops.flush()
        if held and self._last is not None:
            found.append(replace(self._last, text=held))
        self._last = None


class PlainParser:
    """An answer whose format is not known: all of it is content."""

    in_reasoning = False

    def feed(self, text: str) -> list[Event]:
        return [Content(text)] if text else []

    def finish(self) -> list[Event]:
        return []
