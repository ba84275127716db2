"""A first deployment file: a dozen lines to grow from, or every option with what it does.

Prose lines start with `# `, options that are not in force with `#name:`, so that taking one character away makes an
option count.
"""

from __future__ import annotations

import textwrap
from typing import Any

from .schema.deployment import API_VERSION
from .schema.options import Option, options, options_of, sections
from .source.interpolate import escape
from .source.presets import PresetSource
from .yaml_writer import comment, inline

SCHEMA_FILE = "deployment.schema.json"  # beside the deployment
_COST = {"hot": "", "model": "a change loads the model again", "process": "a change restarts the server"}
_FIRST = ("model.max_model_len", "scheduler.max_num_seqs", "server.port", "server.api_key")


def starter(model: str, preset: str | None = None, *, is_full: bool = False, name: str = "deploy.yaml") -> str:
    """The file's text. `name` is what the file will be called."""
    lines = [
        f"# yaml-language-server: $schema={SCHEMA_FILE}",
        "#",
        f"# Check it:  engine validate {name}      Serve it:  engine up {name}",
        "# What an option does, and all there are:  engine explain max_model_len,  engine explain options",
    ]
    if is_full:
        lines.append("# An option after a # has its default: remove the # and write your own value.")
    lines += [f"apiVersion: {API_VERSION}", "kind: Deployment"]
    if preset is not None:
        lines += [*comment(f"Below everything written here: {PresetSource(preset).title}"), f"preset: {preset}"]
    elif is_full:
        lines += ["", *comment(options()["preset"].description), "#preset: cpu-laptop"]
    written = {"model.model": escape(model)}
    return "\n".join([*lines, *(_full(written) if is_full else _minimal(written))]) + "\n"


def _minimal(written: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for section in sections():
        chosen = [option for option in options_of(section) if option.path in written or option.path in _FIRST]
        if not chosen:
            continue
        lines.append(f"{section}:")
        for option in chosen:
            if option.path in written:
                lines.append(f"  {option.name}: {inline(written[option.path])}")
            else:
                said = textwrap.shorten(option.description.partition(". ")[0], 70, placeholder=" ...")
                lines.append(f"  #{_line(option)}  # {said}")
    return lines


def _full(written: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for section, declared in sections().items():
        effective = [option for option in options_of(section) if option.status == "effective"]
        if not effective:
            continue
        lines += ["", *comment((declared.__doc__ or "").strip().partition("\n")[0]), f"{section}:"]
        for option in effective:
            lines += comment(option.description, "  ")
            lines += comment(_facts(option), "  ")
            if option.path in written:
                lines.append(f"  {option.name}: {inline(written[option.path])}")
            else:
                lines.append(f"  #{_line(option)}")
    return lines


def _facts(option: Option) -> str:
    example = next((text for text in option.examples if text != option.default), None)
    parts = [
        f"Takes {option.allowed}",
        f"in {option.unit}" if option.unit else "",
        f"for example {inline(option.show(example))}" if example is not None else "",
        _COST[option.reload],
    ]
    return "; ".join(part for part in parts if part) + "."


def _line(option: Option) -> str:
    """The option at its default; a secret has no default to show, and an empty list says the same."""
    default = [] if option.is_secret and option.kind == "texts" else option.show(option.default)
    return f"{option.name}: {inline(default)}"
