"""The sections that an engine reads, in the types of decided values."""

from __future__ import annotations

from dataclasses import dataclass

from ..schema.kv_events import KVEventsConfig
from ..schema.kv_transfer import KVTransferConfig
from ..schema.observability import ObservabilityConfig
from ..schema.parallel import ParallelConfig
from ..schema.structured_outputs import StructuredOutputsConfig
from .resolved import (
    ResolvedCache,
    ResolvedCompilation,
    ResolvedDevice,
    ResolvedLoad,
    ResolvedLoRA,
    ResolvedModel,
    ResolvedScheduler,
    ResolvedServer,
    ResolvedSpeculative,
)


@dataclass
class Sections:
    """A value that is not decided yet is still "auto", whatever its type says."""

    model: ResolvedModel
    load: ResolvedLoad
    cache: ResolvedCache
    scheduler: ResolvedScheduler
    parallel: ParallelConfig
    device: ResolvedDevice
    compilation: ResolvedCompilation
    lora: ResolvedLoRA
    structured_outputs: StructuredOutputsConfig
    speculative: ResolvedSpeculative
    kv_transfer: KVTransferConfig
    kv_events: KVEventsConfig
    observability: ObservabilityConfig
    server: ResolvedServer
