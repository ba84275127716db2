"""A draft as the text of a manifest: the values that were set, and comments about the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ..schema.deployment import API_VERSION
from ..schema.options import Option, options, options_of, sections
from ..source.node import Node
from ..starter import SCHEMA_FILE
from ..yaml_scalars import resolve_plain
from ..yaml_writer import Verbatim, comment, entry
from .draft import Draft, Kind, Left

_MODELINE = f"# yaml-language-server: $schema={SCHEMA_FILE}"
_TITLES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llama.cpp": "llama.cpp",
    "tgi": "TGI",
    "tei": "TEI",
    "infinity": "Infinity",
    "ollama": "Ollama",
    "stoker": "Stoker",
}
_SAID: dict[Kind, str] = {
    "refused": "not in this build",
    "unreadable": "cannot be read",
    "unknown": "unknown",
    "undecided": "to be decided",
    "no counterpart": "no counterpart",
    "needless": "not needed",
}
_BARE = re.compile(r"\$\{[A-Za-z_]\w*(:-[\w./-]*)?\}")
_PLAIN = re.compile(r"[\w./+][\w./:+-]*")


def manifest_text(draft: Draft) -> str:
    """The whole file. Everything in it that is not a comment is accepted by this build.

    `# ` begins a comment for the reader; `#` without a space comments out a line that this build would refuse.
    """
    lines = [_MODELINE, "#", f"# Read by `engine import` from a start of {_TITLES[draft.engine]}."]
    for note in draft.notes:
        lines += comment(note, hang="  ")
    lines += ["apiVersion: " + API_VERSION, "kind: Deployment"]
    for option in options_of(""):
        lines += _option_lines(draft, option, "", set())
    for section in sections():
        lines += _section_lines(draft, section)
    rest = [left for left in draft.left if not left.path]
    for title, kinds in (
        ("Not carried over, and not in effect:", ("refused", "unreadable", "unknown", "undecided", "no counterpart")),
        ("Not needed here:", ("needless",)),
    ):
        some = [left for left in rest if left.kind in kinds]
        if some:
            lines += ["", f"# {title}"]
            for left in some:
                lines += comment(f"{left.written}: {left.reason}", start="#   ", hang="  ")
    return "\n".join(lines) + "\n"


def manifest_tree(draft: Draft) -> dict[str, Any]:
    """The same values as nested mappings."""
    tree: dict[str, Any] = {"apiVersion": API_VERSION, "kind": "Deployment"}
    for path, option in options().items():
        home = tree if not option.section else tree.get(option.section, {})
        if path in draft.secrets:
            named = [{"env": name} for name in draft.secrets[path]]
            home[option.name] = named[0] if len(named) == 1 else named
        elif path in draft.values:
            home[option.name] = draft.values[path].plain()
        if option.section and home:
            tree[option.section] = home
    return tree


def _section_lines(draft: Draft, section: str) -> list[str]:
    lines: list[str] = []
    commented: set[str] = set()
    for left in draft.left:
        if left.path == section:
            lines += _left_lines(left, "  ", commented)
    for option in options_of(section):
        lines += _option_lines(draft, option, "  ", commented)
    if not lines:
        return []
    is_live = any(path.partition(".")[0] == section for path in (*draft.values, *draft.secrets))
    return [f"{section}:" if is_live else f"#{section}:", *lines]


def _option_lines(draft: Draft, option: Option, indent: str, commented: set[str]) -> list[str]:
    lines: list[str] = []
    for left in draft.left:
        if left.path == option.path:
            lines += _left_lines(left, indent, commented)
    if option.path in draft.secrets or option.path in draft.values:
        for said in draft.remarks.get(option.path, []):
            lines += comment(said, indent, hang="  ")
    if option.path in draft.secrets:
        names = draft.secrets[option.path]
        lines += comment(f"The secret is not copied: set {' and '.join(names)} in the environment.", indent, hang="  ")
        written = ", ".join(f"{{env: {name}}}" for name in names)
        lines.append(f"{indent}{option.name}: {written if len(names) == 1 else f'[{written}]'}")
    elif option.path in draft.values:
        lines += entry(option.name, _value(draft.values[option.path], option.takes_text), indent)
    return lines


def _left_lines(left: Left, indent: str, commented: set[str]) -> list[str]:
    """`commented`: comments that the section has already, since one flag may set several options."""
    said = f"{left.written}: {_SAID[left.kind]}: {left.reason}"
    lines = comment(said, indent, hang="  ") if said not in commented else []
    commented.add(said)
    option = options().get(left.path)
    if left.node is not None and option is not None:
        lines += [f"{indent}#{line}" for line in entry(option.name, _value(left.node, option.takes_text))]
    return lines


def _value(node: Node, takes_text: bool) -> Any:
    """The value to write. A number keeps its notation, such as 32k or 0.90; only `${NAME}` needs no quotes."""
    if isinstance(node.value, list):
        return [_item(child, takes_text) for child in node.value]
    if isinstance(node.value, dict):
        return {key.replace("$$", "$"): _value(child, False) for key, child in node.value.items()}  # not interpolated
    text = node.text if node.text is not None else str(node.value)
    if _BARE.fullmatch(text):
        return Verbatim(text)
    if takes_text or isinstance(node.value, str):
        return text
    if isinstance(node.value, int | float) and _PLAIN.fullmatch(text) and resolve_plain(text) == node.value:
        return Verbatim(text)
    return node.value


def _item(node: Node, takes_text: bool) -> Any:
    """Value in brackets, where `${NAME}` needs quotes."""
    value = _value(node, takes_text)
    return value.text if isinstance(value, Verbatim) and "$" in value.text else value


def left_records(left: Iterable[Left]) -> list[dict[str, Any]]:
    """Records for programs."""
    return [
        {
            "written": one.written,
            "kind": one.kind,
            "reason": one.reason,
            "path": one.path or None,
            "suggestions": list(one.suggestions),
        }
        for one in left
    ]
