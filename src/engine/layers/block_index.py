"""The index of an attention layer that attends to chosen blocks of tokens (QSA of Qwen4)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...model.block_index import BlockIndex as BlockIndexSpec
from ..kernels import BlockKeys, KernelSet
from .loading import Loadable
from .norm import RMSNorm
from .step_input import StepInput


class BlockIndex:
    def __init__(
        self, spec: BlockIndexSpec, q_norm: RMSNorm, k_norm: RMSNorm, cos_sin: torch.Tensor, kernels: KernelSet
    ) -> None:
        """q_norm: of each head's query. k_norm: of the keys of blocks. cos_sin: of the attention layer."""
        self._spec, self._q_norm, self._k_norm, self._kernels = spec, q_norm, k_norm, kernels
        self._keys = BlockKeys(k_norm.weight, k_norm.eps, cos_sin, spec.block)

    @property
    def width(self) -> int:
        """Elements of what it takes of the layer's projection: the queries of its heads, and a key."""
        return (self._spec.heads + 1) * self._spec.dim

    def loadables(self) -> Iterator[Loadable]:
        yield self._q_norm
        yield self._k_norm

    def __call__(self, projected: torch.Tensor, step: StepInput, cache: torch.Tensor) -> torch.Tensor | None:
        """Stores the keys of all tokens.

        projected: [T, width]. cache: of the index, as store_block_keys takes it.
        Returns the tokens of each query; None if each attends to its whole context.
        """
        heads, dim = self._spec.heads, self._spec.dim
        self._kernels.store_block_keys(projected[:, heads * dim :], step.slot_mapping, cache)
        if step.max_context_len <= self._spec.num_tokens and not self._kernels.always_chooses:
            return None
        queries = projected[:, : heads * dim].reshape(-1, dim)
        normed, _ = self._q_norm(self._kernels, queries)
        queries = normed.view(-1, heads, dim)
        return self._kernels.choose_blocks(queries, self._keys, step.positions, cache, step, self._spec.count)
