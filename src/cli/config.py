"""`engine config`: the effective configuration, where each value comes from, or a hash of what was written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..config.deployment import Deployment
from ..config.diagnostics import FORMAT_VERSION, show
from ..config.effective import as_records, as_tree, as_yaml, digest, effective_values, select
from ..config.errors import EXIT_WRONG_COMMAND_LINE
from ..config.examine import report_on
from ..config.resolve.machine import read_machine_facts
from ..config.schema.options import options, sections
from ..config.suggest import close, did_you_mean
from .console import say, tell


def run(
    files: Sequence[str],
    overrides: Sequence[str],
    *,
    path: str | None = None,
    show_origin: bool = False,
    output: str = "yaml",
    minimal: bool = False,
    hash_only: bool = False,
    sources: bool = False,
) -> int:
    """Print the values on stdout, what is wrong with them on stderr. Returns the exit code."""
    if output not in ("yaml", "json"):
        tell(f"error: no such output `{output}`; there are yaml and json")
        return EXIT_WRONG_COMMAND_LINE
    if path is None and len(files) == 1 and files[0] in {*options(), *sections()} and not Path(files[0]).exists():
        path, files = files[0], []  # `engine config --model x server.port`
    path = path.replace("-", "_") if path is not None else None
    if path is not None and path not in options() and path not in sections():
        hint = did_you_mean(close(path, [*options(), *sections()]))
        tell(f"error: no such option `{path}`{'; ' * bool(hint)}{hint}")
        return EXIT_WRONG_COMMAND_LINE
    if path in options() and options()[path].status == "deprecated":
        option = options()[path]
        tell(f"error: `{path}` is deprecated and has no value: {option.reason}")
        return EXIT_WRONG_COMMAND_LINE
    report = report_on(files, overrides, read_machine_facts())
    if report.findings:
        tell(show(report.findings) + "\n")
    if report.deployment is None or report.decisions is None:
        return report.exit_code
    if sources:
        say(_sources(report.deployment, output))
        return report.exit_code
    if hash_only:
        say(digest(report.deployment))
        return report.exit_code
    values = effective_values(report.deployment, report.decisions)
    if path is not None:
        values = select(values, path)
    elif minimal:
        values = [entry for entry in values if entry.is_written]
    else:  # what a refused option can hold, this build does anyway
        values = [entry for entry in values if entry.is_written or entry.option.status == "effective"]
    if output == "json":
        content = {"values": as_records(values)} if show_origin else {"config": as_tree(values)}
        say(json.dumps({"format_version": FORMAT_VERSION, **content}, indent=2))
    elif path in options() and not show_origin:
        for entry in values:
            text = as_yaml([entry]).splitlines()[-1].partition(": ")[2]
            say(text)
    else:
        say(as_yaml(values, show_origin))
    if report.model_missing:
        tell(f"{report.model_missing} is not on this machine: what its files decide is still auto")
    return report.exit_code


def _sources(deployment: Deployment, output: str) -> str:
    """The texts that the configuration is made of, as they were written, less their secrets."""
    if output == "json":
        texts = [{"name": text.name, "layer": text.layer.value, "text": text.redacted()} for text in deployment.sources]
        return json.dumps({"format_version": FORMAT_VERSION, "sources": texts}, indent=2)
    return "\n\n".join(f"# --- {text.place}\n{text.redacted().rstrip()}" for text in deployment.sources)
