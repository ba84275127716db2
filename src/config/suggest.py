"""Suggestions for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import cache

from .schema.options import options, sections

MAX_SUGGESTIONS = 3


def normal(name: str) -> str:
    """Spelling with underscores and small letters, the one that keys have."""
    return name.strip().lower().lstrip("-").replace("-", "_")


def close(name: str, known: Iterable[str], cutoff: float = 0.7) -> list[str]:
    """Known names that resemble `name`, best first, at most 3."""
    by_normal = {normal(candidate): candidate for candidate in known}
    wanted = normal(name)
    if wanted in by_normal:
        return [by_normal[wanted]]
    matches = difflib.get_close_matches(wanted, by_normal, max(1, len(by_normal)), cutoff)
    if matches and matches[0] not in _refused_names():
        matches = [match for match in matches if match not in _refused_names()]
    return [by_normal[match] for match in matches[:MAX_SUGGESTIONS]]


@cache
def _refused_names() -> frozenset[str]:
    """All spellings of refused options, which are suggested only if one of them is the best match."""
    refused = [option for option in options().values() if option.status == "refused"]
    return frozenset(
        normal(name) for option in refused for name in (option.path, option.name, option.variable, *option.flags)
    )


def paths_like(section: str, name: str) -> list[str]:
    """Dotted paths that a key `name` under `section` (empty: at the top) may stand for, best first.

    The same key elsewhere comes first, then like-spelt keys of this section, then of all others.
    """
    known = [path for path in options() if "." in path]
    elsewhere = [path for path in known if path.partition(".")[2] == normal(name)]
    if elsewhere:
        return [path for path in elsewhere if options()[path].status != "refused"] or elsewhere
    if section and not any(path.startswith(f"{section}.") for path in known):
        return []  # a section without options: nothing there can have been meant
    if section:
        here = [path.partition(".")[2] for path in known if path.startswith(f"{section}.")]
        if found := close(name, here):
            return [f"{section}.{match}" for match in found]
        if found := [match for match in here if set(normal(name).split("_")) <= set(match.split("_"))]:
            return [f"{section}.{match}" for match in found[:MAX_SUGGESTIONS]]
    else:
        tops = [*sections(), *(path for path in options() if "." not in path)]
        if found := close(name, tops):
            return found
    by_name = {path.partition(".")[2]: path for path in known}
    if found := close(name, by_name, 0.75):
        return [by_name[match] for match in found]
    found = close(f"{section}.{name}", known, 0.75) if section else []
    return [path for path in found if difflib.SequenceMatcher(None, normal(name), path.partition(".")[2]).ratio() > 0.5]


def did_you_mean(names: Iterable[str]) -> str:
    """`did you mean `a`, `b` or `c`?`; empty for no names."""
    quoted = [f"`{name}`" for name in names][:MAX_SUGGESTIONS]
    if not quoted:
        return ""
    return f"did you mean {', '.join(quoted[:-1])}{' or ' if quoted[:-1] else ''}{quoted[-1]}?"
