"""From what was written to what will run: facts, decisions, rules, and the record that the engine is started with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..schema.deployment import DeploymentConfig
from .decide import decide
from .facts import read_facts
from .resolved import (
    MachineFacts,
    ModelFacts,
    Resolved,
    ResolvedCache,
    ResolvedDevice,
    ResolvedLoad,
    ResolvedModel,
    ResolvedScheduler,
    ResolvedServer,
)

if TYPE_CHECKING:
    from ..load import Deployment


def read_model_facts(deployment: Deployment) -> ModelFacts:
    """Facts of the model that the deployment names. Reads config.json, generation_config.json and weight headers.

    Raises ModelFilesError, and ModelNotLocal for a hub id that `fetch_model` has to bring first.
    """
    return read_facts(deployment.config)


def resolve(deployment: Deployment, facts: ModelFacts, machine: MachineFacts) -> Resolved:
    """Every value decided and every rule checked. Raises ConfigError with all that is wrong."""
    done = decide(deployment.config, deployment.origins, facts, machine)
    assert done.memory is not None
    values = done.values
    return Resolved(
        model=ResolvedModel.model_validate(values["model"]),
        load=ResolvedLoad.model_validate(values["load"]),
        cache=ResolvedCache.model_validate(values["cache"]),
        scheduler=ResolvedScheduler.model_validate(values["scheduler"]),
        device=ResolvedDevice.model_validate(values["device"]),
        server=ResolvedServer.model_validate(values["server"]),
        facts=facts,
        machine=machine,
        memory=done.memory,
        model_path=facts.model_path,
        num_kv_blocks=done.num_kv_blocks,
        sampling_defaults={**facts.sampling_defaults, **values["model"]["override_generation_config"]},
        origins=done.origins,
    )
