"""From the written deployment to the resolved one: model and machine, decisions, rules, and the engine's record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..diagnostics import Diagnostic, in_order
from ..digest import digest
from ..errors import ConfigError
from ..schema.kv_events import KVEventsConfig
from ..schema.kv_transfer import KVTransferConfig
from ..schema.observability import ObservabilityConfig
from ..schema.parallel import ParallelConfig
from ..schema.structured_outputs import StructuredOutputsConfig
from .checker import broken_rules
from .decide import Decisions, decide
from .resolved import (
    MachineSpec,
    ModelFiles,
    Resolved,
    ResolvedCache,
    ResolvedCompilation,
    ResolvedDevice,
    ResolvedLoad,
    ResolvedModel,
    ResolvedScheduler,
    ResolvedServer,
)
from .values import Values

if TYPE_CHECKING:
    from ..deployment import Deployment


@dataclass(frozen=True, slots=True)
class Examined:
    """Decided values and every rule that they break; without the model's files, those that do not need them."""

    decisions: Decisions
    values: Values
    findings: tuple[Diagnostic, ...]


def examine(deployment: Deployment, model_files: ModelFiles | None, machine: MachineSpec) -> Examined:
    """Decide and check everything that can be. `model_files` is None while the model is not on this machine."""
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
    sections = decisions.values
    assert decisions.memory is not None
    return Resolved(
        model=ResolvedModel.model_validate(sections["model"]),
        load=ResolvedLoad.model_validate(sections["load"]),
        cache=ResolvedCache.model_validate(sections["cache"]),
        scheduler=ResolvedScheduler.model_validate(sections["scheduler"]),
        parallel=ParallelConfig.model_validate(sections["parallel"]),
        device=ResolvedDevice.model_validate(sections["device"]),
        compilation=ResolvedCompilation.model_validate(sections["compilation"]),
        structured_outputs=StructuredOutputsConfig.model_validate(sections["structured_outputs"]),
        kv_transfer=KVTransferConfig.model_validate(sections["kv_transfer"]),
        kv_events=KVEventsConfig.model_validate(sections["kv_events"]),
        observability=ObservabilityConfig.model_validate(sections["observability"]),
        server=ResolvedServer.model_validate(sections["server"]),
        model_files=model_files.placed(deployment.config.parallel),
        machine=decisions.machine,
        memory=decisions.memory,
        model_path=model_files.model_path,
        num_kv_blocks=decisions.num_kv_blocks,
        chat_template=examined.values.template,
        sampling_defaults={**model_files.sampling_defaults, **examined.values.sampling_overrides},
        origins=decisions.origins,
        overridden={path: entries for path, entries in deployment.overridden.items() if entries},
        secret_variables=deployment.secret_variables,
        digest=digest(deployment),
        warnings=tuple(finding.as_text() for finding in examined.findings),
    )
