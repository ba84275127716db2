"""The effective configuration as people and programs read it: every value, where it comes from, what it replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .checkpoint.chat_templates import is_template
from .deployment import Deployment
from .engineless import is_of_engine
from .origin import DEFAULT, Layer, Origin, Overridden
from .resolve.decisions import Decisions
from .resolve.resolved import Resolved
from .schema.options import Option, live_options
from .source.interpolate import escape
from .source_text import printable
from .yaml_writer import inline

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")  # user:password@ of a URL


@dataclass(frozen=True, slots=True)
class Effective:
    """One option: the value in use, as it is shown (secrets hidden, sizes and durations with units).

    `parts` are the origins of a mapping's keys, by dotted path; `is_waiting`: still `auto`, since it depends on the
    model's files, which are not here. `reference` is where a secret is read from, in the form of a manifest.
    """

    option: Option
    value: Any
    origin: Origin
    overridden: tuple[Overridden, ...]
    parts: Mapping[str, Origin]
    is_waiting: bool
    reference: Any = None

    @property
    def said(self) -> str:
        """Origin of the value, in words."""
        return "auto, known once the model is here" if self.is_waiting else str(self.origin)

    @property
    def is_written(self) -> bool:
        return self.origin.layer not in (Layer.DEFAULT, Layer.MODEL, Layer.RULE)

    @property
    def unsets_preset(self) -> bool:
        """Whether a null keeps the preset's value from taking effect."""
        return not self.is_written and any(old.origin.layer is Layer.PRESET for old in self.overridden)


def effective_values(deployment: Deployment, decisions: Decisions) -> list[Effective]:
    """Every option in the order of the manifest. What depends on missing model files is still `auto`; options of the
    engine are left out where there is none."""
    found: list[Effective] = []
    model, has_engine = deployment.model.model, deployment.server.has_engine
    for path, option in live_options().items():
        if not has_engine and is_of_engine(path):
            continue
        if option.section in Resolved.sections():
            value = decisions.get(path)
        else:  # header keys, and sections without decisions
            home = getattr(deployment.config, option.section) if option.section else deployment.config
            value = getattr(home, option.name)
        origin = decisions.origins.get(path, DEFAULT)
        if option.path_kind is not None and isinstance(value, str):
            value = _absolute(deployment, option, value)
        if path == "model.served_model_name" and not value and deployment.located("model.model") != model:
            value, origin = (model,), decisions.origins.get("model.model", DEFAULT)  # the name that clients use
        found.append(
            Effective(
                option,
                option.show(value),
                origin,
                deployment.overridden.get(path, ()),
                {key: origin for key, origin in decisions.origins.items() if key.startswith(f"{path}.")},
                path in decisions.undecided,
                deployment.references.get(path),
            )
        )
    return found


def _absolute(deployment: Deployment, option: Option, value: str) -> str:
    """A path that a file wrote relative to itself, so that the value means the same anywhere."""
    if not option.section or value != getattr(getattr(deployment.config, option.section), option.name):
        return value  # a decided one is absolute
    is_text = option.path_kind == "template" and is_template(value)
    return value if is_text else deployment.located(option.path)


def running_values(resolved: Resolved) -> list[Effective]:
    """Every option of a running deployment, without the credentials in URLs; header keys are not part of it."""
    return [
        Effective(
            option,
            _without_credentials(option.show(getattr(getattr(resolved, option.section), option.name))),
            resolved.origin(path),
            tuple(
                old.model_copy(update={"value": _without_credentials(old.value)})
                for old in resolved.overridden.get(path, ())
            ),
            {key: origin for key, origin in resolved.origins.items() if key.startswith(f"{path}.")},
            is_waiting=False,
        )
        for path, option in live_options().items()
        if option.section and hasattr(getattr(resolved, option.section, None), option.name)
    ]


def _without_credentials(value: Any) -> Any:
    if isinstance(value, str):
        return _CREDENTIALS.sub("[hidden]@", value)
    if isinstance(value, Mapping):
        return {key: _without_credentials(each) for key, each in value.items()}
    return [*map(_without_credentials, value)] if isinstance(value, list) else value


