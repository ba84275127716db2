"""The bodies of /v1/load_lora_adapter and /v1/unload_lora_adapter."""

from __future__ import annotations

from pydantic import Field

from .wire import Wire


class LoadAdapterRequest(Wire):
    """is_3d_lora_weight: has no effect: names and shapes of the tensors say it."""

    lora_name: str = Field(min_length=1)
    lora_path: str = Field(min_length=1)
    load_inplace: bool | None = None
    is_3d_lora_weight: bool | None = None


class UnloadAdapterRequest(Wire):
    """lora_int_id: has no effect: adapters have names."""

    lora_name: str = Field(min_length=1)
    lora_int_id: int | None = None
