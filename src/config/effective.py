"""The effective configuration as people and programs read it: every value, where it comes from, what it replaced."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .deployment import Deployment
from .origin import DEFAULT, Layer, Origin, Overridden
from .resolve.decide import Decisions
from .resolve.resolved import Resolved
from .schema.options import Option, live_options, sections
from .source.scalars import as_yaml_value


@dataclass(frozen=True, slots=True)
class Effective:
    """One option: the value in use, as it is shown (secrets hidden, sizes and durations with units).

    `parts` are the origins of a mapping's keys, by dotted path; `is_waiting`: still `auto`, since it depends on the
    model's files, which are not here.
    """

    option: Option
    value: Any
    origin: Origin
    overridden: tuple[Overridden, ...]
    parts: Mapping[str, Origin]
    is_waiting: bool

    @property
    def said(self) -> str:
        """Where the value comes from, in words."""
        return "auto, known once the model is here" if self.is_waiting else str(self.origin)

    @property
    def is_written(self) -> bool:
        return self.origin.layer not in (Layer.DEFAULT, Layer.MODEL, Layer.RULE)


def effective_values(deployment: Deployment, decisions: Decisions) -> list[Effective]:
    """Every option in the order of the manifest. What waits for the model's files is still `auto`."""
    found: list[Effective] = []
    for path, option in live_options().items():
        if option.section in decisions.values:
            value = decisions.get(path)
        else:  # the head, and sections in which nothing is left to decide
            home = getattr(deployment.config, option.section) if option.section else deployment.config
            value = getattr(home, option.name)
        found.append(
            Effective(
                option,
                option.show(value),
                decisions.origins.get(path, DEFAULT),
                deployment.overridden.get(path, ()),
                {key: origin for key, origin in decisions.origins.items() if key.startswith(f"{path}.")},
                path in decisions.undecided,
            )
        )
    return found


def running_values(resolved: Resolved) -> list[Effective]:
    """Every option of a running deployment; keys of the manifest's head have done their work."""
    return [
        Effective(
            option,
            option.show(getattr(getattr(resolved, option.section), option.name)),
            resolved.origin(path),
            resolved.overridden.get(path, ()),
            {key: origin for key, origin in resolved.origins.items() if key.startswith(f"{path}.")},
            is_waiting=False,
        )
        for path, option in live_options().items()
        if option.section and hasattr(getattr(resolved, option.section, None), option.name)
    ]


def select(values: Sequence[Effective], path: str) -> list[Effective]:
    """Those of one section or of one option; empty if there is no such path."""
    return [entry for entry in values if entry.option.path == path or entry.option.section == path]


def as_tree(values: Sequence[Effective]) -> dict[str, Any]:
    """Sections and values as nested mappings."""
    tree: dict[str, Any] = {}
    for entry in values:
        home = tree.setdefault(entry.option.section, {}) if entry.option.section else tree
        home[entry.option.name] = entry.value
    return tree


def as_yaml(values: Sequence[Effective], with_origin: bool = False) -> str:
    """A manifest that says the same; with origins, each as a comment behind its value."""
    lines: list[tuple[str, str]] = []
    section = ""
    for entry in values:
        option = entry.option
        if option.section != section:
            section = option.section
            lines.append((f"{section}:", ""))
        indent = "  " if option.section else ""
        if isinstance(entry.value, dict) and entry.value:
            lines.append((f"{indent}{option.name}:", ""))
            lines += _block(entry.value, f"{indent}  ", option.path, entry.parts)
        else:
            lines.append((f"{indent}{option.name}: {as_yaml_value(entry.value)}", entry.said))
        lines += [("", f"  instead of {as_yaml_value(old.value)} from {old.origin}") for old in entry.overridden]
    if not with_origin:
        return "\n".join(text for text, _ in lines if text)
    width = min(48, max((len(text) for text, origin in lines if origin), default=0))
    return "\n".join(f"{text:<{width}}  # {origin}" if origin else text for text, origin in lines)


def _block(mapping: Mapping[str, Any], indent: str, path: str, origins: Mapping[str, Origin]) -> list[tuple[str, str]]:
    """A mapping key by key, each leaf with its own origin."""
    lines: list[tuple[str, str]] = []
    for key, value in mapping.items():
        here = f"{path}.{key}"
        if isinstance(value, dict) and value:
            lines += [(f"{indent}{as_yaml_value(key)}:", ""), *_block(value, f"{indent}  ", here, origins)]
        else:
            lines.append((f"{indent}{as_yaml_value(key)}: {as_yaml_value(value)}", str(origins.get(here, DEFAULT))))
    return lines


def as_records(values: Sequence[Effective]) -> list[dict[str, Any]]:
    """One record per option, for programs."""
    return [
        {
            "path": entry.option.path,
            "value": entry.value,
            "reload": entry.option.reload,
            "origin": _record(entry.origin),
            "is_waiting": entry.is_waiting,
            "overridden": [{"value": old.value, "origin": _record(old.origin)} for old in entry.overridden],
        }
        for entry in values
    ]


def digest(deployment: Deployment) -> str:
    """A hash of the written configuration, the same on every machine; secrets do not enter it.

    Nor does it matter in which files or presets a value stands: only what all of them say together.
    """
    values = deployment.config.model_dump(mode="json", include=set(sections()))
    content = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(content.encode()).hexdigest()


def _record(origin: Origin) -> dict[str, Any]:
    return {
        "layer": origin.layer.value,
        "name": origin.name,
        "line": origin.line,
        "column": origin.column,
        "reason": origin.reason,
        "text": str(origin),
    }
