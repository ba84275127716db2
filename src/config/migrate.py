"""Rewrites deprecated names in a manifest to the current ones; everything else stays as it is.

The text is edited, so comments, order, quotes, anchors and blanks stay. One option is rewritten at a time and the text
is read again, so that every position refers to the current text. After each edit both texts are read, and an edit that
changes the meaning is discarded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .diagnostics import Diagnostic, Label
from .origin import Layer
from .schema.options import Option, options
from .source.check import check, problems
from .source.deprecated import modernise
from .source.files import fill_in
from .source.keys import known_part
from .source.merge import merge
from .source.node import Node, Tree
from .source.yaml import lines_of, parse
from .source_text import SourceText, Span
from .yaml_writer import inline

_BREAK = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")
_REST = re.compile(r"[ \t]*(#[^\n\r]*)?")


@dataclass(slots=True)
class Migrated:
    """`text` is the new manifest; `left` is what has to be done by hand; `renamed` are lines such as `a -> b`."""

    text: str
    renamed: list[str] = field(default_factory=list)
    left: list[Diagnostic] = field(default_factory=list)


class _ByHand(Exception):
    """This edit must be made by hand; the message says why."""


def migrate(text: str, name: str, env: Mapping[str, str]) -> Migrated:
    """Rewrite what can be rewritten. Raises ConfigError for a text that is no manifest.

    name: of the file, for messages. env: for `${...}` in the values of deprecated options.
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    done = Migrated(text.removeprefix(mark))
    skipped: set[str] = set()
    while True:
        page = _Page(done.text, name, env)
        found = next((option for option in page.deprecated() if option.path not in skipped), None)
        if found is None:
            break
        try:
            new, became = page.rewritten(found)
            if _meaning(new, name, env) != _meaning(done.text, name, env):
                raise _ByHand("it cannot be moved without changing something else")
        except _ByHand as reason:
            skipped.add(found.path)
            done.left.append(page.finding(found, str(reason)))
            continue
        done.text = new
        done.renamed.append(f"{found.path} -> {', '.join(became) or '(removed)'}")
    done.text = mark + done.text
    return done


def shown_lines(text: str, name: str, env: Mapping[str, str]) -> list[str]:
    """The lines of a manifest with its secrets as asterisks. Raises ConfigError for a text that is no manifest."""
    return _Page(text.removeprefix("\ufeff"), name, env).redacted().removesuffix("\n").split("\n")


def _meaning(text: str, name: str, env: Mapping[str, str]) -> Any:
    tree = _Page(text, name, env).tree
    trees = [tree]
    modernise(trees, env, [])
    return {path: entry.effective.plain() for path, entry in merge([trees]).items() if entry.effective is not None}


