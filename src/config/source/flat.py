"""A flat file of long option names and values, as other serving engines read it with --config: one layer.

    model: Qwen/Qwen3-8B
    max-model-len: 32k
    speculative-config: {method: ngram, num_speculative_tokens: 4}
    enable-prefix-caching: false

It is read as typed values with places, never turned into a command line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..diagnostics import Diagnostic, Label
from ..origin import Layer
from ..schema.options import FREE_PREFIX, section_flags, sections
from ..source_text import SourceText
from ..suggest import close, did_you_mean
from .files import FileSource, content_of
from .flags import Flag, flat_options, read_flag
from .layer import place
from .node import Node, Tree
from .secrets import hide_look_alikes, hide_secret, looks_secret, take_as_secret
from .values import read_text, section_node
from .yaml import lines_of


class FlatSource(FileSource):
    """One flat file. Keys that no option has are errors, never ignored."""

    shape = "write option names with their values: `max-model-len: 32k`"

    def known(self, root: Node) -> list[Tree]:
        assert isinstance(root.value, dict)
        trees: list[Tree] = [{}]
        if _is_manifest(root.value):
            label = Label(root.span, "name it as FILE or with -f, without --config")
            self.found.append(Diagnostic(code="C119", message="this file is a manifest", labels=(label,)))
            return trees
        seen: dict[str, Node] = {}
        for name, node in root.value.items():
            if name.startswith(FREE_PREFIX):
                hide_look_alikes(node)
                continue
            flag = read_key(name)
            if flag is None or flag.option.path == "config":
                self._report_unknown(name, node)
                continue
            if flag.option.is_secret:
                take_as_secret(node)
            path = ".".join((flag.option.path, *flag.keys))
            if path in seen:
                labels = tuple(Label(other.key or other.span) for other in (node, seen[path]))
                message = f"`{name}` sets `{path}` a second time"
                self.found.append(Diagnostic(code="C106", message=message, path=path, labels=labels))
                continue
            seen[path] = node
            value = self._value(flag, name, node)
            if value is not None:
                place(trees, flag.option, value)
        return trees

    def _value(self, flag: Flag, name: str, node: Node) -> Node | None:
        """The value in the form that the option takes; None after a finding."""
        option = flag.option
        if node.is_plain and node.text == "None":
            node.value, node.text = None, "null"
        if flag.is_negated and isinstance(node.value, bool):
            node.value = not node.value
            node.text = str(node.value).lower()
        is_json = isinstance(node.value, str) and (option.kind == "mapping" or option.notation == "commas")
        if is_json and not flag.keys:
            try:
                node = read_text(option, node.text or "", node.span)
            except ValueError as error:
                label = Label(node.span, "allowed: a mapping, indented below the key, or JSON")
                message = f"`{name}` is not valid JSON: {error}"
                self.found.append(Diagnostic(code="C104", message=message, path=option.path, labels=(label,)))
                return None
        if option.path in sections() and not node.is_null:
            return section_node(option.path, node, name, self.found)
        for key in reversed(flag.keys):
            node = Node({key: node}, node.span)
        return node

    def _report_unknown(self, name: str, node: Node) -> None:
        if name.startswith("-") and read_key(name.lstrip("-")):
            suggestions = [name.lstrip("-")]
        else:
            known = [option.replace("_", "-") for option in flat_options() if option != "config"]
            known += [flag.lstrip("-") for flag in section_flags() if flag.startswith("--")]
            suggestions = close(name, known)
        if looks_secret(name):
            hide_secret(node)
        hide_look_alikes(node)
        said = did_you_mean(suggestions)
        if name == "config":
            said = "a flat file cannot name another; write it in a manifest, or give it on the command line"
        self.found.append(
            Diagnostic(
                code="C103",
                message=f"no option is called `{name}`",
                labels=(Label(node.key or node.span, said),),
                suggestions=tuple(suggestions),
            )
        )


def read_key(name: str) -> Flag | None:
    """The option that a key of a flat file names: its long flag without the dashes."""
    if name.startswith("-") or name.endswith(("+", "!")) or "=" in name:
        return None
    return read_flag(f"--{name}")


def _is_manifest(root: Tree) -> bool:
    return "apiVersion" in root or isinstance(getattr(root.get("model"), "value", None), dict)


def read_flat(named: Node, env: Mapping[str, str], found: list[Diagnostic]) -> FlatSource | None:
    """The file that option `config` names; None after a finding."""
    if not isinstance(named.value, str) or named.problem is not None:
        return None  # reported with all other values
    path = named.span.source.folder / Path(os.path.expanduser(named.value))
    content = content_of(path, named.span, found)
    if content is None:
        return None
    text = SourceText(Layer.FILE, str(path), lines_of(content), path.parent)
    source = FlatSource(text, content, env)
    found += source.found
    return source
