"""Examines a deployment: everything that can be found out on this machine, without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .deployment import Deployment
from .diagnostics import Diagnostic, Label, in_order
from .errors import ConfigError, ModelFilesError, ModelNotLocal
from .load import load_deployment
from .resolve.decisions import Decisions
from .resolve.described_model import ModelFiles
from .resolve.machine_spec import MachineSpec
from .resolve.model_files import read_model_files
from .resolve.resolve import examine
from .resolve.rules import RULES

ABOUT_MACHINE = frozenset(rule.id for rule in RULES if rule.about_machine)


@dataclass(frozen=True, slots=True)
class Report:
    """What was found.

    Attributes:
        deployment: None if it could not be loaded.
        decisions: what `auto` became as far as it can be known; None without a deployment.
        model_missing: the hub id whose files are not on this machine, so that what they decide is not known.
    """

    findings: tuple[Diagnostic, ...]
    deployment: Deployment | None = None
    decisions: Decisions | None = None
    model_missing: str | None = None

    @property
    def errors(self) -> list[Diagnostic]:
        return [finding for finding in self.findings if finding.is_error]

    @property
    def exit_code(self) -> int:
        return ConfigError(self.errors).exit_code if self.errors else 0


def report_on(
    files: Sequence[Path | str],
    overrides: Sequence[str],
    machine: MachineSpec,
    env: Mapping[str, str] | None = None,
    is_elsewhere: bool = False,
    is_planned: bool = False,
) -> Report:
    """Load, decide and check; whatever goes wrong is a finding.

    Args:
        is_planned: weight files that are missing are described by config.json.
        is_elsewhere: the deployment is meant for another machine, so what only this one lacks is a warning.
    """
    try:
        deployment = load_deployment(files, overrides, env)
    except ConfigError as error:
        return Report(error.diagnostics)
    model_files: ModelFiles | None = None
    missing: str | None = None
    faults: list[Diagnostic] = []
    try:
        model_files = read_model_files(deployment, describes=is_planned)
    except ModelNotLocal as error:
        missing = error.repository
    except ModelFilesError as error:
        span = deployment.spans.get(error.option)
        labels = (Label(span),) if span is not None else ()
        faults.append(Diagnostic(code=error.code, message=str(error), path=error.option, labels=labels))
    examined = examine(deployment, model_files, machine)
    findings = [*faults, *examined.findings]
    if is_elsewhere:
        findings = [
            replace(finding, severity="warning") if finding.code in ABOUT_MACHINE else finding for finding in findings
        ]
    return Report(tuple(in_order(findings)), deployment, examined.decisions, missing)
