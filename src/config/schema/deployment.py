"""The root of the manifest: header keys and one class per section."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from .cache import CacheConfig
from .compilation import CompilationConfig
from .device import DeviceConfig
from .kv_events import KVEventsConfig
from .kv_transfer import KVTransferConfig
from .load import LoadConfig
from .lora import LoRAConfig
from .model import ModelConfig
from .multimodal import MultiModalConfig
from .observability import ObservabilityConfig
from .parallel import ParallelConfig
from .scheduler import SchedulerConfig
from .section import about
from .server import ServerConfig
from .speculative import SpeculativeConfig
from .structured_outputs import StructuredOutputsConfig
from .types import Text, Texts

API_VERSION: Literal["stoker/v1"] = "stoker/v1"


class DeploymentConfig(BaseModel):
    """One LLM deployment. Keys that start with `x-` are ignored and may hold anchors and notes."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, protected_namespaces=(), defer_build=True
    )

    apiVersion: Literal["stoker/v1"] = Field(
        API_VERSION,
        description="Version of this file format.",
        examples=[API_VERSION],
    )
    kind: Literal["Deployment"] = Field(
        "Deployment",
        description="Kind of object that this file declares.",
        examples=["Deployment"],
    )
    preset: Text | None = Field(
        None,
        description="Named set of values that all other layers override; `engine explain presets` lists them.",
        examples=["cpu-laptop"],
    )
    extends: Texts = Field(
        (),
        description=(
            "Files that this file extends, weakest first, relative to this file. Mappings are merged key by key, all "
            "other values are replaced."
        ),
        examples=["./base.yaml"],
    )
    config: Text | None = Field(
        None,
        description=(
            "A flat file of long option names and values, such as `max-model-len: 32k`, which other engines accept "
            "with --config. It overrides all manifest files; the environment overrides it. `engine import FILE` "
            "converts it to a manifest."
        ),
        examples=["./vllm.yaml"],
        json_schema_extra=about(kind="path"),
    )
    model: ModelConfig
    load: LoadConfig = Field(default_factory=LoadConfig)
    cache: CacheConfig = Field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = Field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = Field(default_factory=ParallelConfig)
    device: DeviceConfig = Field(default_factory=DeviceConfig)
    compilation: CompilationConfig = Field(default_factory=CompilationConfig)
    lora: LoRAConfig = Field(default_factory=LoRAConfig)
    multimodal: MultiModalConfig = Field(default_factory=MultiModalConfig)
    structured_outputs: StructuredOutputsConfig = Field(default_factory=StructuredOutputsConfig)
    speculative: SpeculativeConfig = Field(default_factory=SpeculativeConfig)
    kv_transfer: KVTransferConfig = Field(default_factory=KVTransferConfig)
    kv_events: KVEventsConfig = Field(default_factory=KVEventsConfig)
    observability: ObservabilityConfig = Field(default_factory=ObservabilityConfig)
    server: ServerConfig = Field(default_factory=ServerConfig)
