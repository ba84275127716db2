"""Reads YAML into nodes with their places.

PyYAML scans and parses (its C parser where there is one); what the events mean is decided here: scalars follow the
core schema of YAML 1.2, duplicate keys, foreign tags, second documents and oversized texts are refused, and aliases
count as often as they are used. `<<` merges mappings, as people who write anchors expect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from ..diagnostics import Diagnostic, Label
from ..errors import ConfigError
from ..schema.types import REDACTED
from ..source_text import SourceText, Span
from ..yaml_scalars import resolve_plain
from .node import Node, Tree
from .secrets import hide_named, looks_secret

MAX_BYTES = 4 << 20
MAX_DEPTH = 64
MAX_NODES = 100_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_KEY = re.compile(r"\s*[\w.-]+:(\s|$)")
_KEY_WITH_VALUE = re.compile(r"\s*[\w.-]+:\s+[^\s#|>&]")
_OF_INDENTATION = ("mapping values are not allowed", "did not find expected key")
_SCALAR_TAGS = {"str", "int", "float", "bool", "null"}


def parse(text: str, source: SourceText, found: list[Diagnostic]) -> Node | None:
    """The document's root; None if there is nothing but comments.

    What is wrong is added to `found`; after a fault that leaves the rest unreadable ConfigError is raised with it.
    """
    reader = _Reader(source, found)
    before = len(found)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            reader.take(event)
    except yaml.MarkedYAMLError as error:
        hide_named(source)  # secrets are known by their place in the tree, and there is none
        raise ConfigError([*found, _syntax_error(error, source)]) from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        hide_named(source)
        raise ConfigError([*found, _bad_character(error, text, source)]) from None
    if len(found) > before:
        hide_named(source)  # parts have been dropped
    return reader.root


@dataclass(slots=True)
class _Open:
    """A collection whose end has not been seen."""

    start: Any  # mark
    anchor: str | None
    items: list[Node] = field(default_factory=list)
    tree: Tree = field(default_factory=dict)
    merged: list[Node] = field(default_factory=list)  # values of `<<`
    key: Node | None = None
    is_mapping: bool = False
    size: int = 1


class _Reader:
    def __init__(self, source: SourceText, found: list[Diagnostic]) -> None:
        self.source = source
        self.found = found
        self.root: Node | None = None
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._documents = 0
        self._size = 0

    def take(self, event: Event) -> None:
        if isinstance(event, DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise self._error("C119", "a second document starts here", event, "one document per file")
        elif isinstance(event, ScalarEvent):
            self._add(self._scalar(event), 1, event.anchor, event)
        elif isinstance(event, AliasEvent):
            self._alias(event)
        elif isinstance(event, SequenceStartEvent | MappingStartEvent):
            self._start(event)
        elif isinstance(event, SequenceEndEvent | MappingEndEvent):
            self._end(event)

    def _span(self, start: Any, end: Any) -> Span:
        return Span(self.source, start.line + 1, start.column + 1, end.line + 1, end.column + 1)

    def _report(self, code: str, message: str, event: Event, said: str = "") -> None:
        span = self._span(event.start_mark, event.end_mark)
        self.found.append(Diagnostic(code=code, message=message, labels=(Label(span, said),)))

    def _error(self, code: str, message: str, event: Event, said: str = "") -> ConfigError:
        """Report a fault that leaves nothing to go on with, and return the error to raise."""
        self._report(code, message, event, said)
        hide_named(self.source)
        return ConfigError(self.found)

    def _quoted(self, text: str) -> str:
        """A part of the text for a message; not where a secret belongs, which may begin with `!` or `*`."""
        is_secret = any(frame.key is not None and looks_secret(frame.key.text or "") for frame in self._open)
        return REDACTED if is_secret else f"`{text}`"

    def _scalar(self, event: ScalarEvent) -> Node:
        span = self._span(event.start_mark, event.end_mark)
        is_plain = event.style is None or event.style == ""
        tag = self._tag(event.tag, event, _SCALAR_TAGS) if event.tag and not (is_plain and event.tag == "!") else None
        text = event.value
        if tag == "str" or (tag is None and (not is_plain or event.tag == "!")):
            return Node(text, span, text=text)
        value = resolve_plain(text)
        kinds = {"int": int, "float": float, "bool": bool, "null": type(None)}
        if tag == "float" and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if tag is not None and type(value) is not kinds[tag]:
            self._report("C104", f"{self._quoted(text)} is not of type {tag}", event, f"the tag !!{tag} says it is")
        return Node(value, span, text=text, is_plain=is_plain)

    def _tag(self, tag: str, event: Event, allowed: set[str]) -> str | None:
        """The tag's short name; None after a finding that it is not allowed."""
        name = tag.removeprefix(_TAG)
        if name != tag and name in allowed:
            return name
        shown = f"!!{name}" if name != tag else tag
        self._report("C110", f"the tag {self._quoted(shown)} is not allowed", event, "write the plain value")
        return None

    def _start(self, event: SequenceStartEvent | MappingStartEvent) -> None:
        is_mapping = isinstance(event, MappingStartEvent)
        if event.tag and event.tag != "!":
            self._tag(event.tag, event, {"map" if is_mapping else "seq"})
        if len(self._open) >= MAX_DEPTH:
            raise self._error("C109", f"more than {MAX_DEPTH} levels", event)
        if is_mapping and self._open and self._open[-1].is_mapping and self._open[-1].key is None:
            span = self._span(event.start_mark, event.end_mark)
            if self.source.lines[span.line - 1][max(0, span.column - 2) :].startswith("{{"):
                said = "fill in the template, or write a text with braces in quotes"
                raise self._error("C119", "`{{ ... }}` of a template was not filled in", event, said)
            raise self._error("C119", "a mapping cannot be a key", event, "keys are texts")
        if not is_mapping and self._open and self._open[-1].is_mapping and self._open[-1].key is None:
            raise self._error("C119", "a list cannot be a key", event, "keys are texts")
        self._open.append(_Open(event.start_mark, event.anchor, is_mapping=is_mapping))

    def _end(self, event: Event) -> None:
        closed = self._open.pop()
        span = self._span(closed.start, event.end_mark)
        value: Any = _with_merged(closed) if closed.is_mapping else closed.items
        self._add(Node(value, span), closed.size, closed.anchor, event)

    def _alias(self, event: AliasEvent) -> None:
        known = self._anchors.get(str(event.anchor))
        if known is None:
            said = f"{self._quoted(f'*{event.anchor}')} is an alias, and no anchor before it has this name"
            raise self._error("C102", said, event)
        node, size = known
        span = self._span(event.start_mark, event.end_mark)
        self._add(replace(node, span=span, anchor=node.anchor or node.span, key=None), size, None, event)

    def _add(self, node: Node, size: int, anchor: str | None, event: Event) -> None:
        self._size += size if isinstance(event, AliasEvent) else 1
        if self._size > MAX_NODES:
            raise self._error("C109", f"more than {MAX_NODES} values, aliases counted", event)
        if anchor:
            self._anchors[anchor] = node, size
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        parent.size += size
        if not parent.is_mapping:
            parent.items.append(node)
        elif parent.key is None:
            if node.text is None:
                raise self._error("C119", "only a text can be a key", event)
            parent.key = node
        else:
            self._add_pair(parent, parent.key, node, event)
            parent.key = None

    def _add_pair(self, parent: _Open, key: Node, node: Node, event: Event) -> None:
        name = key.text or ""
        if name == "<<" and key.is_plain:
            sources = node.value if isinstance(node.value, list) else [node]
            for source in sources:
                if not isinstance(source.value, dict):
                    self._report("C104", "`<<` takes a mapping or a list of mappings", event)
                else:
                    parent.merged.append(source)
            return
        if name in parent.tree:
            first = parent.tree[name].key
            assert first is not None
            again = "again here"
            if parent.tree[name].is_empty:
                again = f"again here; if it belongs below the first `{name}:`, indent it"
            labels = (Label(key.span, again), Label(first, "first here"))
            self.found.append(Diagnostic(code="C106", message=f"duplicate key `{name}`", labels=labels))
            return
        parent.tree[name] = replace(node, key=key.span)


