"""The format of a deployment's answers: the one that is set, or the one that the chat template proves."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import yaml

from ..formats.detect import Detection, Render, combined, detect, find_reasoning_markers, try_format
from ..formats.format import Format, ReasoningMarkers
from ..formats.registry import UnknownFormat, find, find_reasoning
from ..formats.written import format_of
from ..input_file import read_file

_MAX_PLUGIN_BYTES = 1 << 20


class FormatProblem(ValueError):
    """A format that is set cannot be used. Raised at the start."""


def decide_format(
    wanted: str, plugin_path: str | None, reasoning_parser: str, template: str, architecture: str, render: Render
) -> Detection:
    """The format of answers, and why. Raises FormatProblem.

    wanted, plugin_path, reasoning_parser: the options. template: the source, empty if there is none.
    """
    plugin = load_plugin(plugin_path) if plugin_path else None
    if plugin is not None and wanted in ("auto", plugin.name):
        found = _set_format(plugin, "of `server.tool_parser_plugin`", template, render)
    elif wanted == "auto":
        found = detect(template, architecture, render) if template else _off("there is no chat template")
    elif wanted == "none":
        found = _without_calls("`server.tool_call_parser: none`", template, render)
    else:
        try:
            format = find(wanted)
        except UnknownFormat as error:
            raise FormatProblem(f"`server.tool_call_parser`: {error}") from None
        found = _set_format(format, "`server.tool_call_parser`", template, render)
    return found if reasoning_parser == "auto" else _with_reasoning(found, reasoning_parser)


def _off(why: str) -> Detection:
    return Detection(None, "off", why, "off", why)


def _without_calls(why: str, template: str, render: Render) -> Detection:
    markers, reasoning_why = find_reasoning_markers(template, None, render)
    return Detection(combined(None, markers), "off", why, _shown(markers), reasoning_why)


def _set_format(format: Format, why: str, template: str, render: Render) -> Detection:
    """A format that the user chose: it is used whatever the template writes, and compared with it for a warning."""
    if format.parser is not None:
        return Detection(format, format.name, why, _shown(format.reasoning), why)
    trial = try_format(format, render) if template and format.calls else None
    warnings: tuple[str, ...] = ()
    if trial is not None and trial.problem:
        warnings = (f"{why} is {format.name}, but the model's chat template writes another format: {trial.problem}",)
    markers, reasoning_why = find_reasoning_markers(template, format, render)
    if format.reasoning is not None and (markers is None or format.reasoning.begin == markers.begin):
        markers, reasoning_why = markers or format.reasoning, reasoning_why if markers else why
    trials = (trial,) if trial else ()
    return Detection(combined(format, markers), format.name, why, _shown(markers), reasoning_why, warnings, trials)


def _with_reasoning(found: Detection, name: str) -> Detection:
    why = f"`structured_outputs.reasoning_parser: {name}`"
    markers = None if name == "none" else find_reasoning(name)
    format = found.format
    if format is not None and format.name == "text":
        format = None
    return replace(found, format=combined(format, markers), reasoning=_shown(markers), reasoning_why=why)


def _shown(markers: ReasoningMarkers | None) -> str:
    return f"{markers.begin.strip()}..{markers.end}" if markers else "off"


def load_plugin(path: str) -> Format:
    """The format of a YAML file, or the class of a Python file. Raises FormatProblem."""
    where = f"`server.tool_parser_plugin`: {path}"
    try:
        return (
            _class_of(path) if path.endswith(".py") else format_of(yaml.safe_load(read_file(path, _MAX_PLUGIN_BYTES)))
        )
    except OSError as error:
        raise FormatProblem(f"{where}: {(error.strerror or 'cannot be read').lower()}") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise FormatProblem(f"{where}: {str(error).splitlines()[0]}") from None


def _class_of(path: str) -> Format:
    """A format that a class reads: the only one of the file with the methods `feed` and `finish`."""
    spec = importlib.util.spec_from_file_location(f"stoker_format_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"importing it failed: {type(error).__name__}: {error}") from None
    classes = [
        found
        for found in vars(module).values()
        if isinstance(found, type) and found.__module__ == module.__name__ and hasattr(found, "feed")
    ]
    if len(classes) != 1 or not callable(getattr(classes[0], "finish", None)):
        raise ValueError("it must define exactly one class with the methods `feed` and `finish`")
    name = getattr(classes[0], "name", Path(path).stem)
    markers = getattr(classes[0], "reasoning", None)
    tokens = tuple(getattr(classes[0], "special_tokens", ()))
    return Format(
        str(name), f"class {classes[0].__name__} of {path}", reasoning=markers, tokens=tokens, parser=classes[0]
    )
