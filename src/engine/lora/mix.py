"""AdapterMix: what the adapters of a step add to the products of linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from ..kernels.adapt_rows import AdaptRows, LoraEmbedding
from ..kernels.lora_add import LoraAdd, LoraLayer
from ..kernels.lora_experts import LoraExperts
from .places import ExpertLayer, FusedLayer


@dataclass(frozen=True, slots=True)
class AdaptedLayers:
    """What the slots of adapters have for each layer of a model, and the ops that compute with it."""

    linears: Mapping[FusedLayer, LoraLayer]
    experts: Mapping[ExpertLayer, LoraExperts]
    embedding: LoraEmbedding | None
    add: LoraAdd
    adapt_rows: AdaptRows


@dataclass(frozen=True, slots=True)
class AdapterMix:
    """The `Mix` of layers/linear.py. Its tensors are those of a LoraRows."""

    slots: torch.Tensor  # [T] int32, slot of each token's adapter; -1 without one
    tokens: torch.Tensor
    starts: torch.Tensor
    layers: AdaptedLayers
    num_slots: int

    @classmethod
    def of(cls, slots: torch.Tensor, layers: AdaptedLayers, num_slots: int) -> AdapterMix:
        """slots: [T] int32."""
        return cls(slots, *_sorted(slots, num_slots), layers, num_slots)

    def added(self, layer: FusedLayer, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """See Mix.added."""
        if (own := self.layers.linears.get(layer)) is not None:
            self.layers.add(x, out, self, own)
        return out

    def of_experts(self, layer: ExpertLayer) -> tuple[torch.Tensor, LoraExperts] | None:
        """See Mix.of_experts."""
        own = self.layers.experts.get(layer)
        return None if own is None else (self.slots, own)

    def adapt_rows(self, token_ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """See Mix.adapt_rows."""
        if self.layers.embedding is not None:
            self.layers.adapt_rows(rows, token_ids, self.slots, self.layers.embedding)
        return rows

    def of_tokens(self, tokens: torch.Tensor) -> AdapterMix:
        """See Mix.of_tokens."""
        slots = self.slots[tokens].masked_fill_(tokens < 0, -1)
        ordered, starts = _sorted(slots, self.num_slots)
        return replace(self, slots=slots, tokens=ordered, starts=starts)

    def clone(self) -> AdapterMix:
        """The memory from which a captured step reads its mix."""
        return replace(self, slots=self.slots.clone(), tokens=self.tokens.clone(), starts=self.starts.clone())

    def copy_(self, other: AdapterMix) -> None:
        """Write the mix of another step of this shape into the memory of a captured one."""
        self.slots.copy_(other.slots)
        self.tokens.copy_(other.tokens)
        self.starts.copy_(other.starts)


def _sorted(slots: torch.Tensor, num_slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens by their slot, those without one at the end, and where each slot begins. A slot's tokens keep their
    order, in which neighbours share memory."""
    keys = torch.where(slots < 0, num_slots, slots).to(torch.int64)
    ends = torch.bincount(keys, minlength=num_slots + 1)[:num_slots].cumsum(0)
    starts = torch.cat((ends.new_zeros(1), ends))
    return keys.argsort(stable=True).to(torch.int32), starts.to(torch.int32)
