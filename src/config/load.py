"""Loads a deployment: reads, merges and checks every layer against the declared options."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .deployment import Deployment
from .diagnostics import Diagnostic, Label, first_findings
from .engineless import without_engine
from .errors import ConfigError
from .origin import Origin, Overridden
from .presets import preset_names
from .schema.deployment import DeploymentConfig
from .schema.options import Option, options
from .schema.types import REDACTED
from .source.arguments import ArgumentSource
from .source.check import check, problems
from .source.deprecated import modernise
from .source.environment import EnvironmentSource
from .source.files import FileSource, read_files
from .source.flat import read_flat
from .source.layer import LayerSource
from .source.merge import Written, merge
from .source.node import Node
from .source.overrides import command_line
from .source.presets import PresetSource
from .source.secrets import reference_to, variables_of
from .source_text import Span
from .suggest import close, did_you_mean


def load_deployment(
    files: Sequence[Path | str],
    overrides: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Deployment:
    """Read and merge all layers. Models and the network are not touched.

    Args:
        files: manifest files, weakest first; `-` is standard input.
        overrides: words of a command line such as `--max-num-seqs`, `64`.
        env: environment variables; None: of this process.
        arguments: Python values by option name or path, between environment and command line.

    Raises ConfigError with everything that is wrong, warnings included.
    """
    env = os.environ if env is None else env
    found: list[Diagnostic] = []
    sources: list[LayerSource] = [*read_files(files, env, found)]
    read = [source for source in sources if isinstance(source, FileSource)]
    for source in (EnvironmentSource(env), ArgumentSource(arguments or {}), command_line(overrides, found)):
        found += source.found
        sources.append(source)
    named = _strongest("config", sources)
    if named is not None and (flat := read_flat(named, env, found)):
        sources.insert(len(read), flat)
        read.append(flat)
    for layer in sources:
        modernise(layer.trees, env, found)
    if preset := _preset(_strongest("preset", sources), found):
        sources.insert(0, preset)
    written = merge(source.trees for source in sources)
    values = _typed(written, env, found)
    if values.get("server.engine") == "none":
        without_engine(written, values, found)
    has_errors = any(diagnostic.is_error for diagnostic in found)
    if "model.model" not in values and not has_errors:
        found.append(_no_model(read))
    if any(diagnostic.is_error for diagnostic in found):
        raise ConfigError(first_findings(found))
    return Deployment(
        config=_config(values),
        origins=_origins(written),
        overridden={path: _overridden(options()[path], entry) for path, entry in written.items()},
        spans={path: entry.origin.span for path, entry in written.items() if entry.origin is not None},
        references={
            path: reference_to(entry.effective)
            for path, entry in written.items()
            if options()[path].is_secret and entry.effective is not None
        },
        secret_variables=_secret_variables(written),
        folders={path: entry.origin.span.source.folder for path, entry in written.items() if entry.origin is not None},
        warnings=tuple(first_findings(found)),
        sources=tuple(source.text for source in sources if isinstance(source, PresetSource | FileSource)),
    )


def _secret_variables(written: Mapping[str, Written]) -> frozenset[str]:
    """Names of variables from which secrets are read. Overridden values are included: they are secrets, too."""
    secrets = [entry for path, entry in written.items() if options()[path].is_secret]
    return frozenset(name for entry in secrets for node in entry.nodes for name in variables_of(node))


def _strongest(name: str, sources: Sequence[LayerSource]) -> Node | None:
    """The value of a header key in the strongest layer that has it; None for null."""
    nodes = (tree[name] for source in reversed(sources) for tree in reversed(source.trees) if name in tree)
    node = next(nodes, None)
    return None if node is None or node.is_null else node


def _preset(node: Node | None, found: list[Diagnostic]) -> PresetSource | None:
    if node is None or node.problem is not None or not node.text:
        return None  # a wrong type or an unset variable is reported with all other values
    if node.text in preset_names():
        return PresetSource(node.text)
    suggestions = close(node.text, preset_names())
    said = did_you_mean(suggestions) or f"there are: {', '.join(preset_names())}"
    label = Label(node.span, said)
    found.append(Diagnostic(code="C115", message=f"no such preset `{node.text}`", path="preset", labels=(label,)))
    return None


def _typed(written: Mapping[str, Written], env: Mapping[str, str], found: list[Diagnostic]) -> dict[str, Any]:
    """Typed values of all options that are set. Overridden ones are checked too: they may count later."""
    values: dict[str, Any] = {}
    for path, entry in written.items():
        option, effective = options()[path], entry.effective
        before = len(found)
        for node in entry.nodes:
            if not (node.is_null or node is effective or option.is_secret or problems(node)):
                check(option, node, env, found, is_part=True)
        if effective is None:
            continue
        if unknown := problems(effective):
            found += unknown
        elif len(found) == before or effective is entry.origin:  # else parts of it were reported
            value = check(option, effective, env, found)
            if len(found) == before:
                values[path] = value
    return values


def _no_model(files: Sequence[FileSource]) -> Diagnostic:
    labels: tuple[Label, ...] = ()
    if files:
        node = files[-1].tree.get("model")
        text = files[-1].text
        span = node.key if node is not None and node.key is not None else Span(text, 1, 1, 1, 1)
        labels = (Label(span, "add `model: {model: ...}`" if node is None else "add `model: ...` below it"),)
    return Diagnostic(
        code="C105",
        message="`model.model` is missing: a deployment must say which model it serves",
        path="model.model",
        labels=labels,
        fixes=("write it in the file, or give --model; builtin:tiny needs no download",),
    )


def _config(values: Mapping[str, Any]) -> DeploymentConfig:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        section, _, name = path.rpartition(".")
        if section:
            tree.setdefault(section, {})[name] = value
        else:
            tree[name] = value
    return DeploymentConfig(**tree)


def _origins(written: Mapping[str, Written]) -> dict[str, Origin]:
    origins: dict[str, Origin] = {}
    for path, entry in written.items():
        if entry.origin is None or entry.effective is None:
            continue
        origins[path] = entry.origin.span.origin(entry.origin.reason)
        if isinstance(entry.effective.value, dict) and options()[path].kind == "mapping":
            for key, node in _leaves(path, entry.effective):
                origins[key] = node.span.origin()
    return origins


def _leaves(path: str, node: Node) -> list[tuple[str, Node]]:
    if not isinstance(node.value, dict):
        return [(path, node)]
    return [leaf for key, child in node.value.items() for leaf in _leaves(f"{path}.{key}", child)]


def _overridden(option: Option, entry: Written) -> tuple[Overridden, ...]:
    """Weaker values of an option, strongest first, without values of mappings, whose keys are merged."""
    if option.kind == "mapping":
        return ()
    weaker = [node for node in entry.nodes if node is not entry.origin]
    return tuple(
        Overridden(value=_shown(option, node), origin=node.span.origin(node.reason)) for node in reversed(weaker)
    )


def _shown(option: Option, node: Node) -> Any:
    if option.is_secret and not node.is_null:
        return REDACTED
    return node.text if option.takes_text and node.text is not None and not node.is_null else node.plain()
