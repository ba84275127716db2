"""Options of the deployment, taken out of a command line before Typer reads it.

Typer is strict about what is left. It must not see options it does not know: told to ignore them, it binds their
values to the command's own arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..config.errors import ConfigError


def own_flags(command: Any) -> dict[str, bool]:
    """The flags of a Typer command, each with whether it takes a value."""
    flags = {"--help": False, "-h": False}
    for parameter in command.params:
        if parameter.param_type_name == "option":
            for name in (*parameter.opts, *parameter.secondary_opts):
                flags[name] = not parameter.is_flag
    return flags


def take_overrides(words: Sequence[str], own: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """The words of the command itself, and those that set options. ConfigError (exit code 2) for unknown flags."""
    if not any(word.startswith("-") and word.partition("=")[0] not in own for word in words):
        return list(words), []  # nothing to look up, so the catalogue of options is not loaded
    from ..config.diagnostics import Diagnostic
    from ..config.source.overrides import split_words

    found: list[Diagnostic] = []
    mine, theirs, _ = split_words(words, own, found)
    if found:
        raise ConfigError(found)
    return mine, theirs


def behind_dashes(words: Sequence[str], own: Mapping[str, bool]) -> list[str]:
    """The command's own flags first, everything else behind `--`: for `explain --max-num-seqs`.

    Behind a `--` that is there already, nothing is the command's own.
    """
    mine: list[str] = []
    rest: list[str] = []
    index = 0
    while index < len(words):
        if words[index] == "--":
            rest += words[index + 1 :]
            break
        name = words[index].partition("=")[0]
        count = 1
        is_last = index + 1 == len(words)
        if name in own and not (own[name] and is_last and "=" not in words[index]):  # `explain run-batch -o`
            count = 2 if own[name] and "=" not in words[index] else 1
            mine += words[index : index + count]
            if index + count > len(words):
                return mine  # its value is missing, and must not be the dashes
        else:
            rest.append(words[index])
        index += count
    return [*mine, "--", *rest] if rest else mine
