"""LoraSettings: what the engine needs of section `lora`."""

from __future__ import annotations

from dataclasses import dataclass

from ...config import Resolved
from ...model.adapted_layers import embedding_shape


@dataclass(frozen=True, slots=True)
class LoraSettings:
    max_loras: int  # adapters in one step
    max_rank: int
    max_copies: int  # adapters in memory, those of a step among them
    target_modules: tuple[str, ...] = ()  # layers with other names are left out; empty: none is
    max_saved_elements: int = 0  # of whole weights, and rows of weights, of an adapter: memory is planned for these
    embedding_elements: int = 0  # planned for matrices that add to the embedding; rows of it may have these

    @classmethod
    def of(cls, resolved: Resolved) -> LoraSettings | None:
        """Returns None if the deployment serves no adapters."""
        lora = resolved.lora
        if not lora.enable_lora:
            return None
        spec = resolved.model_spec
        embedding = sum(lora.max_lora_rank * sum(shape) for shape in embedding_shape(spec, lora.lora_target_modules))
        return cls(
            max_loras=lora.max_loras,
            max_rank=lora.max_lora_rank,
            max_copies=lora.max_cpu_loras,
            target_modules=lora.lora_target_modules,
            max_saved_elements=resolved.model_files.adapter_saved_elements,
            embedding_elements=embedding,
        )
