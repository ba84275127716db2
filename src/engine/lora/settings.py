"""LoraSettings: what the engine needs of section `lora`."""

from __future__ import annotations

from dataclasses import dataclass

from ...config import Resolved


@dataclass(frozen=True, slots=True)
class LoraSettings:
    max_loras: int  # adapters in one step
    max_rank: int
    max_copies: int  # adapters in memory, those of a step among them
    target_modules: tuple[str, ...] = ()  # layers with other names are left out; empty: none is

    @classmethod
    def of(cls, resolved: Resolved) -> LoraSettings | None:
        """Returns None if the deployment serves no adapters."""
        lora = resolved.lora
        if not lora.enable_lora:
            return None
        return cls(
            max_loras=lora.max_loras,
            max_rank=lora.max_lora_rank,
            max_copies=lora.max_cpu_loras,
            target_modules=lora.lora_target_modules,
        )
