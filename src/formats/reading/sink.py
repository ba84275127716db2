"""Where readers put calls: the events of an answer, with indexes and ids."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping
from typing import Any

from ..events import CallArguments, CallBegin, CallEnd, Content, Event, Reasoning
from ..format import Ids
from .source import Source

JsonSchema = Mapping[str, Any]
_LETTERS_AND_DIGITS = string.ascii_letters + string.digits


def random_id() -> str:
    return "call_" + "".join(secrets.choice(_LETTERS_AND_DIGITS) for _ in range(24))


def nine_letters_id() -> str:
    return "".join(secrets.choice(_LETTERS_AND_DIGITS) for _ in range(9))


class Sink:
    """The events of one answer. White space is held until it is known whether a marker follows, which it belongs to."""

    __slots__ = (
        "_events",
        "_has_text",
        "_held",
        "_ids",
        "_index",
        "_kind",
        "_new_id",
        "_pieces",
        "_source",
        "_trims",
        "in_reasoning",
        "tools",
    )

    def __init__(
        self, source: Source, tools: Mapping[str, JsonSchema], ids: Ids, new_id: Callable[[], str] | None
    ) -> None:
        self.tools = tools
        self.in_reasoning = False
        self._events: list[Event] = []
        self._source = source
        self._new_id = new_id or (nine_letters_id if ids == "nine" else random_id)
        self._ids: set[str] = set()
        self._index = -1
        self._kind: type[Content] | type[Reasoning] = Content
        self._held: list[str] = []
        self._pieces: list[str] = []  # of arguments, not yet in an event
        self._trims = False  # newlines are skipped: a marker was before
        self._has_text = False

    @property
    def has_text(self) -> bool:
        """Whether there was text since the last marker."""
        return self._has_text

    @property
    def num_calls(self) -> int:
        return self._index + 1

    def text(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        self._kind = kind
        if self._trims:
            text = text.lstrip("\n")
            if not text:
                return
            self._trims = False
        visible = text.rstrip()
        if not visible:
            self._held.append(text)
            return
        if self._held:
            self._held.append(visible)
            self._events.append(kind("".join(self._held)))
            self._held.clear()
        else:
            self._events.append(kind(visible))
        self._has_text = True
        if len(visible) != len(text):
            self._held.append(text[len(visible) :])

    def marker(self) -> None:
        """A marker was read."""
        self._held.clear()
        self._trims = True
        self._has_text = False

    def flush(self) -> None:
        """No text follows."""
        if self._held and (self._has_text or not self._trims):
            self._events.append(self._kind("".join(self._held)))
        self._held.clear()

    def begin(self, name: str, id: str | None = None) -> None:
        """What the source kept is a call of this name. The id, if the model wrote one."""
        self._source.forget()
        self.marker()
        self.in_reasoning = False
        self._index += 1
        if id is None or id in self._ids:
            id = self._new_id()
        self._ids.add(id)
        self._events.append(CallBegin(self._index, id, name))

    def write(self, text: str) -> None:
        self._pieces.append(text)

    def end(self) -> None:
        self._join_pieces()
        self._events.append(CallEnd(self._index))

    def take(self) -> list[Event]:
        """The events since the last time."""
        self._join_pieces()
        events = self._events
        self._events = []
        return events

    def _join_pieces(self) -> None:
        if self._pieces:
            if text := "".join(self._pieces):
                self._events.append(CallArguments(self._index, text))
            self._pieces.clear()
