"""Rules of a grammar in llguidance's dialect of Lark, with special tokens of the tokenizer where a marker is one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

ANY_TEXT = "/(?s:.*)/"
_IN_REGEX = re.compile(r"\\.|/|\n", re.DOTALL)
_WRITTEN = {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}
# As models are trained to write it, and without white space that could go on forever.
_JSON_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Rules:
    """Collects rules. Its methods return what refers to them in the body of another rule."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        """special_tokens: id of each special token of the tokenizer, by its text."""
        self._ids = special_tokens
        self._texts = re.compile("|".join(map(re.escape, sorted(special_tokens, key=len, reverse=True))) or r"(?!)")
        self._lines: list[str] = []
        self._names: dict[str, str] = {}
        self._num_names = 0

    def new_name(self) -> str:
        """Name for a rule that `define` gives a body."""
        self._num_names += 1
        return f"r{self._num_names}"

    def define(self, name: str, body: str, *, attributes: str = "") -> None:
        self._lines.append(f"{name}{attributes}: {body}")

    def rule(self, body: str) -> str:
        """The name of the rule with this body."""
        if body not in self._names:
            self._names[body] = self.new_name()
            self.define(self._names[body], body)
        return self._names[body]

    def terminal(self, body: str) -> str:
        """The name of a terminal with this body: of regular expressions, also with `&` and `~`."""
        if body not in self._names:
            self._num_names += 1
            self._names[body] = f"T{self._num_names}"
            self.define(self._names[body], body)
        return self._names[body]

    def literal(self, text: str) -> str:
        """Exactly this text. Nothing for the empty text."""
        parts: list[str] = []
        at = 0
        for match in self._texts.finditer(text):
            parts += [quoted(text[at : match.start()]), f"<[{self._ids[match.group()]}]>"]
            at = match.end()
        return " ".join(part for part in [*parts, quoted(text[at:])] if part)

    def text_until(self, end: str, text: str = ANY_TEXT) -> str:
        """Text, and the first `end` after it.

        text: a terminal, or a regular expression. What it matches may contain the beginning of `end`.
        """
        special = self._texts.search(end)
        if special is None:
            name = self.new_name()
            self.define(name, text, attributes=f"[suffix={quoted(end)}]")
            return name
        # the text cannot contain the special token, so it ends where that token is written
        own = end[: special.start()]
        body = self.terminal(f"{text} {quoted(own)}") if own else self.rule(text)
        return f"{body} {self.literal(end[len(own) :])}"

    def text_without(self, pattern: str) -> str:
        """A terminal of any text that has no beginning which the regular expression matches."""
        return self.terminal(f"{ANY_TEXT} & {without(pattern)}")  # alone, it would match special tokens too

    def json(self, schema: Mapping[str, Any], *, strict: bool) -> str:
        """JSON that obeys the schema. Not strict: what the backend cannot enforce is left out."""
        options = _JSON_FORM | ({} if strict else {"lenient": True})
        return self.rule("%json " + json.dumps({**schema, "x-guidance": options}))

    def separated(self, items: Sequence[tuple[str, bool]], separator: str) -> str:
        """Items in this order, with separators. An item is a body, and whether it is required."""
        separator = quoted(separator)
        after_first, after_others = '""', '""'  # what follows where no item, or some item was written
        for body, is_required in reversed(items):
            with_it = f"({body}) {after_others}"
            later = f"{separator} {with_it}"
            if is_required:
                after_first, after_others = self.rule(with_it), self.rule(later)
            else:
                after_first, after_others = (
                    self.rule(f"{with_it} | {after_first}"),
                    self.rule(f"{later} | {after_others}"),
                )
        return after_first

    def lark(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._lines]) + "\n"


def regex(pattern: str) -> str:
    """A regular expression as Lark writes it: between slashes, in one line."""
    return "/" + _IN_REGEX.sub(lambda match: _WRITTEN.get(match[0], match[0]), pattern) + "/"


def without(pattern: str) -> str:
    """What no text matches that has a beginning which the regular expression matches."""
    return f"~{regex(f'({pattern})(?s:.*)')}"


def quoted(text: str) -> str:
    """A string literal of Lark. Nothing for the empty text."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def any_of(bodies: Sequence[str]) -> str:
    return bodies[0] if len(bodies) == 1 else "(" + " | ".join(bodies) + ")"
