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

MAX_SPACE = 64  # after a marker, until what follows is not looked at
_SPACE = re.compile(r"\s*")


class _Tape:
    """What is taken from a place of the text on, also from texts before the present one."""

    __slots__ = ("mark", "taken")

    def __init__(self) -> None:
        self.mark = -1  # in the present text; -1 while nothing is recorded
        self.taken: list[str] = []

    def begin(self, at: int) -> None:
        self.mark = at
        self.taken.clear()

    def turn(self, text: str, at: int) -> None:
        """Another text follows what was taken of this one."""
        if self.mark >= 0:
            self.taken.append(text[self.mark : at])
            self.mark = 0

    def end(self, text: str, at: int) -> str:
        """What was recorded. Empty if nothing is."""
        found = "".join(self.taken) + text[self.mark : at] if self.mark >= 0 else ""
        self.begin(-1)
        return found


class Source:
    """Text that was not read yet.

    is_cut: the answer ended before the model had ended it. must_call: the answer is calls and no text.
    ends_within: the answer ended within what a reader looked for.
    """

    __slots__ = ("_draft", "_kept", "at", "ends_within", "is_closed", "is_cut", "must_call", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.is_closed = False
        self.is_cut = False
        self.must_call = False
        self.ends_within = False
        self._kept = _Tape()
        self._draft = _Tape()

    @property
    def is_at_end(self) -> bool:
        """Whether what was kept last is as it is only because the answer ended."""
        return self.ends_within or (self.is_closed and self.at >= len(self.text))

    @property
    def hides_rest(self) -> bool:
        """Whether the beginning of a marker or of a call, at the end of the answer, is not text."""
        return self.must_call or self.is_cut

    def push(self, text: str) -> None:
        self._kept.turn(self.text, self.at)
        self._draft.turn(self.text, self.at)
        self.text = self.text[self.at :] + text if self.at < len(self.text) else text
        self.at = 0

    def keep(self) -> None:
        """Begin to remember what is taken, which may turn out not to be a call."""
        self._kept.begin(self.at)
        self.ends_within = False

    def kept(self) -> str:
        """What was taken since `keep`, and stop remembering. Empty while nothing is kept."""
        return self._kept.end(self.text, self.at)

    def put_back(self) -> None:
        """What was taken since `keep` is text that was not read, and stop remembering. Not within a draft."""
        self.return_text(self.kept())

    def return_text(self, text: str) -> None:
        """Put a text back, which is read next."""
        self.text = text + self.text[self.at :]
        self.at = 0

    def forget(self) -> None:
        """Stop remembering."""
        self._kept.begin(-1)

    def begin_draft(self) -> None:
        """Begin to remember all text, which may turn out to be reasoning."""
        self._draft.begin(self.at)

    def end_draft(self) -> str:
        """What was taken since `begin_draft`."""
        return self._draft.end(self.text, self.at)


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
        rest = source.text[source.at : source.at + len(literal)]
        if source.is_closed or not literal.startswith(rest):
            source.ends_within = source.ends_within or (bool(rest) and literal.startswith(rest))
            return False
        yield


def is_next(source: Source, marker: str) -> Reading[bool]:
    """Whether the marker is next. It is not taken."""
    if not (yield from take(source, marker)):
        return False
    source.at -= len(marker)
    return True


def after_space(text: str, at: int) -> int:
    """The place after white space of at most MAX_SPACE characters."""
    match = _SPACE.match(text, at, at + MAX_SPACE)
    assert match
    return match.end()


def what_follows(text: str, at: int, literals: Collection[str], is_closed: bool) -> bool | None:
    """Whether one of the literals is next, after white space, or the end of the answer, also within one of them.

    None: that depends on text which has not arrived.
    """
    following = after_space(text, at)
    if following - at == MAX_SPACE:
        return True
    if any(text.startswith(each, following) for each in literals):
        return True
    rest = text[following : following + max(map(len, literals), default=0)]
    if any(each.startswith(rest) for each in literals):
        return True if is_closed else None
    return False


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
            rest = source.text[source.at :]
            if rest and not (source.must_call or (source.is_cut and len(rest) > 1)):  # the beginning of a marker
                write(rest)
            source.at = len(source.text)
            return ""
        yield


def run_closed(source: Source, reading: Reading[T]) -> T:
    """What a reader of a text returns that is complete."""
    source.is_closed = True
    try:
        next(reading)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise AssertionError("a reader waits for text after the end of the answer")


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
