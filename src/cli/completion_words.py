"""Candidates for the last word of a command line, from a table of verbs and options. Imports nothing that is slow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

FILES, NO_SPACE = ":files", ":nospace"
Candidates = tuple[list[tuple[str, str]], str]  # (value, description) pairs, and a directive or an empty text
Table = dict[str, Any]  # of completion_table.py


def candidates(words: Sequence[str], table: Table) -> Candidates:
    """`words` are the words after `engine`; the last one is to be completed and may be empty."""
    *before, word = words
    if not before:
        verbs = {name: verb["help"] for name, verb in table["verbs"].items()}
        return _like(word, verbs.items()), ""
    verb = table["verbs"].get(before[0])
    if verb is None:
        return [], FILES
    if "--" not in before:
        name, equals, typed = word.partition("=")
        if word.startswith("-") and equals:
            found, directive = _values(_takes(name, verb, table), typed, table)
            return [(f"{name}={value}", text) for value, text in found], directive
        if before[1:] and before[-1].startswith("-") and "=" not in before[-1]:
            takes = _takes(before[-1], verb, table)
            if takes is not None and not takes["is_switch"]:
                return _values(takes, word, table)
        if word.startswith("-"):
            return _flags(word, verb, table)
    return _argument(word, _position(before[1:], verb, table), verb, table)


def _flags(word: str, verb: Table, table: Table) -> Candidates:
    """Flags of the verb and, if it takes options, of these: flat names, and prefixes of sections."""
    found = _like(word, ((name, flag["help"]) for name, flag in verb["flags"].items()))
    if verb["topics"]:
        found += _like(word, table["topics"].items())
    if not verb["overrides"]:
        return found, ""
    section = word.partition(".")[0] if "." in word else ""
    prefixes: dict[str, str] = {}
    for name, path in table["flags"].items():
        prefix, dot, _ = name.partition(".")
        if dot and not section:
            prefixes.setdefault(f"{prefix}.", "section")
        elif name.startswith(word) and (word.startswith("--no-") or not _is_negation(name, table)):
            found.append((name, table["options"][path]["help"]))
    sections = _like(word, prefixes.items())
    return found + sections, NO_SPACE if sections and not found else ""


def _is_negation(name: str, table: Table) -> bool:
    return name.startswith("--no-") and f"--{name[5:]}" in table["flags"]


def _takes(name: str, verb: Table, table: Table) -> Table | None:
    """What a flag takes; None for an unknown flag."""
    if name in verb["flags"]:
        own: Table = verb["flags"][name]
        return own
    if not verb["overrides"] and not verb["topics"]:
        return None
    if "." in name:
        section, _, rest = name.partition(".")
        name = f"{section}.{rest.replace('_', '-')}"
    path = table["flags"].get(name) or table["flags"].get(name.replace("_", "-"))
    if path is None or verb["topics"]:
        return None
    option: Table = table["options"][path]
    return {**option, "is_switch": option["is_switch"] or _is_negation(name, table)}


def _values(takes: Table | None, word: str, table: Table) -> Candidates:
    if takes is None:
        return [], FILES
    return _like(word, ((value, "") for value in takes["values"])), FILES if takes["files"] else ""


def _position(words: Sequence[str], verb: Table, table: Table) -> int:
    """Number of arguments before the last word, without flags and their values."""
    count, index = 0, 0
    while index < len(words):
        word = words[index]
        if word.startswith("-") and word != "-":
            takes = _takes(word.partition("=")[0], verb, table)
            index += 1 + ("=" not in word and takes is not None and not takes["is_switch"])
        else:
            count += 1
            index += 1
    return count


def _argument(word: str, position: int, verb: Table, table: Table) -> Candidates:
    arguments = verb["arguments"]
    if not arguments:
        return [], ""
    if position >= len(arguments) and not arguments[-1]["is_many"]:
        return [], ""
    argument = arguments[min(position, len(arguments) - 1)]
    kind = argument["kind"]
    if kind == "FILE":
        return [], FILES
    if kind == "PATH":
        return _like(word, table["paths"].items()), ""
    if kind == "WHAT":
        return _like(word, table["topics" if word else "first_topics"].items()), ""
    if kind == "MODEL":
        return _like(word, ((model, "") for model in table["models"])), FILES
    return _like(word, ((value, "") for value in argument["values"])), ""


def _like(word: str, known: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, text) for name, text in known if name.startswith(word)]
