"""`engine config`: the effective configuration, the origin of each value, or a hash of the written values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..config import effective
from ..config.deployment import Deployment
from ..config.diagnostics import FORMAT_VERSION, show
from ..config.digest import digest
from ..config.effective import as_manifest, as_records, as_tree, effective_values, select, whole
from ..config.examine import report_on
from ..config.exit_codes import EXIT_WRONG_COMMAND_LINE
from ..config.resolve.machine import read_machine_spec
from ..config.schema.options import options, sections
from ..config.suggest import close, did_you_mean
from .console import print_message, print_result
from .default_file import default_files
from .flags.checking import ConfigFlags


def run(files: Sequence[str], overrides: Sequence[str], flags: ConfigFlags) -> int:
    """Print the values on stdout and findings on stderr. Returns the exit code."""
    path, output, show_origin = flags.path, flags.output, flags.show_origin
    if path is None and len(files) == 1 and files[0] in {*options(), *sections()} and not Path(files[0]).exists():
        path, files = files[0], default_files(overrides)  # `engine config --model x server.port`
    path = path.replace("-", "_") if path is not None else None
    if path is not None and (problem := _problem(path)):
        print_message(f"error: {problem}")
        return EXIT_WRONG_COMMAND_LINE
    report = report_on(files, overrides, read_machine_spec())
    if report.findings:
        print_message(show(report.findings) + "\n")
    if report.deployment is None or report.decisions is None:
        return report.exit_code
    if flags.sources:
        print_result(_sources(report.deployment, output))
        return report.exit_code
    if flags.hash_only:
        print_result(digest(report.deployment))
        return report.exit_code
    values = effective_values(report.deployment, report.decisions)
    if path is not None:
        values = select(values, path)
    else:
        values = effective.minimal(values, report.deployment) if flags.minimal else whole(values)
    if output == "json":
        content = {"values": as_records(values)} if show_origin else {"config": as_tree(values)}
        print_result(json.dumps({"format_version": FORMAT_VERSION, **content}, indent=2))
    elif path in options() and not show_origin:
        for entry in values:
            text = as_manifest([entry]).splitlines()[-1].partition(": ")[2]
            print_result(text)
    else:
        print_result(as_manifest(values, show_origin))
    if report.model_missing:
        print_message(f"{report.model_missing} is not on this machine: values that depend on its files are still auto")
    return report.exit_code


def _problem(path: str) -> str:
    """Why there is no value at a path; empty if it is a section, or an option with a value."""
    if path in options():
        option = options()[path]
        return f"`{path}` is deprecated and has no value: {option.reason}" if option.status == "deprecated" else ""
    if path in sections():
        return ""
    hint = did_you_mean(close(path, [*options(), *sections()]))
    return f"no such option `{path}`; {hint}" if hint else f"no such option `{path}`"


def _sources(deployment: Deployment, output: str) -> str:
    """The texts that the configuration is read from, with secrets removed."""
    if output == "json":
        texts = [{"name": text.name, "layer": text.layer.value, "text": text.redacted()} for text in deployment.sources]
        return json.dumps({"format_version": FORMAT_VERSION, "sources": texts}, indent=2)
    return "\n\n".join(f"# --- {text.place}\n{text.redacted().rstrip()}" for text in deployment.sources)
