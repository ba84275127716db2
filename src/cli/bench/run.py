"""`engine bench KIND`: which flags a kind takes, the run, and the record of it."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ... import __version__
from ...config.diagnostics import FORMAT_VERSION
from ...config.errors import EXIT_FAILED, EXIT_WRONG_COMMAND_LINE
from ..collect_env import cpu_line, packages
from ..console import is_coloured, say, tell
from ..prepare import fail, failing
from ..startup_view import StartupView
from .figures import lines
from .measured import BenchError, Measurement

_SIZES = {"input_len": 128, "output_len": 128, "num_warmup": 1, "seed": 0}
_MANY = {**_SIZES, "num_prompts": 100, "length_spread": 0.0, "prefix_len": 0}
DEFAULTS: dict[str, dict[str, Any]] = {
    "latency": {**_SIZES, "batch_size": 8, "num_iters": 10},
    "throughput": _MANY,
    "serve": {
        **_MANY,
        "url": "http://localhost:8000/v1",
        "model_name": None,
        "api_key": None,
        "endpoint": "chat",
        "request_rate": None,
        "max_concurrency": 32,
        "ignore_eos": False,
    },
    "startup": {"num_runs": 3},
}


def run(
    kind: str, files: Sequence[str], overrides: Sequence[str], given: Mapping[str, Any], *, output: str = "text"
) -> int:
    """given: the flags that were written. Returns the exit code: 0, 1 if a request failed."""
    if problem := _problem(kind, files, overrides, given, output):
        return fail(problem, EXIT_WRONG_COMMAND_LINE)
    parameters = {**DEFAULTS[kind], **given}

    def work() -> int:
        try:
            measurement = _measure(kind, files, overrides, parameters)
        except BenchError as error:
            return fail(str(error), error.exit_code)
        parameters.pop("api_key", None)
        record = {
            "format_version": FORMAT_VERSION,
            "kind": kind,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "parameters": parameters,
            "model": measurement.model,
            "config_hash": measurement.config_hash,
            "environment": _environment(),
            **measurement.facts,
            "results": measurement.results,
        }
        say(json.dumps(record, indent=2) if output == "json" else _text(kind, measurement))
        for message, count in measurement.errors.items():
            tell(f"error: {count} requests failed: {message}")
        return EXIT_FAILED if measurement.errors else 0

    return failing(work)


def _measure(kind: str, files: Sequence[str], overrides: Sequence[str], parameters: Mapping[str, Any]) -> Measurement:
    if kind == "serve":
        from .serve import measure_server

        return measure_server(**parameters)
    if kind == "startup":
        from .startup import measure_startup

        return measure_startup(files, overrides, **parameters)
    from .offline import measure_latency, measure_throughput

    view = StartupView(f"stoker {__version__}", is_live=is_coloured(sys.stderr))
    return (measure_latency if kind == "latency" else measure_throughput)(files, overrides, view, **parameters)


def _problem(
    kind: str, files: Sequence[str], overrides: Sequence[str], given: Mapping[str, Any], output: str
) -> str | None:
    if kind not in DEFAULTS:
        return f"no such measurement `{kind}`; there are {', '.join(DEFAULTS)}"
    if output not in ("text", "json"):
        return f"no such output `{output}`; there are text and json"
    if given.get("endpoint", "chat") not in ("chat", "completions"):
        return f"--endpoint {given['endpoint']}: there are chat and completions"
    for name in given:
        if name not in DEFAULTS[kind]:
            kinds = [other for other, flags in DEFAULTS.items() if name in flags]
            return f"`--{name.replace('_', '-')}` is for {' and '.join(kinds)}, not for {kind}"
    if kind == "serve" and (files or overrides):
        return "serve measures a running server: give a file and options to `engine up`, and its --url here"
    return None


def _environment() -> dict[str, Any]:
    installed = packages()
    names = ("stoker", "torch", "transformers", "triton")
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cpu": cpu_line(),
        "packages": {name: installed.get(name) for name in names},
    }


def _text(kind: str, measurement: Measurement) -> str:
    head = f"{kind}: {measurement.model}"
    if measurement.config_hash:
        head += f", configuration {measurement.config_hash[:19]}"
    if kind == "startup":
        head += "; seconds of each phase"
    return "\n".join([head, *lines(measurement.results)])
