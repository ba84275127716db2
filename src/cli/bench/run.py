"""`engine bench KIND`: the flags of each kind, the run, and its record."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ... import __version__
from ...config.diagnostics import FORMAT_VERSION
from ...config.exit_codes import EXIT_FAILED, EXIT_WRONG_COMMAND_LINE
from ..collect_env import cpu_line, packages
from ..console import is_coloured, print_message, print_result
from ..prepare import fail, failing
from ..startup_view import StartupView
from .defaults import DEFAULTS, Kind
from .figures import lines
from .measured import BenchError, Measurement


def run(
    kind: Kind,
    files: Sequence[str],
    overrides: Sequence[str],
    given: Mapping[str, Any],
    *,
    output: Literal["text", "json"] = "text",
) -> int:
    """given: the flags that were written. Returns the exit code: 0, or 1 if a request failed."""
    if problem := _problem(kind, files, overrides, given):
        return fail(problem, EXIT_WRONG_COMMAND_LINE)
    parameters = {**DEFAULTS[kind], **given}

    def work() -> int:
        try:
            measurement = _measure(kind, files, overrides, parameters)
        except BenchError as error:
            return fail(str(error), error.exit_code)
        parameters.pop("api_key", None)
        print_result((_record if output == "json" else _text)(kind, measurement, parameters))
        for message, count in measurement.errors.items():
            print_message(f"error: {count} requests failed: {message}")
        return EXIT_FAILED if measurement.errors else 0

    return failing(work)


def _measure(kind: Kind, files: Sequence[str], overrides: Sequence[str], parameters: Mapping[str, Any]) -> Measurement:
    if kind == "serve":
        from .serve import measure_server

        return measure_server(**parameters)
    if kind == "embed":
        from .embed import measure_embeddings

        return measure_embeddings(**parameters)
    if kind == "startup":
        from .startup import measure_startup

        return measure_startup(files, overrides, **parameters)
    view = StartupView(f"stoker {__version__}", is_live=is_coloured(sys.stderr))
    if kind == "spec":
        from .spec import measure_spec

        return measure_spec(files, overrides, view, **parameters)
    from .offline import measure_latency, measure_throughput

    return (measure_latency if kind == "latency" else measure_throughput)(files, overrides, view, **parameters)


def _problem(kind: Kind, files: Sequence[str], overrides: Sequence[str], given: Mapping[str, Any]) -> str | None:
    """Why the command line has no meaning; None if it has one."""
    for name in given:
        if name not in DEFAULTS[kind]:
            kinds = [other for other, flags in DEFAULTS.items() if name in flags]
            listed = " and ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
            return f"`--{name.replace('_', '-')}` is for {listed}, not for {kind}"
    if kind in ("serve", "embed") and (files or overrides):
        return f"{kind} measures a running server: start it with `engine up FILE`, and give its --url here"
    return None


def _record(kind: Kind, measurement: Measurement, parameters: Mapping[str, Any]) -> str:
    content = {
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "parameters": parameters,
        "model": measurement.model,
        "config_hash": measurement.config_hash,
        "environment": _environment(),
        **measurement.details,
        "results": measurement.results,
    }
    return json.dumps(content, indent=2)


def _environment() -> dict[str, Any]:
    installed = packages()
    names = ("stoker", "torch", "transformers", "triton")
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cpu": cpu_line(),
        "packages": {name: installed.get(name) for name in names},
    }


def _text(kind: Kind, measurement: Measurement, parameters: Mapping[str, Any]) -> str:
    head = f"{kind}: {measurement.model}"
    if measurement.config_hash:
        head += f", configuration {measurement.config_hash[:19]}"
    if kind == "startup":
        head += "; seconds of each phase"
    elif kind == "serve":
        unit = measurement.details["input_len_unit"]
        head += f"; prompts of {parameters['input_len'] + parameters['prefix_len']} {unit} were asked for"
    elif kind == "embed":
        unit = measurement.details["input_len_unit"]
        head += f"; {parameters['batch_size']} texts of {parameters['input_len']} {unit} in a request"
    elif kind == "spec":
        from .spec import table

        details = measurement.details
        head += f"; an answer of {details['answer_tokens']} tokens after a prompt of {details['prompt_tokens']}"
        return "\n".join([head, "", *table(measurement.results)])
    return "\n".join([head, *lines(measurement.results)])
