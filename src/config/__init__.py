"""Reading a deployment: what was written, what follows from it, and what is wrong with it. Imports no torch.

deployment = load_deployment(["deploy.yaml"])                     # Deployment, or ConfigError
facts = read_model_facts(deployment)                              # ModelFacts, or ModelFilesError
resolved = resolve(deployment, facts, read_machine_facts())       # Resolved, or ConfigError
"""

from __future__ import annotations

from .errors import ConfigError, DeploymentError, ModelFilesError, ModelNotLocal
from .fetch import fetch_model
from .load import Deployment, load_deployment
from .origin import Layer, Origin
from .resolve.machine import read_machine_facts
from .resolve.resolve import read_model_facts, resolve
from .resolve.resolved import MachineFacts, Measured, MemoryPlan, ModelFacts, Resolved, RopeFacts
from .schema.server import ServerConfig

__all__ = [
    "ConfigError",
    "Deployment",
    "DeploymentError",
    "Layer",
    "MachineFacts",
    "Measured",
    "MemoryPlan",
    "ModelFacts",
    "ModelFilesError",
    "ModelNotLocal",
    "Origin",
    "Resolved",
    "RopeFacts",
    "ServerConfig",
    "fetch_model",
    "load_deployment",
    "read_machine_facts",
    "read_model_facts",
    "resolve",
]
