"""A draft as the text of a manifest: sections in order, only what was written, and beside it what could not be."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable
from typing import Any

from ..schema.deployment import API_VERSION
from ..schema.options import Option, options, options_of, sections
from ..source.node import Node
from ..source.scalars import as_yaml_value, resolve_plain
from ..starter import SCHEMA_FILE
from .draft import Draft, Kind, Left

_MODELINE = f"# yaml-language-server: $schema={SCHEMA_FILE}"
_TITLES = {"vllm": "vLLM", "sglang": "SGLang", "llama.cpp": "llama.cpp", "stoker": "Stoker"}
_SAID: dict[Kind, str] = {
    "refused": "not in this build",
    "unreadable": "cannot be read",
    "unknown": "unknown",
    "no counterpart": "no counterpart",
    "needless": "not needed",
}
_WIDTH = 112
_BARE = re.compile(r"\$\{[A-Za-z_]\w*(:-[\w./-]*)?\}")
_PLAIN = re.compile(r"[\w./+][\w./:+-]*")


def manifest_text(draft: Draft) -> str:
    """The whole file. Everything in it that is not a comment holds in this build.

    `# ` begins words for the reader; `#` alone takes out a line that this build would refuse.
    """
    lines = [_MODELINE, "#", f"# Read by `engine import` from a start of {_TITLES[draft.engine]}."]
    for note in draft.notes:
        lines += _comment(note, "")
    lines += ["apiVersion: " + API_VERSION, "kind: Deployment"]
    for option in options_of(""):
        lines += _option_lines(draft, option, "", set())
    for section in sections():
        lines += _section_lines(draft, section)
    rest = [left for left in draft.left if not left.path]
    for title, kinds in (
        ("Not carried over, and not in effect:", ("refused", "unreadable", "unknown", "no counterpart")),
        ("Not needed here:", ("needless",)),
    ):
        some = [left for left in rest if left.kind in kinds]
        if some:
            lines += ["", f"# {title}"]
            for left in some:
                lines += _comment(f"{left.written}: {left.reason}", "", "#   ")
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
    told: set[str] = set()
    for left in draft.left:
        if left.path == section:
            lines += _left_lines(left, "  ", told)
    for option in options_of(section):
        lines += _option_lines(draft, option, "  ", told)
    if not lines:
        return []
    is_live = any(path.partition(".")[0] == section for path in (*draft.values, *draft.secrets))
    return [f"{section}:" if is_live else f"#{section}:", *lines]


def _option_lines(draft: Draft, option: Option, indent: str, told: set[str]) -> list[str]:
    lines: list[str] = []
    for left in draft.left:
        if left.path == option.path:
            lines += _left_lines(left, indent, told)
    if option.path in draft.secrets or option.path in draft.values:
        for said in draft.remarks.get(option.path, []):
            lines += _comment(said, indent)
    if option.path in draft.secrets:
        names = draft.secrets[option.path]
        lines += _comment(f"The secret is not copied: set {' and '.join(names)} in the environment.", indent)
        written = ", ".join(f"{{env: {name}}}" for name in names)
        lines.append(f"{indent}{option.name}: {written if len(names) == 1 else f'[{written}]'}")
    elif option.path in draft.values:
        lines += _value_lines(option.name, draft.values[option.path], option.takes_text, indent)
    return lines


def _left_lines(left: Left, indent: str, told: set[str]) -> list[str]:
    """`told`: what this section has said already, since one flag may hold several options."""
    said = f"{left.written}: {_SAID[left.kind]}: {left.reason}"
    lines = _comment(said, indent) if said not in told else []
    told.add(said)
    option = options().get(left.path)
    if left.node is not None and option is not None:
        commented = _value_lines(option.name, left.node, option.takes_text, "")
        lines += [f"{indent}#{line}" for line in commented]
    return lines


def _comment(said: str, indent: str, start: str = "# ") -> list[str]:
    said = "".join(char if char.isprintable() else " " for char in re.sub(r"\s+", " ", said)).strip()
    start = indent + start
    return textwrap.wrap(
        said,
        _WIDTH,
        initial_indent=start,
        subsequent_indent=f"{start}  ",
        break_long_words=False,
        break_on_hyphens=False,
    ) or [start.rstrip()]


def _value_lines(name: str, node: Node, takes_text: bool, indent: str) -> list[str]:
    value = node.value
    if isinstance(value, dict) and value:
        lines = [f"{indent}{_scalar(name)}:"]
        for key, child in value.items():
            lines += _value_lines(key, child, False, f"{indent}  ")
        return lines
    return [f"{indent}{_scalar(name)}: {_inline(node, takes_text)}"]


def _inline(node: Node, takes_text: bool) -> str:
    if isinstance(node.value, list):
        return f"[{', '.join(_inline(child, takes_text) for child in node.value)}]"
    if isinstance(node.value, dict):
        return f"{{{', '.join(f'{_scalar(key)}: {_inline(child, False)}' for key, child in node.value.items())}}}"
    text = node.text if node.text is not None else str(node.value)
    if _BARE.fullmatch(text):
        return text
    if takes_text or isinstance(node.value, str):
        return _scalar(text)
    if isinstance(node.value, int | float) and _PLAIN.fullmatch(text) and resolve_plain(text) == node.value:
        return text  # as it was written: 32k, 0.90
    return _scalar(node.value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and not value.isprintable():
        return json.dumps(value)
    return as_yaml_value(value)


def left_records(left: Iterable[Left]) -> list[dict[str, Any]]:
    """For programs."""
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
