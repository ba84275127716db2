"""Takes the calls that readers find: the events of an answer, with indexes and ids."""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..events import CallArguments, CallBegin, CallEnd, Content, Event, Reasoning
from ..format import Ids
from .prose import Prose
from .source import Source

JsonSchema = Mapping[str, Any]
_LETTERS_AND_DIGITS = string.ascii_letters + string.digits
_NINE = re.compile(r"[a-zA-Z0-9]{9}")


def random_id() -> str:
    return "call_" + "".join(secrets.choice(_LETTERS_AND_DIGITS) for _ in range(24))


def nine_letters_id() -> str:
    return "".join(secrets.choice(_LETTERS_AND_DIGITS) for _ in range(9))


class Sink:
    """The events of one answer. White space is held until it is known whether a marker follows, which it belongs to."""

    __slots__ = (
        "_draft",
        "_events",
        "_has_text",
        "_held",
        "_ids",
        "_index",
        "_kind",
        "_new_id",
        "_pieces",
        "_source",
        "_style",
        "_trims",
        "in_reasoning",
        "prose",
        "tools",
    )

    def __init__(
        self, source: Source, tools: Mapping[str, JsonSchema], ids: Ids, new_id: Callable[[], str] | None
    ) -> None:
        self.tools = tools
        self.in_reasoning = False
        self.prose = Prose()
        self._draft: tuple[int, int, list[str], set[str]] | None = None  # what was before it
        self._events: list[Event] = []
        self._source = source
        self._style = ids
        self._new_id = nine_letters_id if ids == "nine" else (new_id or random_id)  # a template may check their form
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
    def held_content(self) -> Sequence[str]:
        """White space of the content that is held."""
        return self._held if self._kind is Content and self._draft is None else ()

    @property
    def num_calls(self) -> int:
        return self._index + 1

    def text(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        self._kind = kind
        self.prose.add(text)
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
        self.prose.reset()

    def flush(self) -> None:
        """Emit what is held: no text follows."""
        if self._held and (self._has_text or not self._trims):
            self._events.append(self._kind("".join(self._held)))
        self._held.clear()

    def begin(self, name: str, id: str | None = None) -> None:
        """What the source kept is a call of this name. The id, if the model wrote one."""
        self._source.forget()
        self.marker()
        self.in_reasoning = False
        self._index += 1
        if id is None or id in self._ids or (self._style == "nine" and not _NINE.fullmatch(id)):
            id = self._new_id()
        self._ids.add(id)
        self._events.append(CallBegin(self._index, id, name))

    def write(self, text: str) -> None:
        self._pieces.append(text)

    def end(self) -> None:
        self._join_pieces()
        self._events.append(CallEnd(self._index))

    def take(self) -> list[Event]:
        """The events since the last time, without the events of a draft."""
        self._join_pieces()
        end = len(self._events) if self._draft is None else self._draft[0]
        events = self._events[:end]
        self._events = self._events[end:]
        if self._draft is not None:
            self._draft = (0, *self._draft[1:])
        return events

    @property
    def is_draft(self) -> bool:
        return self._draft is not None

    def begin_draft(self) -> None:
        """The events from here on may be a part of the reasoning."""
        self._draft = (len(self._events), self._index, list(self._held), set(self._ids))

    def release_draft(self) -> None:
        """Keep the events of the draft: they are what they seem to be."""
        self._draft = None

    def cancel_draft(self) -> None:
        """Take the events of the draft back: the text is read in another way."""
        assert self._draft is not None
        self._join_pieces()
        num_events, self._index, self._held, self._ids = self._draft
        del self._events[num_events:]
        self._draft = None
        self._trims = self._has_text = False
        self.prose.reset()

    def drafts_complete_calls(self) -> bool:
        """Whether the last call of the draft has complete arguments."""
        self._join_pieces()
        last = [each.text for each in self._events if isinstance(each, CallArguments) and each.index == self._index]
        try:
            json.loads("".join(last))
        except (ValueError, RecursionError):
            return False
        return True

    def _join_pieces(self) -> None:
        if self._pieces:
            if text := "".join(self._pieces):
                self._events.append(CallArguments(self._index, text))
            self._pieces.clear()
