"""Options of the deployment, removed from a command line before Typer reads it.

Typer checks the rest strictly. It must not see options that it does not know: with ignore_unknown_options it assigns
their values to the command's own arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..config.errors import ConfigError


def own_flags(command: Any) -> dict[str, bool]:
    """The flags of a Typer command. A flag maps to whether it takes a value."""
    flags = {"--help": False, "-h": False}
    for parameter in command.params:
        if parameter.param_type_name == "option":
            for name in (*parameter.opts, *parameter.secondary_opts):
                flags[name] = not parameter.is_flag
    return flags


def take_overrides(words: Sequence[str], own: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Divides the words into those of the command itself, and those that set options.

    own: as `own_flags` returns them. Raises ConfigError (exit code 2) for unknown flags.
    """
    if not any(word.startswith("-") and word.partition("=")[0] not in own for word in words):
        return list(words), []  # the options are not loaded if there is nothing to look up
    from ..config.diagnostics import Diagnostic
    from ..config.source.overrides import split_words

    found: list[Diagnostic] = []
    mine, theirs, _ = split_words(words, own, found)
    if found:
        raise ConfigError(found)
    return mine, theirs


def behind_dashes(words: Sequence[str], own: Mapping[str, bool]) -> list[str]:
    """Moves everything but the command's own flags after `--`, so that `explain --max-num-seqs` has an argument.

    own: as `own_flags` returns them. After an existing `--` nothing belongs to the command itself.
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
                return mine  # its value is missing; the dashes must not become its value
        else:
            rest.append(words[index])
        index += count
    return [*mine, "--", *rest] if rest else mine
