"""`engine validate`: all errors of each deployment, in one run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from ..config.diagnostics import FORMAT_VERSION, show
from ..config.examine import Report, report_on
from ..config.exit_codes import EXIT_INVALID_CONFIGURATION, EXIT_WRONG_COMMAND_LINE
from ..config.resolve.machine import read_machine_spec
from ..config.sarif import as_sarif
from .console import print_message, print_result


def run(
    files: Sequence[str],
    overlays: Sequence[str],
    overrides: Sequence[str],
    *,
    output: Literal["text", "json", "github", "sarif"] = "text",
    deny_warnings: bool = False,
) -> int:
    """Check each file together with the overlays and overrides. Returns the exit code: the one that all share, or 78.

    The deployment may be for another machine, so what only this machine lacks is a warning.
    """
    if not files and not overlays and not overrides:
        print_message("error: nothing to validate: give a file\n  = more: engine validate --help")
        return EXIT_WRONG_COMMAND_LINE
    machine = read_machine_spec()
    layers = [[file, *overlays] for file in files] or [list(overlays)]
    reports = [(names, report_on(names, overrides, machine, is_elsewhere=True)) for names in layers]
    if output == "json":
        print_result(_json(reports))
    elif output == "sarif":
        print_result(as_sarif([finding for _, report in reports for finding in report.findings]))
    elif output == "github":
        for _, report in reports:
            if report.findings:
                print_result(show(report.findings, "github"))
    else:
        for names, report in reports:
            print_result(_text(names, report))
    denied = EXIT_INVALID_CONFIGURATION if deny_warnings else 0
    codes = [report.exit_code or (denied if report.findings else 0) for _, report in reports]
    return codes[0] if len(set(codes)) == 1 else EXIT_INVALID_CONFIGURATION


def _name(names: Sequence[str]) -> str:
    return " + ".join(names) or "command line"


def _text(names: Sequence[str], report: Report) -> str:
    errors, warnings = len(report.errors), len(report.findings) - len(report.errors)
    parts = [show(report.findings), ""] if report.findings else []
    counted = ((errors, "error"), (warnings, "warning"))
    counts = [f"{count} {word if count == 1 else word + 's'}" for count, word in counted if count]
    verdict = "invalid" if errors else "valid"
    parts.append(f"{_name(names)}: {', '.join([verdict, *counts])}")
    if report.model_missing:
        parts.append(f"  {report.model_missing} is not on this machine: rules that need its files were not checked")
    return "\n".join(parts)


def _json(reports: Sequence[tuple[Sequence[str], Report]]) -> str:
    return json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "valid": not any(report.errors for _, report in reports),
            "deployments": [
                {
                    "files": list(names),
                    "valid": not report.errors,
                    "model_missing": report.model_missing,
                    "diagnostics": [finding.as_dict() for finding in report.findings],
                }
                for names, report in reports
            ],
        },
        indent=2,
    )
