"""Findings as SARIF 2.1.0, the format in which code hosts and editors read the results of checkers.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) version 2.1.0, sections 3.13-3.30.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from ..version import __version__
from .codes import CODES
from .diagnostics import Diagnostic, Label
from .resolve.rules import RULES

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_TITLES = {**{code.code: code.title for code in CODES.values()}, **{rule.id: rule.title for rule in RULES}}
_MEANINGS = {**{code.code: code.meaning for code in CODES.values()}, **{rule.id: rule.why for rule in RULES}}


def as_sarif(findings: Sequence[Diagnostic]) -> str:
    """One run with all findings, and descriptions of the rules that occur."""
    codes = sorted({finding.code for finding in findings})
    run = {
        "tool": {"driver": {"name": "stoker", "version": __version__, "rules": [_rule(code) for code in codes]}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, codes.index(finding.code)) for finding in findings],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(code: str) -> dict[str, Any]:
    return {
        "id": code,
        "shortDescription": {"text": _TITLES.get(code, code)},
        "fullDescription": {"text": _MEANINGS.get(code, code)},
        "help": {"text": f"engine explain {code}"},
    }


def _result(finding: Diagnostic, index: int) -> dict[str, Any]:
    said = [finding.message, *(label.text for label in finding.labels if label.text), *finding.notes, *finding.fixes]
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": ". ".join(said)},
    }
    places = [_location(label) for label in finding.labels if label.span.source.is_numbered]
    if places:
        result["locations"] = places[:1]
    if places[1:]:
        result["relatedLocations"] = places[1:]
    return result


def _location(label: Label) -> dict[str, Any]:
    span = label.span
    region: dict[str, Any] = {"startLine": span.line, "startColumn": span.column, "endColumn": span.line_end}
    place: dict[str, Any] = {
        "artifactLocation": {"uri": quote(PurePath(span.source.name).as_posix(), errors="surrogateescape")}
    }
    place["region"] = region
    location: dict[str, Any] = {"physicalLocation": place}
    if label.text:
        location["message"] = {"text": label.text}
    return location
