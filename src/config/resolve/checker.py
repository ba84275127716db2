"""Checking all rules over decided values; each finding points at the lines of all options involved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..diagnostics import Diagnostic, Label
from ..origin import DEFAULT
from ..schema.options import options
from .message_values import message_values
from .rule import Rule
from .rules import RULES
from .values import Values

if TYPE_CHECKING:
    from ..deployment import Deployment


def broken_rules(deployment: Deployment, values: Values) -> list[Diagnostic]:
    """A finding for every rule that does not hold. Rules that need the model's files wait for them."""
    decisions = values.decisions
    return [
        _finding(rule, problem, deployment, values)
        for rule in RULES
        if not (rule.needs_model and decisions.model_files is None)
        and not decisions.undecided.intersection(rule.fields)
        and (problem := rule.is_broken(values))
    ]


def _finding(rule: Rule, problem: bool | str, deployment: Deployment, values: Values) -> Diagnostic:
    shown = message_values(values)
    shown |= {"problem": problem} | (rule.said(values) if rule.said else {})
    labels = [Label(span) for path in rule.fields if (span := deployment.spans.get(path)) is not None]
    return Diagnostic(
        code=rule.id,
        severity=rule.severity,
        message=rule.message.format_map(shown),
        path=rule.fields[0],
        labels=tuple(labels),
        notes=tuple(_note(path, values) for path in rule.fields if _counts(path, deployment, values)),
        fixes=tuple(fix for template in rule.fixes if (fix := template.format_map(shown))),
        exit_code=rule.exit_code,
    )


def _counts(path: str, deployment: Deployment, values: Values) -> bool:
    """Whether an unwritten value is worth showing: it was decided, or its default is not empty."""
    return path not in deployment.spans and values.decisions.get(path) not in (None, (), {})


def _note(path: str, values: Values) -> str:
    origin = values.decisions.origins.get(path, DEFAULT)
    value = options()[path].show(values.decisions.get(path))
    return f"`{path}` is {str(value).lower() if isinstance(value, bool) else value} ({origin})"
