"""The index of a layer with sparse attention: chooses the tokens to which each query attends. arXiv:2512.02556."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...model.mixers import LatentAttention as LatentSpec
from ..kernels import KernelSet
from .linear import Linear
from .loading import Loadable
from .norm import LayerNorm
from .step_input import StepInput

_PLAN = "chosen tokens"  # in the plans of a step: a layer may attend to the tokens of the layer before it


class TokenIndex:
    def __init__(
        self,
        spec: LatentSpec,
        q_proj: Linear | None,
        k_norm: LayerNorm | None,
        cos_sin: torch.Tensor,
        kernels: KernelSet,
    ) -> None:
        """q_proj, k_norm: None of a layer that attends to the tokens that the layer before has chosen."""
        self._q_proj, self._k_norm = q_proj, k_norm
        self._heads, self._width, self._count = spec.index_heads, spec.index_dim, spec.index_topk
        self._cos_sin, self._is_interleaved = cos_sin, spec.has_interleaved_index
        self._first_last = spec.rope_dim if spec.turns_index_end else 0
        self._kernels = kernels

    def loadables(self) -> Iterator[Loadable]:
        yield from (part for part in (self._q_proj, self._k_norm) if part is not None)

    def __call__(
        self, projected: torch.Tensor, query_latents: torch.Tensor, step: StepInput, cache: torch.Tensor
    ) -> torch.Tensor | None:
        """Stores the keys of all tokens.

        projected: [T, at least index_dim + index_heads]: the key of each token, and the weights of the heads.
        query_latents: [T, query_rank].
        Returns the tokens of each query, [T, index_topk]; None if all of its context are that many at most.
        """
        if self._q_proj is not None and self._k_norm is not None:
            keys, weights = projected[:, : self._width].contiguous(), projected[:, self._width :][:, : self._heads]
            normed = self._turned_first(self._k_norm(self._kernels, keys)[0])
            turn = self._cos_sin, self._is_interleaved, step.positions
            self._kernels.store_index_keys(normed, *turn, step.slot_mapping, cache)
            if step.max_context_len > self._count or self._kernels.always_chooses:
                queries = self._q_proj(query_latents, step.mix).view(-1, self._heads, self._width)
                queries = self._turned_first(queries)
                step.plans[_PLAN] = self._kernels.choose_tokens(queries, weights, *turn, cache, step, self._count)
        chosen: torch.Tensor | None = step.plans.get(_PLAN)
        return chosen

    def _turned_first(self, x: torch.Tensor) -> torch.Tensor:
        """Put the elements that are rotated first, where kernels expect them. The order does not change a product."""
        return x.roll(self._first_last, -1) if self._first_last else x
