"""The root of the manifest: header keys and one class per section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

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
from .types import Texts

API_VERSION: Literal["stoker/v1"] = "stoker/v1"


class DeploymentConfig(BaseSettings):
    """One LLM deployment. Keys that start with `x-` are free space, for anchors and notes."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, validate_default=True, protected_namespaces=())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Nothing is read behind one's back: the layers (source/) are read and merged by load.py."""
        return (init_settings,)

    apiVersion: Literal["stoker/v1"] = Field(
        API_VERSION,
        description="Version of this file format. A later program reads it and says what has changed.",
        examples=[API_VERSION],
        json_schema_extra=about(reload="process"),
    )
    kind: Literal["Deployment"] = Field(
        "Deployment",
        description="What this file declares.",
        examples=["Deployment"],
        json_schema_extra=about(reload="process"),
    )
    preset: str | None = Field(
        None,
        min_length=1,
        description="Named set of values below everything written: `engine explain presets` lists them with reasons.",
        examples=["cpu-laptop"],
        json_schema_extra=about(reload="process"),
    )
    extends: Texts = Field(
        (),
        description=(
            "Files that this one builds on, weakest first, relative to this file. Mappings are merged key by key, "
            "everything else is replaced."
        ),
        examples=["./base.yaml"],
        json_schema_extra=about(reload="process"),
    )
    model: ModelConfig
    load: LoadConfig = LoadConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    parallel: ParallelConfig = ParallelConfig()
    device: DeviceConfig = DeviceConfig()
    compilation: CompilationConfig = CompilationConfig()
    lora: LoRAConfig = LoRAConfig()
    multimodal: MultiModalConfig = MultiModalConfig()
    structured_outputs: StructuredOutputsConfig = StructuredOutputsConfig()
    speculative: SpeculativeConfig = SpeculativeConfig()
    kv_transfer: KVTransferConfig = KVTransferConfig()
    kv_events: KVEventsConfig = KVEventsConfig()
    observability: ObservabilityConfig = ObservabilityConfig()
    server: ServerConfig = ServerConfig()
