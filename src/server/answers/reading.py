"""Reading: how the answers of one request are read. AnswerReader: one sequence's deltas as events with their tokens.

Which tokens belong to the reasoning is decided by the parser's state before and after each of them: its markers do.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...engine.api import TokenLogprobs
from ...formats.events import CallBegin, Content, Event, Reasoning
from ...formats.format import Format
from ...formats.parser import Parser, open_parser
from ..text.generated_sequence import Delta

_Token = tuple[int, TokenLogprobs | None]  # with its log-probability, if the request asks for it


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """format: of the model; None leaves an answer as one text.

    tools: the schema of each tool's arguments, by name. reads_calls: False leaves calls in the text.
    shows_reasoning: False removes it, with its tokens. streams_reasoning: False collects it until it is complete.
    """

    format: Format | None = None
    tools: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    reads_calls: bool = False
    starts_in_reasoning: bool = False
    shows_reasoning: bool = True
    streams_reasoning: bool = True

    @property
    def has_reasoning(self) -> bool:
        """Whether reasoning is separated from the content."""
        return self.format is not None and self.format.reasoning is not None

    def reader(self, new_id: Callable[[], str] = new_call_id) -> AnswerReader:
        return AnswerReader(self, new_id)


@dataclass(slots=True)
class AnswerDelta:
    """What one answer got since its last delta. Tokens of reasoning that is not shown are missing."""

    index: int  # of the sequence
    events: list[Event]
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    answer_logprobs: list[TokenLogprobs]  # of those tokens that do not belong to the reasoning
    prompt_logprobs: list[TokenLogprobs | None] | None
    finish_reason: str | None
    stop_reason: int | str | None


class AnswerReader:
    """One answer. num_reasoning_tokens: with the markers."""

    def __init__(self, reading: Reading, new_id: Callable[[], str]) -> None:
        self.num_reasoning_tokens = 0
        self.num_calls = 0
        self._hides = not reading.shows_reasoning
        self._collects = reading.shows_reasoning and not reading.streams_reasoning
        self._collected: list[str] = []
        self._undecided: list[_Token] = []
        self._parser: Parser | None = None
        if reading.format is not None:
            self._parser = open_parser(
                reading.format,
                tools=reading.tools,
                starts_in_reasoning=reading.starts_in_reasoning,
                reads_calls=reading.reads_calls,
                new_id=new_id,
            )

    def read(self, delta: Delta) -> AnswerDelta:
        token_ids, logprobs, outside = delta.token_ids, delta.logprobs, delta.logprobs or []
        if self._parser is None:
            events: list[Event] = [Content(delta.text)] if delta.text else []
        else:
            events, tokens = self._parse(self._parser, delta)
            if logprobs is not None:
                outside = [logprob for _, logprob in tokens if logprob is not None]
            if self._hides:
                token_ids = [token_id for token_id, _ in tokens]
                logprobs = None if logprobs is None else outside
        return AnswerDelta(
            delta.index,
            events,
            token_ids,
            logprobs,
            outside,
            delta.prompt_logprobs,
            delta.finish_reason,
            delta.stop_reason,
        )

    def _parse(self, parser: Parser, delta: Delta) -> tuple[list[Event], list[_Token]]:
        """The events, and the tokens that do not belong to the reasoning.

        A token whose text may be the beginning of a marker is decided together with the next ones.
        """
        found: list[Event] = []
        shown: list[_Token] = []
        logprobs: Sequence[TokenLogprobs | None] = delta.logprobs or [None] * len(delta.token_ids)
        tokens = list(zip(delta.token_ids, logprobs, strict=True))
        was_reasoning = parser.in_reasoning
        for index in range(max(len(tokens), len(delta.pieces))):
            events = parser.feed(delta.pieces[index]) if index < len(delta.pieces) else []
            is_reasoning = parser.in_reasoning
            if index < len(tokens):
                self._undecided.append(tokens[index])
            if events or is_reasoning or was_reasoning:
                self._decide(shown, is_reasoning=is_reasoning or was_reasoning)
            found += events
            was_reasoning = is_reasoning
        if delta.finish_reason is not None:
            found += parser.finish()
            self._decide(shown, is_reasoning=was_reasoning)
        return self._shown(found, is_last=delta.finish_reason is not None), shown

    def _decide(self, shown: list[_Token], *, is_reasoning: bool) -> None:
        if is_reasoning:
            self.num_reasoning_tokens += len(self._undecided)
        else:
            shown += self._undecided
        self._undecided.clear()

    def _shown(self, found: list[Event], *, is_last: bool) -> list[Event]:
        """Neighbouring pieces of one kind as one; reasoning hidden or collected, as the request asks."""
        shown: list[Event] = []
        for event in found:
            if isinstance(event, Reasoning):
                if self._hides:
                    continue
                if self._collects:
                    self._collected.append(event.text)
                    continue
            elif self._collected:
                shown.append(self._take_collected())
            self.num_calls += isinstance(event, CallBegin)
            last = shown[-1] if shown else None
            if isinstance(event, Content | Reasoning) and type(last) is type(event):
                shown[-1] = type(event)(last.text + event.text)
            else:
                shown.append(event)
        if is_last and self._collected:
            shown.append(self._take_collected())
        return shown

    def _take_collected(self) -> Reasoning:
        whole = Reasoning("".join(self._collected))
        self._collected.clear()
        return whole
