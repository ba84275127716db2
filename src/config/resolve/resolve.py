"""From what was written to what will run: facts, decisions, rules, and the record that the engine is started with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..diagnostics import Diagnostic, in_order
from ..effective import digest
from ..errors import ConfigError
from ..schema.parallel import ParallelConfig
from .checker import broken_rules
from .decide import Decisions, decide
from .facts import read_facts
from .resolved import (
    MachineFacts,
    ModelFacts,
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
    """Decided values and every rule that they break; with no model facts, as far as that goes."""

    decisions: Decisions
    values: Values
    findings: tuple[Diagnostic, ...]


def read_model_facts(deployment: Deployment) -> ModelFacts:
    """Facts of the model that the deployment names. Reads config.json, generation_config.json and weight headers.

    Raises ModelFilesError, and ModelNotLocal for a hub id that `fetch_model` has to bring first.
    """
    return read_facts(deployment)


def examine(deployment: Deployment, facts: ModelFacts | None, machine: MachineFacts) -> Examined:
    """Decide and check as much as can be. `facts` is None while the model is not on this machine."""
    decisions = decide(deployment, facts, machine)
    values = Values(deployment, decisions)
    findings = in_order([*deployment.warnings, *broken_rules(deployment, values)])
    return Examined(decisions, values, tuple(findings))


def resolve_deployment(deployment: Deployment, facts: ModelFacts, machine: MachineFacts) -> Resolved:
    """Every value decided and every rule checked. Raises ConfigError with all that is wrong."""
    examined = examine(deployment, facts, machine)
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
        server=ResolvedServer.model_validate(sections["server"]),
        facts=facts,
        machine=machine,
        memory=decisions.memory,
        model_path=facts.model_path,
        num_kv_blocks=decisions.num_kv_blocks,
        chat_template=examined.values.template_text,
        sampling_defaults={**facts.sampling_defaults, **examined.values.sampling_overrides},
        origins=decisions.origins,
        overridden={path: entries for path, entries in deployment.overridden.items() if entries},
        digest=digest(deployment),
        warnings=tuple(finding.as_text() for finding in examined.findings),
    )
