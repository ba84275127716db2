"""The library's cache over the paged one: for models whose modules compute attention, or positions, by themselves.

Such a model runs each sequence of a step separately. Its layers write their new keys and values to the blocks of the
sequence and receive those of all its tokens; masks and positions are what the library makes for a cache of that length.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from ...config import ModelFilesError
from ..kernels import KernelSet
from ..kernels.kv_codes import blocks_in, head_dim_of
from ..layers.mixer import LayerCache
from ..layers.step_input import StepInput
from .hf_attention import LayerCall, padded


def cache_argument(module: nn.Module) -> str | None:
    """The name under which a model takes a cache; None if it takes none."""
    parameters = inspect.signature(module.forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in parameters), None)


class _Layer(DynamicLayer):  # type: ignore[misc]
    """What both layers below have: they are written once in a forward pass."""

    def __init__(self, index: int, num_cached: int, num_new: int) -> None:
        super().__init__()
        self.call: LayerCall | None = None
        self._index, self._num_tokens, self._num_new = index, num_cached, num_new

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """keys, values: [1, num_kv_heads, tokens of the step, D]. Returns those of all tokens of the sequence."""
        if self.call is not None:
            message = f"layer {self._index} computes attention twice, which this build cannot serve"
            raise ModelFilesError(message, code="M304")
        num_kv_heads, num_new = key_states.shape[1:3]
        if num_new != self._num_new:
            message = (
                f"layer {self._index} has {num_new} keys for {self._num_new} tokens, which this build cannot serve"
            )
            raise ModelFilesError(message, code="M304")
        self.call = LayerCall(num_kv_heads, num_kv_heads, key_states.shape[3], value_states.shape[3], None, None)
        self._num_tokens += num_new
        return self._all(key_states, value_states)

    def get_seq_length(self) -> int:
        return self._num_tokens

    def _all(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return keys, values


class TracedCache(Cache):  # type: ignore[misc]
    """The cache of a model on the meta device: it only reports what the layers keep."""

    def __init__(self, num_layers: int, num_tokens: int) -> None:
        super().__init__(layers=[_Layer(index, 0, num_tokens) for index in range(num_layers)])

    def calls(self) -> dict[int, LayerCall]:
        return {index: layer.call for index, layer in enumerate(self.layers) if layer.call is not None}


class SequenceCache(Cache):  # type: ignore[misc]
    """The keys and values of one row of a step."""

    def __init__(self, row: int, steps: Sequence[StepInput], caches: Sequence[LayerCache], kernels: KernelSet) -> None:
        """steps, caches: one per layer."""
        start, end = steps[0].query_start[row : row + 2].tolist()
        self.tokens = slice(start, end)  # of the step
        num_cached = int(steps[0].context_lens[row]) - (end - start)
        super().__init__(
            layers=[
                _PagedLayer(index, num_cached, row, self.tokens, step, cache, kernels)
                for index, (step, cache) in enumerate(zip(steps, caches, strict=True))
            ]
        )


class _PagedLayer(_Layer):
    def __init__(
        self,
        index: int,
        num_cached: int,
        row: int,
        tokens: slice,
        step: StepInput,
        cache: LayerCache,
        kernels: KernelSet,
    ) -> None:
        super().__init__(index, num_cached, tokens.stop - tokens.start)
        self._row, self._tokens, self._step, self._cache, self._kernels = row, tokens, step, cache, kernels

    def _all(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k_cache, v_cache = self._cache
        head_dim, step = head_dim_of(k_cache), self._step
        heads = torch.cat([padded(each[0], head_dim) for each in (keys, keys, values)])  # [heads, T, D]
        self._kernels.rope_and_store(
            heads.transpose(0, 1).reshape(keys.shape[2], -1),  # the keys are also the queries, which it must have
            None,
            None,
            0.0,
            None,
            step.positions[self._tokens],
            step.slot_mapping[self._tokens],
            k_cache,
            v_cache,
            keys.shape[1],
            keys.shape[1],
        )
        return self._gathered(k_cache, keys), self._gathered(v_cache, values)

    def _gathered(self, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """All of the sequence, in the form of the new ones."""
        blocks = self._step.block_tables[self._row, : -(-self._num_tokens // cache.shape[2])]
        heads = blocks_in(cache, blocks, new.dtype).transpose(0, 1)
        return heads.reshape(1, heads.shape[0], -1, heads.shape[3])[..., : self._num_tokens, : new.shape[3]]
