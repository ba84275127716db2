"""The text of an answer as it arrives, and the steps that readers are made of.

A reader is a generator: it takes text from the source and yields (nothing) when it needs more. When it resumes, there
is more text, or the source is closed. Text is looked at once: what a reader has taken is not scanned again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator
from functools import cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]

_SPACE = re.compile(r"\s*")


class Source:
    """Text that was not read yet."""

    __slots__ = ("_mark", "_taken", "at", "is_closed", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.is_closed = False
        self._mark = -1  # where `keep` was called, -1 while nothing is kept
        self._taken: list[str] = []  # since then, from texts before this one

    def push(self, text: str) -> None:
        if self._mark >= 0:
            self._taken.append(self.text[self._mark : self.at])
            self._mark = 0
        self.text = self.text[self.at :] + text if self.at < len(self.text) else text
        self.at = 0

    def keep(self) -> None:
        """From here on, remember what is taken: it may turn out not to be a call."""
        self._mark = self.at
        self._taken.clear()

    def kept(self) -> str:
        """What was taken since `keep`, and stop remembering. Empty while nothing is kept."""
        if self._mark < 0:
            return ""
        text = "".join(self._taken) + self.text[self._mark : self.at]
        self.forget()
        return text

    def put_back(self) -> None:
        """What was taken since `keep` is text that was not read, and stop remembering."""
        taken = self.kept()
        self.text = taken + self.text[self.at :]
        self.at = 0

    def forget(self) -> None:
        """Stop remembering."""
        self._mark = -1
        self._taken.clear()


def peek(source: Source) -> Reading[str]:
    """The next character, not taken; empty at the end of the answer."""
    while source.at >= len(source.text):
        if source.is_closed:
            return ""
        yield
    return source.text[source.at]


def skip_space(source: Source) -> Reading[str]:
    """Take white space. Returns the next character, not taken."""
    following = source.text[source.at : source.at + 1]
    if following and not following.isspace():  # mostly: no search then
        return following
    while True:
        match = _SPACE.match(source.text, source.at)
        assert match
        source.at = match.end()
        if source.at < len(source.text):
            return source.text[source.at]
        if source.is_closed:
            return ""
        yield


def take(source: Source, literal: str) -> Reading[bool]:
    """Take the literal, if it is next. Takes nothing at all when it is not."""
    while True:
        if source.text.startswith(literal, source.at):
            source.at += len(literal)
            return True
        if source.is_closed or not literal.startswith(source.text[source.at : source.at + len(literal)]):
            return False
        yield


@cache
def markers_pattern(markers: frozenset[str]) -> re.Pattern[str]:
    """Finds the leftmost of the markers, or at the end of the text the beginning of one."""
    whole = [re.escape(marker) for marker in sorted(markers, key=len, reverse=True)]
    return re.compile("|".join([*whole, *map(_beginning, sorted(markers))]) or r"(?!)")


def _beginning(marker: str) -> str:
    """A pattern of every proper beginning of a marker, at the end of the text."""
    pattern = ""
    for character in reversed(marker[1:-1]):
        pattern = f"(?:{re.escape(character)}{pattern})?"
    return f"{re.escape(marker[0])}{pattern}\\Z"


def pass_until(source: Source, markers: Collection[str], write: Callable[[str], object]) -> Reading[str]:
    """Pass on the text before the next marker. Returns the marker, not taken; empty if the answer ends first."""
    pattern = markers_pattern(frozenset(markers))
    while True:
        match = pattern.search(source.text, source.at)
        end = match.start() if match else len(source.text)
        if end > source.at:
            write(source.text[source.at : end])
            source.at = end
        if match and match.group() in markers:
            return match.group()
        if source.is_closed:
            if source.at < len(source.text):
                write(source.text[source.at :])
                source.at = len(source.text)
            return ""
        yield


MAX_NAME = 256  # characters of the name of a tool, with white space after it
_NAME = re.compile(r"[^\s<>{}()\[\]\"'`]{0,256}\s{0,256}")


def take_name(source: Source, ends: Collection[str]) -> Reading[str | None]:
    """The name of a tool before one of the markers, which is not taken. None if there is none: what may be part of a
    name is taken then."""
    pattern = markers_pattern(frozenset(ends))
    name = ""
    while True:
        match = pattern.search(source.text, source.at, source.at + MAX_NAME + 64)
        end = match.start() if match else min(len(source.text), source.at + MAX_NAME + 64)
        longer = name + source.text[source.at : end]
        allowed = _NAME.match(longer)
        assert allowed
        if (valid := min(allowed.end(), MAX_NAME)) < len(longer):
            source.at += valid - len(name)
            return None
        name = longer
        source.at = end
        if match is not None and match.group() in ends:
            return name.rstrip() or None
        if source.is_closed:
            source.at = len(source.text)
            return None
        yield