def _with_merged(closed: _Open) -> Tree:
    """Written keys have precedence over keys of `<<`, earlier mappings of `<<` over later ones."""
    tree = dict(closed.tree)
    for source in closed.merged:
        assert isinstance(source.value, dict)
        for name, node in source.value.items():
            tree.setdefault(name, node)
    return tree


def _syntax_error(error: yaml.MarkedYAMLError, source: SourceText) -> Diagnostic:
    mark = error.problem_mark or error.context_mark
    line = min(mark.line, max(0, len(source.lines) - 1)) if mark else 0
    text = source.lines[line] if source.lines else ""
    column = min(mark.column, len(text)) if mark else 0
    span = Span(source, line + 1, column + 1, line + 1, column + 2)
    problem = (error.problem or error.context or "cannot be read").strip()
    said = ""
    if "\t" in text[: len(text) - len(text.lstrip())]:
        column = text.index("\t")
        span = Span(source, line + 1, column + 1, line + 1, column + 2)
        problem, said = "a tab in the indentation", "indent with spaces"
    elif problem.startswith(_OF_INDENTATION) and (above := _less_indented(source.lines, line)) is not None:
        indent = len(text) - len(text.lstrip())
        span = Span(source, line + 1, indent + 1, line + 1, column + 1)
        problem = f"the key is indented more than line {above + 1}, which has its value already"
        said = f"indent it with {_indent(source.lines[above])} spaces, as line {above + 1}"
    elif problem.startswith(_OF_INDENTATION) and (above := _between_levels(source.lines, line)) is not None:
        indent = len(text) - len(text.lstrip())
        span = Span(source, line + 1, indent + 1, line + 1, indent + 2)
        problem = "no line above is indented like this key"
        said = f"indent it with {_indent(source.lines[above])} spaces, as line {above + 1}"
        return Diagnostic(code="C102", message=f"invalid YAML: {problem}", labels=(Label(span, said),))
    elif text[column : column + 1] == "\t":
        problem, said = "a tab where YAML takes only spaces", "write spaces"
    elif "cannot start any token" in problem and text[column : column + 1]:
        problem, said = f"a text without quotes cannot begin with {text[column]}", "write the value in quotes"
    elif error.context == "while scanning a quoted scalar" and "end of stream" in problem and error.context_mark:
        at = error.context_mark
        span = Span(source, at.line + 1, at.column + 1, at.line + 1, at.column + 2)
        return Diagnostic(code="C102", message="invalid YAML: the quote is not closed", labels=(Label(span, ""),))
    elif "nesting depth" in problem:  # libyaml's limit: it scans a line of brackets before it reports the first one
        return Diagnostic(code="C109", message=f"more than {MAX_DEPTH} levels", labels=(Label(span, said),))
    labels = [Label(span, said)]
    if error.context_mark is not None and error.context and error.context_mark.line != line:
        at = error.context_mark
        if at.line < len(source.lines):
            labels.append(Label(Span(source, at.line + 1, at.column + 1, at.line + 1, at.column + 2), error.context))
    fixes = ("between braces or brackets write `${...}` in quotes",) if "${" in text else ()
    return Diagnostic(code="C102", message=f"invalid YAML: {problem}", labels=tuple(labels), fixes=fixes)


