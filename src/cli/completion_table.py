"""The table that completion reads: verbs, flags, values, topics. Built from the declarations and cached in a file.

Building it takes as long as importing all declarations, which is too slow for a key press. The cache contains the state
of the files it was built from, so that a new release or a new option invalidates it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .completion_words import Table

if TYPE_CHECKING:
    from ..config.schema.options import Option
    from .parameters import Commands

_PACKAGE = Path(__file__).parent.parent
_MADE_FROM = (
    "cli",
    "cli/flags",
    "cli/verbs",
    "config",
    "config/schema",
    "config/plan/device_profiles",
    "config/presets",
    "config/resolve/rule_tables",
)


def read_table(commands: Callable[[], Commands], with_options: Callable[[], Iterable[str]]) -> Table:
    """Read the table from the cache if it is fresh; otherwise build it and, if possible, cache it."""
    cache = _cache_file()
    if cache is not None:
        with contextlib.suppress(OSError, ValueError):
            table = json.loads(cache.read_text("utf-8"))
            if isinstance(table, dict) and table.get("state") == _state():
                return table
    table = {"state": _state(), **build_table(commands(), with_options())}
    if cache is not None:
        from .files import write_whole

        with contextlib.suppress(OSError):
            cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(cache, json.dumps(table))
    return table


def _cache_file() -> Path | None:
    root = os.environ.get("XDG_CACHE_HOME")
    home = os.environ.get("HOME")
    if not root and not home:
        return None
    return Path(root or os.path.join(str(home), ".cache")) / "stoker" / "completion.json"


def _state() -> list[str]:
    """The folder of this program and the time of the last change to its declarations."""
    newest = 0
    for folder in _MADE_FROM:
        with os.scandir(_PACKAGE / folder) as entries:
            newest = max([newest, *(entry.stat().st_mtime_ns for entry in entries if entry.is_file())])
    return [str(_PACKAGE), str(newest)]


def build_table(commands: Commands, with_options: Iterable[str]) -> Table:
    """Everything that can be completed."""
    from ..config.codes import CODES
    from ..config.presets import preset_names
    from ..config.resolve.rules import BY_ID
    from ..config.schema.options import options, sections

    live = {path: option for path, option in options().items() if option.status == "effective"}
    named = {path: _sentence(option.description) for path, option in live.items() if option.section}
    parts = {name: _sentence(section.__doc__ or "") for name, section in sections().items()}
    lists = {**dict.fromkeys(("options", "rules", "codes", "device-profiles"), "a list"), "presets": "preset"}
    table: Table = {
        "options": {
            path: {
                "help": _sentence(option.description),
                "values": _option_values(path, option, preset_names()),
                "files": option.path_kind is not None,
                "is_switch": option.kind == "flag",
            }
            for path, option in live.items()
        },
        "flags": {flag: path for path, option in live.items() for flag in option.flags},
        "paths": {**parts, **named},
        "models": ["builtin:tiny"],
        "first_topics": {**lists, **parts},  # where nothing has been typed: all would be too many to choose from
        "topics": {
            **lists,
            **dict.fromkeys(preset_names(), "preset"),
            **{path.rpartition(".")[2]: text for path, text in named.items()},
            **parts,
            **named,
            **{option.flags[0]: _sentence(option.description) for option in live.values() if option.flags},
            **{name: rule.title for name, rule in BY_ID.items()},
            **{name: code.title for name, code in CODES.items()},
        },
    }
    table["verbs"] = {
        name: _verb(name, command, name in with_options, preset_names()) for name, command in commands.items()
    }
    return table


def _option_values(path: str, option: Option, presets: Sequence[str]) -> list[str]:
    if path == "preset":
        return list(presets)
    if path == "model.model":
        return ["builtin:tiny"]
    if option.kind == "flag":
        return ["true", "false", *map(str, option.choices)]
    return [str(choice) for choice in option.choices]


def _verb(name: str, command: Any, takes_overrides: bool, presets: Sequence[str]) -> Table:
    from ..config.plan.devices import THIS_MACHINE, profiles
    from .parameters import parameter_type

    by_metavar = {"PRESET": presets, "NAME|FILE": (THIS_MACHINE, *profiles())}
    flags: Table = {"--help": {"help": "Show this message and exit", "values": [], "files": False, "is_switch": True}}
    arguments = []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        kind, choices = parameter_type(command, parameter)
        if parameter.param_type_name == "argument":
            metavar = (parameter.metavar or parameter.name).rstrip(".").upper()
            arguments.append({"kind": metavar, "is_many": parameter.nargs == -1, "values": list(choices)})
            continue
        takes = {
            "help": _sentence(parameter.help or ""),
            "values": list(by_metavar.get(parameter.metavar, choices)),
            "files": "FILE" in (parameter.metavar or "").split("|") or "--model" in parameter.opts,
            "is_switch": kind == "flag",
        }
        flags |= dict.fromkeys((*parameter.opts, *parameter.secondary_opts), takes)
    return {
        "help": _sentence(command.help or ""),
        "flags": flags,
        "arguments": arguments,
        "overrides": takes_overrides,
        "topics": name == "explain",
    }


def _sentence(text: str) -> str:
    """The first sentence, on one line."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")
