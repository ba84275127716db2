"""What a parser reads in an answer, in the order in which the model wrote it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the reasoning, without its markers."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer that the user reads."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A tool call: its name is known, its arguments follow."""

    index: int  # 0 is the first call of the answer
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """No more arguments follow a CallBegin. Every CallBegin has one, also when the answer ended within the call."""

    index: int


Event = Reasoning | Content | CallBegin | CallArguments | CallEnd
