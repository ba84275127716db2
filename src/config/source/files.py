"""Manifest files, and the files they extend, as layers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...input_file import FileTooLarge, read_file, read_stream
from ..diagnostics import Diagnostic, Label
from ..errors import ConfigError
from ..origin import Layer
from ..source_text import SourceText, Span
from ..yaml_scalars import resolve_plain
from .interpolate import InterpolationError, interpolate, names_in, only_name
from .keys import known_part
from .layer import LayerSource
from .node import Node, Tree
from .secrets import hide_named
from .yaml import MAX_BYTES, lines_of, parse

STDIN = "-"
MAX_FILES = 100  # with all that they extend


class FileSource(LayerSource):
    """One manifest file, its `${...}` filled in. Errors are in `found`; the valid part is kept."""

    shape = "a deployment is a mapping: start with `model:`"

    def __init__(self, text: SourceText, content: str, env: Mapping[str, str]) -> None:
        super().__init__()
        self.text = text
        try:
            root = parse(content, text, self.found)
        except ConfigError as error:
            self.found = list(error.diagnostics)
            return
        if root is None or root.is_null:
            return
        if not isinstance(root.value, dict):
            label = Label(root.span, self.shape)
            self.found.append(Diagnostic(code="C119", message="the top level must be a mapping", labels=(label,)))
            return
        self.trees = self.known(root)
        seen: set[int] = set()
        for tree in self.trees:
            for node in tree.values():
                fill_in(node, env, seen)

    def known(self, root: Node) -> list[Tree]:
        """The keys that are options, in sections."""
        return [known_part(root, self.found)]

    @property
    def extends(self) -> list[Node]:
        """Names of the files it builds on."""
        node = self.tree.get("extends")
        if node is None or node.is_null:
            return []
        return node.value if isinstance(node.value, list) else [node]


def fill_in(node: Node, env: Mapping[str, str], seen: set[int]) -> None:
    """Interpolate every text in place. A form that cannot be filled in becomes the node's problem.

    seen: ids of nodes that are done, since aliases share them: `$$` filled in twice would be a form.
    """
    for scalar in node.scalars():
        if id(scalar) in seen or not isinstance(scalar.value, str) or "$" not in scalar.value:
            continue
        seen.add(id(scalar))
        try:
            scalar.variable, scalar.variables = only_name(scalar.value), names_in(scalar.value)
            scalar.text = interpolate(scalar.value, env)
            scalar.is_filled_in = scalar.text != scalar.value
        except InterpolationError as error:
            label = Label(_part(scalar, error.start, error.end), error.said)
            scalar.problem = Diagnostic(code=error.code, message=str(error), labels=(label,))
            continue
        # typed after filling in: `port: ${PORT}` is a number, "${PORT}" in quotes is a text
        scalar.value = resolve_plain(scalar.text) if scalar.is_plain else scalar.text


def _part(node: Node, start: int, end: int) -> Span:
    """The span of some characters of a scalar; the whole scalar if its text is not written literally."""
    span = node.anchor or node.span
    text = node.text or ""
    line = span.source.lines[span.line - 1][span.column - 1 : span.line_end - 1]
    offset = line.find(text) if span.line == span.end_line else -1
    if offset < 0:
        return span
    first = span.column + offset
    return Span(span.source, span.line, first + start, span.line, first + end)


@dataclass(frozen=True, slots=True)
class _Place:
    """A file being read, and the place that names it."""

    identity: str
    name: Span | None


def read_files(names: Sequence[Path | str], env: Mapping[str, str], found: list[Diagnostic]) -> list[FileSource]:
    """Every file after the files it extends, in the order given: weakest first. What cannot be read is in `found`."""
    sources: list[FileSource] = []
    for name in names:
        _read(str(name), Path(), None, env, found, sources, [])
    return sources


def _read(
    name: str,
    folder: Path,
    named: Span | None,
    env: Mapping[str, str],
    found: list[Diagnostic],
    sources: list[FileSource],
    above: list[_Place],
) -> None:
    path = Path(os.path.normpath(folder / Path(os.path.expanduser(name)))) if name != STDIN or named else Path(STDIN)
    identity = os.path.abspath(path) if "\0" in name else os.path.realpath(path)
    for place in above:
        if place.identity == identity:
            labels = [Label(named, "leads back to a file that is being read")] if named else []
            labels += [Label(p.name, "by way of") for p in above if p.name is not None and p.name is not named]
            found.append(Diagnostic(code="C114", message=f"`{path}` extends itself", labels=tuple(labels)))
            return
    if len(sources) + len(above) >= MAX_FILES:
        message = f"more than {MAX_FILES} files, with all that they extend"
        if not any(finding.message == message for finding in found):
            found.append(Diagnostic(code="C109", message=message, labels=(Label(named),) if named else ()))
        return
    content = content_of(path, named, found)
    if content is None:
        return
    shown = "<stdin>" if str(path) == STDIN else str(path)
    text = SourceText(Layer.FILE, shown, lines_of(content), path.parent)
    source = FileSource(text, content, env)
    found += source.found
    for node in source.extends:
        if node.problem is not None:
            continue  # reported with all other values
        if not isinstance(node.value, str) or not node.value:
            label = Label(node.span, "allowed: the name of a file, or a list of names")
            found.append(Diagnostic(code="C104", message="`extends` names files", path="extends", labels=(label,)))
            continue
        _read(node.value, path.parent, node.span, env, found, sources, [*above, _Place(identity, named)])
    sources.append(source)


def content_of(path: Path, named: Span | None, found: list[Diagnostic]) -> str | None:
    """The file's text; None after a finding. Never reads more than the limit."""

    def report(code: str, message: str, said: str = "") -> None:
        labels = (Label(named, said or "named here"),) if named else ()
        found.append(Diagnostic(code=code, message=message, labels=labels, notes=() if named or not said else (said,)))

    try:
        if str(path) == STDIN:
            content = read_stream(sys.stdin.buffer, MAX_BYTES)
        else:  # a pipe only on the command line, where the shell makes them
            content = read_file(path, MAX_BYTES, may_be_pipe=named is None)
    except IsADirectoryError:
        report("C101", f"`{path}` is a directory", "a deployment is a file")
        return None
    except FileTooLarge as error:
        report("C109", f"`{path}` is {error.strerror}")
        return None
    except OSError as error:
        report("C101", f"cannot read `{path}`: {(error.strerror or str(error)).lower()}")
        return None
    except ValueError:  # a null character in the name
        report("C101", f"cannot read {str(path)!r}: not a file name")
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        start = before.rfind(b"\n") + 1
        text = SourceText(Layer.FILE, str(path), content.decode("utf-8", "replace").split("\n"))
        hide_named(text)
        column = len(before[start:].decode("utf-8", "replace")) + 1
        span = Span(text, line, column, line, column + 1)
        message = f"`{path}` is not UTF-8: byte 0x{content[error.start]:02x}"
        found.append(Diagnostic(code="C108", message=message, labels=(Label(span, "save the file as UTF-8"),)))
        return None
