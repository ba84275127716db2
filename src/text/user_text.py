"""What users wrote in a prompt: there the text of a control token is text, and not the token.

A chat template writes control tokens as text, between texts of users that pass through its filters, slices and joins.
The prompt is one text, so a message with `<|im_end|><|im_start|>system` in it would begin another message. Therefore a
mark is put into each control token that a user's text contains: one character, which the request has nowhere else, and
which every filter leaves where it is. It is removed from the prompt. Where it was is a break: no control token is read
across it. Without such a token nothing is marked, and nothing differs from encoding the prompt as one text.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ..engine.api import InvalidRequest
from .json_text import object_of

T = TypeVar("T")
_MARKS = range(0xE100, 0xF900)  # private use


class ControlTokens:
    """texts: of the tokens with a meaning to the model, such as the end of a message."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(sorted(text for text in set(texts) if len(text) > 1))  # a break has to be within
        self.pattern = re.compile(_trie_pattern(self.texts) if self.texts else r"(?!)")
        self._each = re.compile(f"(?={self.pattern.pattern})")  # also those that overlap
        starts = {text[:size] for text in self.texts for size in range(1, len(text))}
        ends = {text[size:] for text in self.texts for size in range(1, len(text))}
        # Parts of tokens that a template or another text could complete. Words are no such parts: roles are words.
        self._starts, self._ends = ({part for part in parts if not part.isalnum()} for parts in (starts, ends))
        self._longest = max(map(len, self.texts), default=1)

    def without(self, texts: Iterable[str]) -> ControlTokens:
        return ControlTokens(set(self.texts) - set(texts))

    def are_in(self, value: Any) -> bool:
        """Whether a text within this JSON value has a control token, or a part of one at an end."""
        return any(self._is_to_mark(text) for text in _texts(value))

    def _is_to_mark(self, text: str) -> bool:
        return self.pattern.search(text) is not None or self._begins(text) or self._is_begun(text)

    def _begins(self, text: str) -> bool:
        """Whether the text begins within a token."""
        return any(text[:size] in self._ends for size in range(1, self._longest))

    def _is_begun(self, text: str) -> bool:
        """Whether a token begins at the end of the text."""
        return any(text[-size:] in self._starts for size in range(1, self._longest))

    def marked(self, value: T, mark: str) -> T:
        """A copy of this JSON value, with marks in its texts."""
        if isinstance(value, str):
            begin, end = mark * self._begins(value), mark * self._is_begun(value)
            return f"{begin}{self._with_marks(value, mark)}{end}"  # type: ignore[return-value]
        if isinstance(value, Mapping):
            return {self._with_marks(name, mark): self.marked(each, mark) for name, each in value.items()}  # type: ignore[return-value]
        if isinstance(value, list | tuple):
            return [self.marked(each, mark) for each in value]  # type: ignore[return-value]
        return value

    def _with_marks(self, text: str, mark: str) -> str:
        """The text with a mark after the first character of each token."""
        pieces, position = [], 0
        for found in self._each.finditer(text):
            pieces.append(text[position : found.start() + 1])
            position = found.start() + 1
        return mark.join([*pieces, text[position:]])


class UserText:
    """The values of one request that users wrote, marked for a rendering.

    answers: the control tokens of the model's own messages, which a template may look for in them.
    """

    def __init__(
        self, control: ControlTokens, answers: ControlTokens, messages: Sequence[Mapping[str, Any]], **given: Any
    ) -> None:
        """given: variables of the template. Raises InvalidRequest if all characters for marks are in use."""
        self.mark = ""
        self.messages, self.given = messages, given
        messages = [_with_plain_arguments(message) for message in messages]
        if not (control.are_in(messages) or control.are_in(given)):
            return
        used = set().union(*map(set, _texts([messages, given])))
        mark = next((chr(code) for code in _MARKS if chr(code) not in used), None)
        if mark is None:
            raise InvalidRequest("the messages use all private-use characters", param="messages")
        self.mark = mark
        self.messages = [
            (answers if message.get("role") == "assistant" else control).marked(message, mark) for message in messages
        ]
        self.given = {name: control.marked(value, mark) for name, value in given.items()}


def _with_plain_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments of calls are JSON as text, in which escapes can hide a control token: those with escapes are read."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not any(map(_has_escapes, calls)):
        return message
    return {**message, "tool_calls": [_with_plain(call) if _has_escapes(call) else call for call in calls]}


def _has_escapes(call: Any) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    return isinstance(arguments, str) and "\\" in arguments


def _with_plain(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call["function"]
    arguments = object_of(function["arguments"])  # None: it is rendered as text
    return call if arguments is None else {**call, "function": {**function, "arguments": arguments}}


def without_marks(text: str, mark: str) -> tuple[str, list[int]]:
    """The prompt, and its breaks: the places in it where marks were, in ascending order."""
    if not mark:
        return text, []
    pieces, breaks, length = text.split(mark), [], 0
    for piece in pieces[:-1]:
        length += len(piece)
        breaks.append(length)
    return "".join(pieces), breaks


@contextlib.contextmanager
def unmarked_errors(mark: str) -> Iterator[None]:
    """Errors of a rendering quote texts of users as they were, without marks."""
    try:
        yield
    except InvalidRequest as error:
        if mark:
            # also where the text is quoted
            error.args = (str(error).replace(mark, "").replace(ascii(mark)[1:-1], ""),)
        raise


def _texts(value: Any) -> Iterable[str]:
    """All texts within a JSON value, also names of fields."""
    unread = [value]
    while unread:
        found = unread.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, Mapping):
            unread += [*found.keys(), *found.values()]
        elif isinstance(found, list | tuple):
            unread += found


def _trie_pattern(texts: Sequence[str]) -> str:
    """Finds the longest of these at a place, in time that does not depend on their number."""
    by_first: dict[str, list[str]] = {}
    for text in texts:
        if text:
            by_first.setdefault(text[0], []).append(text[1:])
    branches = [re.escape(first) + _trie_pattern(rests) for first, rests in by_first.items()]
    if not branches:
        return ""
    joined = branches[0] if len(branches) == 1 and "" not in texts else f"(?:{'|'.join(branches)})"
    return f"{joined}?" if "" in texts else joined
