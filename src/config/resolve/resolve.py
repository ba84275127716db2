"""Turns the written deployment into the resolved one: model and machine, decisions, rules, and the engine's record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..diagnostics import Diagnostic, in_order
from ..digest import digest
from ..errors import ConfigError
from .checker import broken_rules
from .decide import decide
from .decisions import Decisions
from .described_model import ModelFiles
from .machine_spec import MachineSpec
from .resolved import Resolved
from .values import Values

if TYPE_CHECKING:
    from ..deployment import Deployment


@dataclass(frozen=True, slots=True)
class Examined:
    """Decided values and every rule that they break; without the model's files, only rules that do not need them."""

    decisions: Decisions
    values: Values
    findings: tuple[Diagnostic, ...]


def examine(deployment: Deployment, model_files: ModelFiles | None, machine: MachineSpec) -> Examined:
    """Decide and check everything that can be. `model_files` is None while the model is not on this machine."""
    if not deployment.server.has_engine:
        machine = machine.without_limits()
    decisions = decide(deployment, model_files and model_files.placed(deployment.config.parallel), machine)
    values = Values(deployment, decisions)
    findings = in_order([*deployment.warnings, *broken_rules(deployment, values)])
    return Examined(decisions, values, tuple(findings))


def resolve_deployment(deployment: Deployment, model_files: ModelFiles, machine: MachineSpec) -> Resolved:
    """Decide every value and check every rule. Raises ConfigError with all findings."""
    examined = examine(deployment, model_files, machine)
    if any(finding.is_error for finding in examined.findings):
        raise ConfigError(examined.findings)
    decisions = examined.decisions
    sections: dict[str, Any] = {
        name: kind.model_validate(dict(getattr(decisions, name))) for name, kind in Resolved.sections().items()
    }
    assert decisions.memory is not None
    return Resolved(
        **sections,
        model_files=model_files.placed(deployment.config.parallel).drafted_by(decisions.speculative.method),
        machine=decisions.machine,
        memory=decisions.memory,
        model_path=model_files.model_path,
        num_kv_blocks=decisions.memory.num_kv_blocks,
        chat_template=examined.values.template,
        sampling_defaults={**model_files.sampling_defaults, **examined.values.sampling_overrides},
        origins=decisions.origins,
        overridden={path: entries for path, entries in deployment.overridden.items() if entries},
        secret_variables=deployment.secret_variables,
        digest=digest(deployment),
        warnings=tuple(finding.as_text() for finding in examined.findings),
    )