class _Page:
    """One text of a manifest, read, with edits that give another one."""

    def __init__(self, text: str, name: str, env: Mapping[str, str]) -> None:
        self._newline = "\r\n" if "\r\n" in text else "\n"
        if text and not _BREAK.search(text, len(text) - 1):
            text += self._newline  # so that a line can be added at the end
        self._text = text
        self._env = env
        self._leaving: Node | None = None  # the value that is being removed
        self._extended: set[int] = set()  # ids of the mappings that keys are being added to
        self._source = SourceText(Layer.FILE, name, lines_of(text))
        self._starts = [0, *(match.end() for match in _BREAK.finditer(text))]
        found: list[Diagnostic] = []
        self._root = parse(text, self._source, found)
        self.tree: Tree = {}
        if self._root is not None and isinstance(self._root.value, dict):
            self.tree = known_part(self._root, found)
            seen: set[int] = set()
            for node in self.tree.values():
                fill_in(node, env, seen)

    def redacted(self) -> str:
        return self._source.redacted()

    def deprecated(self) -> list[Option]:
        """Deprecated options that are written here."""
        return [option for option in options().values() if option.status == "deprecated" and self._entry(option)]

    def _entry(self, option: Option) -> Node | None:
        home = self.tree.get(option.section)
        return home.value.get(option.name) if home is not None and isinstance(home.value, dict) else None

    def finding(self, option: Option, why: str) -> Diagnostic:
        node = self._entry(option)
        assert node is not None
        return Diagnostic(
            code="C123",
            message=f"`{option.path}` has to be rewritten by hand: {why}",
            path=option.path,
            labels=(Label(node.key or node.span, option.reason),),
            suggestions=option.replaced_by,
        )

    def rewritten(self, option: Option) -> tuple[str, list[str]]:
        """The text without the option, and with what stands for it. Raises _ByHand."""
        node = self._entry(option)
        assert node is not None
        assert node.key is not None
        values, is_same = self._values(option, node)
        paths = list(values)
        written = self._slice(self._offset(node.span), self._end(node))
        if is_same and paths[0].rpartition(".")[0] == option.section and self._find(paths[0]) is None:
            start = self._offset(node.key)
            key = re.compile(r"""["']?""" + re.escape(option.name) + r"""["']?""").match(self._text, start)
            if key is None:
                raise _ByHand("its key is not written plainly")
            return self._edited((start, key.end(), options()[paths[0]].name)), paths
        if is_same and not self._is_flow(node) and isinstance(node.value, dict | list):
            raise _ByHand("its value takes several lines")
        self._leaving, self._extended = node, set()
        empties = not any(path.partition(".")[0] == option.section for path in values)
        edits = [self._removed(option, node, empties=empties)]
        new = {path: written if is_same else inline(value) for path, value in values.items()}
        for path, text in new.items():
            known = self._find(path)
            if known is None:
                edits.append(self._added(path, text, option.section))
            elif not is_same and known.plain() != values[path]:
                raise _ByHand(f"`{path}` is written too, with another value")
        return self._edited(*edits), paths

    def _values(self, option: Option, node: Node) -> tuple[Mapping[str, Any], bool]:
        """What the option means today, and whether that is one path with the value as it is written."""
        if node.is_null:
            return {}, False
        if problems(node):
            raise _ByHand("a variable in its value is not set here")
        found: list[Diagnostic] = []
        value = check(option, node, self._env, found)
        if found:
            raise _ByHand(found[0].message)
        try:
            values = option.becomes(value)
        except ValueError as error:
            raise _ByHand(str(error)) from None
        is_same = len(values) == 1 and next(iter(values.values())) is value
        if not is_same and values and "${" in self._slice(self._offset(node.span), self._end(node)):
            raise _ByHand("its value is made from a variable")
        return values, is_same

    def _find(self, path: str) -> Node | None:
        section, name, *keys = path.split(".")
        node = self.tree.get(section)
        for key in (name, *keys):
            node = node.value.get(key) if node is not None and isinstance(node.value, dict) else None
        return node

    def _removed(self, option: Option, node: Node, *, empties: bool) -> tuple[int, int, str]:
        """empties: nothing is added to its section, which goes too if the option is all that it has."""
        home = self.tree[option.section]
        assert node.key is not None
        start, end = self._offset(node.key), self._end(node)
        if home.anchor is not None or not self._offset(home.span) <= start < self._end(home):
            raise _ByHand("it is in a mapping that is used in several places")
        if self._is_flow(home):
            after = re.compile(r"\s*,\s*").match(self._text, end)
            if after is not None:
                return start, after.end(), ""
            before = re.compile(r",\s*$").search(self._text, 0, start)
            return (before.start() if before else start), end, ""
        first, last = self._starts[node.key.line - 1], self._line_end(end)
        if self._text[first:start].strip() or not _REST.fullmatch(self._text, end, self._before_break(last)):
            raise _ByHand("its line contains something else")
        assert isinstance(home.value, dict)
        if empties and len(home.value) == 1 and home.key is not None and not self._is_flow_root:
            above = self._starts[home.key.line - 1]
            is_alone = not self._text[self._line_end(self._offset(home.key)) : first].strip()
            if is_alone and not self._text[above : self._offset(home.key)].strip():
                return above, last, ""
        return first, last, ""

    def _added(self, path: str, text: str, beside: str) -> tuple[int, int, str]:
        """An edit that writes a value at a path: into the mapping that is there, or into a new section."""
        section, name, *keys = path.split(".")
        home = self.tree.get(section)
        inner = self._find(f"{section}.{name}") if keys else None
        if inner is not None and isinstance(inner.value, dict) and len(keys) == 1:
            return self._into(inner, f"{keys[0]}: {text}")
        for key in reversed(keys):
            text = f"{{{key}: {text}}}"
        if home is not None and isinstance(home.value, dict):
            return self._into(home, f"{name}: {text}")
        assert self._root is not None
        if self._is_flow(self._root):
            return self._into(self._root, f"{section}: {{{name}: {text}}}")
        at = self._line_end(self._end(self.tree[beside]))
        if home is not None:
            raise _ByHand(f"`{section}` holds no keys")
        return at, at, f"{section}:{self._newline}  {name}: {text}{self._newline}"

    @property
    def _is_flow_root(self) -> bool:
        return self._root is not None and self._is_flow(self._root)

    def _into(self, home: Node, entry: str) -> tuple[int, int, str]:
        if home.anchor is not None:
            raise _ByHand("what stands for it belongs in a mapping that is used in several places")
        assert isinstance(home.value, dict)
        if self._is_flow(home):
            at = self._end(home) - 1
            while self._text[at - 1] in " \t":
                at -= 1
            is_empty = id(home) not in self._extended and all(child is self._leaving for child in home.value.values())
            self._extended.add(id(home))
            return at, at, entry if is_empty else f", {entry}"
        last = max(home.value.values(), key=self._end)
        assert last.key is not None
        at = self._line_end(self._end(last))
        indent = " " * (min(child.key.column for child in home.value.values() if child.key) - 1)
        return at, at, f"{indent}{entry}{self._newline}"

    def _edited(self, *edits: tuple[int, int, str]) -> str:
        """The text with all edits made; of several at one place the first comes first."""
        text = self._text
        in_order = sorted(edits, key=lambda edit: edit[:2])
        for start, end, new in in_order[::-1]:  # from the end, so that places before it stay where they are
            text = text[:start] + new + text[end:]
        return text

    def _slice(self, start: int, end: int) -> str:
        return self._text[start:end]

    def _offset(self, span: Span) -> int:
        return self._starts[span.line - 1] + span.column - 1

    def _is_flow(self, node: Node) -> bool:
        return self._text[self._offset(node.span) : self._offset(node.span) + 1] in ("{", "[")

    def _end(self, node: Node) -> int:
        """Offset where a value ends; for PyYAML a block ends where the next token begins."""
        span = node.span
        end = len(self._text)
        if span.end_line <= len(self._starts):
            end = self._starts[span.end_line - 1] + span.end_column - 1
        if node.anchor is not None or self._is_flow(node):
            return end
        if isinstance(node.value, dict | list):
            children = node.value.values() if isinstance(node.value, dict) else node.value
            return max(self._end(child) for child in children) if node.value else end
        while end > self._offset(span) and self._text[end - 1] in " \t\r\n":
            end -= 1
        return end

    def _line_end(self, offset: int) -> int:
        """Offset where the next line starts; the end of the text on the last line."""
        match = _BREAK.search(self._text, offset)
        return match.end() if match else len(self._text)

    def _before_break(self, line_end: int) -> int:
        while line_end and self._text[line_end - 1] in "\r\n":
            line_end -= 1
        return line_end
