"""Flags of the command line: what each spelling sets. Their values are read in overrides.py."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from ..schema.options import Option, options, section_flags, section_option, sections

_LEVEL = re.compile(r"-O([0-9]+)")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag as written: the option it sets, the keys below it, and how."""

    option: Option
    keys: tuple[str, ...]
    spelling: str  # without its value
    attached: str | None  # the value after an equals sign
    appends: bool = False
    unsets: bool = False
    is_negated: bool = False


@cache
def flat_options() -> dict[str, Option]:
    """Option by its name, for flags without a section."""
    return {option.name: option for option in options().values() if option.has_flag and option.is_flat}


@cache
def all_flags() -> dict[str, Option]:
    """Every spelling."""
    flags = {flag: section_option(name) for flag, name in section_flags().items()}
    return flags | {flag: option for option in options().values() for flag in option.flags}


@cache
def _aliases() -> dict[str, Option]:
    return {alias: option for option in options().values() for alias in option.aliases}


def read_flag(word: str) -> Flag | None:
    """What `--word` or `-word` sets; None if no option is spelt so."""
    if level := _LEVEL.fullmatch(word):
        return Flag(options()["compilation.level"], (), "-O", level[1])
    name, equals, value = word.partition("=")
    appends, unsets = name.endswith("+"), name.endswith("!")
    first, *keys = name.rstrip("+!").split(".") if appends or unsets else name.split(".")
    spelling, attached = word[: len(word) - len(value) - len(equals)], value if equals else None
    alias = "-" * (2 if word.startswith("--") else 1) + first.lstrip("-").replace("_", "-")
    first = first.removeprefix("--").replace("-", "_")
    section = section_flags().get(alias) or (first if first in sections() else None)
    option: Option | None
    if section is not None and keys:
        option = options().get(f"{section}.{keys[0].replace('-', '_')}")
        keys = keys[1:]
    elif alias in section_flags():
        option = section_option(section_flags()[alias])
    elif alias in _aliases():
        option = _aliases()[alias]
    elif not word.startswith("--"):
        return None
    else:
        option = flat_options().get(first)
        if option is None and first.startswith("no_") and not keys:
            option = flat_options().get(first.removeprefix("no_"))
            if option is None or option.kind != "flag" or appends or unsets:
                return None
            return Flag(option, (), spelling, attached, is_negated=True)
    if option is None or (keys and option.kind != "mapping") or not all(keys):
        return None
    return Flag(option, tuple(keys), spelling, attached, appends, unsets)
