"""The attention function that modules of transformers call: keys and values into the paged cache, attention from it.

transformers finds it under `NAME`. The name is registered for attention only, not for masks, so no mask is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from ...config import ModelFilesError
from ..kernels import AttentionVariant, KernelSet
from ..kernels.kv_codes import head_dim_of
from ..layers.mixer import LayerCache
from ..layers.step_input import StepInput

NAME = "stoker_paged"
_ATTRIBUTE = "stoker_attention"  # of a module: the model's PagedAttention
_NOT_SUPPORTED = {  # arguments of an attention function
    "position_bias": "a bias by position",
    "indices": "an index that chooses the tokens",
    "cu_seq_lens_q": "packed sequences",
    "block_mask": "a mask of blocks",
    "slopes": "slopes by position (ALiBi)",
}


class SeesLaterTokens(ModelFilesError):
    """The model is no decoder, however it is run."""


@dataclass(frozen=True, slots=True)
class LayerCall:
    """What one layer asks of attention."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None
    softcap: float | None


class PagedAttention:
    """Attention of all layers of one model. A model on the meta device, without weights, only reports its calls."""

    def __init__(self, kernels: KernelSet) -> None:
        self.calls: dict[int, LayerCall] = {}
        self._kernels = kernels
        self._steps: Sequence[StepInput] = ()
        self._caches: Sequence[LayerCache] = ()

    def attach(self, model: torch.nn.Module) -> None:
        for module in model.modules():
            if hasattr(module, "layer_idx"):
                object.__setattr__(module, _ATTRIBUTE, self)

    def begin(self, steps: Sequence[StepInput], caches: Sequence[LayerCache]) -> None:
        """Prepare a forward pass. steps, caches: one per layer."""
        self._steps, self._caches = steps, caches
        self.calls.clear()

    def __call__(
        self,
        module: torch.nn.Module,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        """q: [1, num_heads, T, D]; k, v: [1, num_kv_heads, T, D or less]. Returns [1, T, num_heads, value_dim]."""
        layer: Any = module.layer_idx
        if layer in self.calls:
            raise ModelFilesError(f"layer {layer} computes attention twice, which this build cannot serve", code="M304")
        window, softcap = options.get("sliding_window"), options.get("softcap")
        call = LayerCall(q.shape[1], k.shape[1], k.shape[3], v.shape[3], window or None, softcap or None)
        self.calls[layer] = call
        if q.is_meta:
            return q.new_empty(1, q.shape[2], call.num_heads, call.value_dim)
        k_cache, v_cache = self._caches[layer]
        head_dim = head_dim_of(k_cache)
        heads = torch.cat([padded(each[0], head_dim) for each in (q, k, v)])  # [heads, T, D]
        step = self._steps[layer]
        queries = self._kernels.rope_and_store(
            heads.transpose(0, 1).reshape(q.shape[2], -1),
            None,  # the model has normed and rotated queries and keys
            None,
            0.0,
            None,
            step.positions,
            step.slot_mapping,
            k_cache,
            v_cache,
            call.num_heads,
            call.num_kv_heads,
        )
        scale = call.key_dim**-0.5 if scale is None else scale
        sinks: torch.Tensor | None = options.get("s_aux")
        variant = AttentionVariant(call.window, softcap=call.softcap, sinks=None if sinks is None else sinks.float())
        attended = self._kernels.paged_attention(queries, k_cache, v_cache, step, scale, variant)
        return attended.view(1, -1, call.num_heads, head_dim)[..., : call.value_dim]


def padded(heads: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Pad with zeros up to the width of the cache: scores and the first elements of the values stay the same."""
    missing = head_dim - heads.shape[2]
    return F.pad(heads, (0, missing)) if missing else heads


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    name = type(module).__name__
    attention: PagedAttention | None = getattr(module, _ATTRIBUTE, None)
    if attention is None:
        raise ModelFilesError(f"{name} has no number of its layer, so it has no place in the KV cache", code="M304")
    if attention_mask is not None:
        raise ModelFilesError(f"{name} computes with a mask of its own, which this build cannot serve", code="M304")
    if getattr(module, "is_causal", True) is False or options.get("is_causal") is False:
        raise SeesLaterTokens(f"{name} sees later tokens too, so it cannot generate text", code="M304")
    for option, meaning in _NOT_SUPPORTED.items():
        if options.get(option) is not None:
            raise ModelFilesError(f"{name} computes attention with {meaning}, which this build lacks", code="M304")
    return attention(module, query, key, value, scaling, options), None


def _experts(module: Any, hidden: torch.Tensor, *routing: torch.Tensor) -> torch.Tensor:
    """The module's own computation, one expert after the other."""
    if hidden.is_meta:  # which experts run depends on values
        return torch.empty_like(hidden)
    result: torch.Tensor = type(module).forward.__wrapped__(module, hidden, *routing)
    return result


AttentionInterface.register(NAME, _attention)
ALL_EXPERTS_FUNCTIONS.register(NAME, _experts)
