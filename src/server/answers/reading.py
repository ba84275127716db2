"""Reading: how the answers of one request are read. AnswerReader: one sequence's deltas as events with their tokens.

Which tokens belong to the reasoning is decided by the parser's state before and after each of them: its markers do.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...engine.api import SamplingParams, TokenLogprobs
from ...formats.events import CallArguments, CallBegin, CallEnd, Content, Event, Reasoning
from ...formats.format import Format
from ...formats.parser import AnswerParser, Parser, open_parser
from ...text.generated_sequence import Delta
from .json_input import is_json
from .stopped_events import PlainParser, StoppedEvents
from .token_owners import TokenOwners

_Token = tuple[int, TokenLogprobs | None]  # with its log-probability, if the request asks for it
_Owned = tuple[Event, list[TokenLogprobs]]  # an event, and the log-probabilities of its tokens, if it is content


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """format: of the model; None leaves an answer as one text.

    tools: the schema of each tool's arguments, by name. reads_calls: False leaves calls in the text. must_call: the
    answer is calls and no text.
    shows_reasoning: False removes it, with its tokens. streams_reasoning: False collects it until it is complete.
    """

    format: Format | None = None
    tools: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    reads_calls: bool = False
    must_call: bool = False
    starts_in_reasoning: bool = False
    shows_reasoning: bool = True
    streams_reasoning: bool = True

    @property
    def has_reasoning(self) -> bool:
        """Whether reasoning is separated from the content."""
        return self.format is not None and self.format.reasoning is not None

    def reader(self, sampling: SamplingParams, new_id: Callable[[], str] = new_call_id) -> AnswerReader:
        return AnswerReader(self, sampling, new_id)


@dataclass(slots=True)
class AnswerDelta:
    """What one answer got since its last delta. Tokens of reasoning that is not shown are missing."""

    index: int  # of the sequence
    events: list[Event]
    event_logprobs: list[list[TokenLogprobs]]  # for each event those of its tokens, if it is content
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs | None] | None
    finish_reason: str | None
    stop_reason: int | str | None
    cuts_call: bool  # the answer has ended, and the arguments of its last call are not complete


class AnswerReader:
    """One answer, with its stop strings. num_reasoning_tokens: with the markers."""

    def __init__(self, reading: Reading, sampling: SamplingParams, new_id: Callable[[], str]) -> None:
        self.num_reasoning_tokens = 0
        self.num_calls = 0
        self._hides = not reading.shows_reasoning
        self._collects = reading.shows_reasoning and not reading.streams_reasoning
        self._collected: list[str] = []
        self._undecided: list[_Token] = []
        self._owners = TokenOwners()
        self._parser: Parser = PlainParser()
        self._is_plain = reading.format is None and not sampling.stop
        if reading.format is not None:
            self._parser = open_parser(
                reading.format,
                tools=reading.tools,
                starts_in_reasoning=reading.starts_in_reasoning,
                reads_calls=reading.reads_calls,
                must_call=reading.must_call,
                new_id=new_id,
            )
        self._stopped = StoppedEvents(sampling) if sampling.stop else None
        self._min_tokens = sampling.min_tokens
        self._num_tokens = 0
        self._open_call: int | None = None  # the call that has not ended
        self._arguments: list[str] | None = None  # of the last call, in pieces

    def read(self, delta: Delta) -> None:
        cuts_call = False
        if self._is_plain and delta.logprobs is None:
            events: list[Event] = [Content(delta.text)] if delta.text else []
            event_logprobs: list[list[TokenLogprobs]] = [[] for _ in events]
            token_ids, logprobs = delta.token_ids, None
        else:
            found, tokens, cuts_call = self._parse(delta)
            events, event_logprobs = self._shown(found, is_last=delta.finish_reason is not None)
            token_ids, logprobs = delta.token_ids, delta.logprobs
            if self._hides:
                token_ids = [token_id for token_id, _ in tokens]
                logprobs = logprobs and [logprob for _, logprob in tokens if logprob is not None]
        delta.answer = AnswerDelta(
            delta.index,
            events,
            event_logprobs,
            token_ids,
            logprobs,
            delta.prompt_logprobs,
            delta.finish_reason,
            delta.stop_reason,
            cuts_call,
        )

    def _parse(self, delta: Delta) -> tuple[list[_Owned], list[_Token], bool]:
        """The events; the tokens that do not belong to the reasoning; and whether a call is cut off.

        A token whose text may be the beginning of a marker is decided together with the next ones.
        """
        parser = self._parser
        found: list[_Owned] = []
        shown: list[_Token] = []
        logprobs: Sequence[TokenLogprobs | None] = delta.logprobs or [None] * len(delta.token_ids)
        tokens = list(zip(delta.token_ids, logprobs, strict=True))
        was_reasoning, stop = parser.in_reasoning, None
        for index in range(max(len(tokens), len(delta.pieces))):
            piece = delta.pieces[index] if index < len(delta.pieces) else ""
            if index < len(tokens):
                self._undecided.append(tokens[index])
                self._owners.add(tokens[index][1], piece)
                self._num_tokens += 1
            events, stop = self._feed(piece)
            is_reasoning = parser.in_reasoning
            if events or is_reasoning or was_reasoning:
                self._decide(shown, is_reasoning=is_reasoning or was_reasoning)
            found += self._owned(events)
            was_reasoning = is_reasoning
            if stop is not None:
                delta.end(index + 1, stop)
                break
        if delta.finish_reason is None:
            return found, shown, False
        is_cut = stop is not None or delta.finish_reason == "length"
        last = parser.finish(is_cut=True) if is_cut and isinstance(parser, AnswerParser) else parser.finish()
        if stop is not None:
            last = []  # what follows is not part of the answer
        elif self._stopped is not None:
            last, stop = self._stopped.finish(last, may_stop=self._num_tokens >= self._min_tokens)
            if stop is not None:
                delta.end(len(tokens), stop)
        found += self._owned(last)
        if self._open_call is not None:  # a stop string ended the answer within it
            found += self._owned([CallEnd(self._open_call)])
        self._decide(shown, is_reasoning=was_reasoning)
        return found, shown, self._arguments is not None and not is_json("".join(self._arguments))

    def _feed(self, piece: str) -> tuple[list[Event], str | None]:
        """The events of a piece, and the stop string that ends the answer within it."""
        if self._stopped is None:
            return self._parser.feed(piece), None
        return self._stopped.feed(self._parser, piece, may_stop=self._num_tokens >= self._min_tokens)

    def _owned(self, events: list[Event]) -> list[_Owned]:
        found = []
        for event in events:
            match event:
                case CallBegin(index=index):
                    self._open_call, self._arguments = index, []
                case CallArguments(text=text) if self._arguments is not None:
                    self._arguments.append(text)
                case CallEnd():
                    self._open_call = None
            found.append((event, self._owners.take(event)))
        return found

    def _decide(self, shown: list[_Token], *, is_reasoning: bool) -> None:
        if is_reasoning:
            self.num_reasoning_tokens += len(self._undecided)
        else:
            shown += self._undecided
        self._undecided.clear()

    def _shown(self, found: list[_Owned], *, is_last: bool) -> tuple[list[Event], list[list[TokenLogprobs]]]:
        """Neighbouring pieces of one kind as one; reasoning hidden or collected, as the request asks."""
        shown: list[Event] = []
        owned: list[list[TokenLogprobs]] = []
        for event, logprobs in found:
            if isinstance(event, Reasoning):
                if self._hides:
                    continue
                if self._collects:
                    self._collected.append(event.text)
                    continue
            elif self._collected:
                shown.append(self._take_collected())
                owned.append([])
            self.num_calls += isinstance(event, CallBegin)
            last = shown[-1] if shown else None
            if isinstance(event, Content | Reasoning) and type(last) is type(event):
                shown[-1] = type(event)(last.text + event.text)
                owned[-1] += logprobs
            else:
                shown.append(event)
                owned.append(logprobs)
        if is_last and self._collected:
            shown.append(self._take_collected())
            owned.append([])
        return shown, owned

    def _take_collected(self) -> Reasoning:
        whole = Reasoning("".join(self._collected))
        self._collected.clear()
        return whole