def _less_indented(lines: Sequence[str], line: int) -> int | None:
    """The line above, if it is a key with its value and a key in `line` is indented more."""
    above = next(_written_above(lines, line), None)
    if above is None or not _KEY_WITH_VALUE.match(lines[above]) or not _KEY.match(lines[line]):
        return None
    return above if _indent(lines[above]) < _indent(lines[line]) else None


def _between_levels(lines: Sequence[str], line: int) -> int | None:
    """The line above, if a key in `line` is indented less, and as no line that is open there."""
    above = next(_written_above(lines, line), None)
    if above is None or not _KEY.match(lines[line]) or _indent(lines[above]) <= _indent(lines[line]):
        return None
    return None if _indent(lines[line]) in map(_indent, (lines[at] for at in _written_above(lines, line))) else above


def _written_above(lines: Sequence[str], line: int) -> Iterator[int]:
    """The lines above that are neither empty nor comments, from the nearest on."""
    return (at for at in range(line - 1, -1, -1) if lines[at].strip()[:1] not in ("", "#"))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _bad_character(error: yaml.YAMLError, text: str, source: SourceText) -> Diagnostic:
    position = getattr(error, "position", 0)
    found = re.search(r"[^\x09\x0a\x0d\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text)
    position = found.start() if found else min(position, len(text))
    line = text.count("\n", 0, position)
    column = position - (text.rfind("\n", 0, position) + 1)
    span = Span(source, line + 1, column + 1, line + 1, column + 2)
    shown = f"U+{ord(text[position]):04X}" if position < len(text) else "a character"
    return Diagnostic(
        code="C102", message=f"invalid YAML: {shown} is not allowed", labels=(Label(span, "remove this character"),)
    )


def lines_of(text: str) -> list[str]:
    """Lines as YAML counts them."""
    return re.split(r"\r\n|[\n\r\x85\u2028\u2029]", text)