def select(values: Sequence[Effective], path: str) -> list[Effective]:
    """Values of one section or of one option; empty if there is no such path."""
    return [entry for entry in values if entry.option.path == path or entry.option.section == path]


_MERGED = ("extends", "config")  # files whose values are all in one manifest now; a preset stays, and stays weaker


def whole(values: Sequence[Effective]) -> list[Effective]:
    """All values that a manifest needs. A refused option has its default, so it is left out unless written."""
    return [
        entry
        for entry in values
        if (entry.is_written or entry.option.status == "effective") and entry.option.path not in _MERGED
    ]


def minimal(values: Sequence[Effective], deployment: Deployment) -> list[Effective]:
    """The values of the shortest manifest with the same meaning: what was written, without the values of the preset.

    A written value that a decision replaced, such as sizes of CUDA graphs on a CPU, is the written one.
    """
    kept: list[Effective] = []
    for entry in whole(values):
        origin = deployment.origin(entry.option.path)
        if origin.layer not in (Layer.DEFAULT, Layer.PRESET):
            kept.append(entry if entry.is_written else replace(entry, value=_written(deployment, entry), origin=origin))
        elif entry.unsets_preset:
            kept.append(replace(entry, value=None))
        elif entry.is_written and origin.layer is Layer.DEFAULT:  # the name of a model whose path was made absolute
            kept.append(entry)
    return kept


def _written(deployment: Deployment, entry: Effective) -> Any:
    option = entry.option
    return option.show(getattr(getattr(deployment.config, option.section), option.name))


def as_tree(values: Sequence[Effective]) -> dict[str, Any]:
    """Sections and values as nested mappings."""
    tree: dict[str, Any] = {}
    for entry in values:
        home = tree.setdefault(entry.option.section, {}) if entry.option.section else tree
        home[entry.option.name] = entry.value
    return tree


def as_manifest(values: Sequence[Effective], with_origin: bool = False) -> str:
    """A manifest with these values; with origins, each as a comment after its value.

    `$` is escaped, since a manifest is interpolated when it is read. A secret is written as the reference that it was
    read from; one that was written out is shown as asterisks, which a reader of the manifest refuses.
    """
    lines: list[tuple[str, str]] = []
    section = ""
    for entry in values:
        option = entry.option
        if option.section != section:
            section = option.section
            lines.append((f"{section}:", ""))
        indent = "  " if option.section else ""
        value = escape(entry.value if entry.reference is None else entry.reference)
        if isinstance(value, dict) and value and not option.is_secret:
            lines.append((f"{indent}{option.name}:", ""))
            lines += _block(value, f"{indent}  ", option.path, entry.parts)
        else:
            lines.append((f"{indent}{option.name}: {inline(value)}", entry.said))
        lines += [("", f"  instead of {inline(old.value)} from {old.origin}") for old in entry.overridden]
    if not with_origin:
        return "\n".join(text for text, _ in lines if text)
    width = min(48, max((len(text) for text, origin in lines if origin), default=0))
    return "\n".join(f"{text:<{width}}  # {printable(origin)}" if origin else text for text, origin in lines)


def _block(mapping: Mapping[str, Any], indent: str, path: str, origins: Mapping[str, Origin]) -> list[tuple[str, str]]:
    """A mapping key by key, each leaf with its own origin."""
    lines: list[tuple[str, str]] = []
    for key, value in mapping.items():
        here = f"{path}.{key}"
        if isinstance(value, dict) and value:
            lines += [(f"{indent}{inline(key)}:", ""), *_block(value, f"{indent}  ", here, origins)]
        else:
            lines.append((f"{indent}{inline(key)}: {inline(value)}", str(origins.get(here, DEFAULT))))
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


def _record(origin: Origin) -> dict[str, Any]:
    return {
        "layer": origin.layer.value,
        "name": origin.name,
        "line": origin.line,
        "column": origin.column,
        "reason": origin.reason,
        "text": str(origin),
    }
