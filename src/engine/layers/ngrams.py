"""Embeddings of n-grams, which a layer adds to its residual streams (PLE of Qwen4).

A key for each stream and a value follow from the embedding. The stream is the query: the product with its key gates the
value. The sum of the gated value and a convolution over those of the last tokens is added to the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import torch

from ...model.ngrams import NGrams as NGramsSpec
from ..kernels import KernelSet, NGramHashes
from .linear import Linear
from .loading import Held, Loadable, TensorReader, tensor_of
from .mixer import LayerCache
from .norm import RMSNorm
from .step_input import StepInput
from .vector import Vector


class NGramTable:
    """The rows of all tables, which checkpoints store in several tensors."""

    def __init__(self, prefix: str, rows: Sequence[int], width: int, dtype: torch.dtype, device: torch.device) -> None:
        """rows: of each tensor."""
        self._shapes = {f"{prefix}.shard_{index}.weight": (count, width) for index, count in enumerate(rows)}
        self._shape, self._dtype, self._device = (sum(rows), width), dtype, device
        self.rows = torch.empty(0, width, dtype=dtype, device=device)

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield from self._shapes.items()

    def load(self, tensors: TensorReader) -> None:
        self.rows = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        first = 0
        for name, (count, _) in self._shapes.items():
            tensors.read(name, self.rows[first : first + count])
            first += count

    def take_weights(self, other: Self) -> None:
        self.rows = other.rows

    def held(self) -> Held:
        return {"rows": self.rows}

    def hold(self, held: Held) -> None:
        self.rows = tensor_of(held, "rows", torch.empty(self._shape, dtype=self._dtype, device="meta"))

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes


class DistantTaps(Vector):
    """The weight of a convolution over every n-th token, as that of one over all tokens: zeros between the taps."""

    def __init__(
        self, name: str, channels: int, width: int, distance: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """distance: of two taps, in tokens."""
        super().__init__(name, (channels, 1, width), dtype, device)
        self._distance = distance
        self.by_token = torch.zeros((width - 1) * distance + 1, channels, dtype=torch.float32, device=device)

    def load(self, tensors: TensorReader) -> None:
        super().load(tensors)
        self._spread()

    def take_weights(self, other: Self) -> None:
        super().take_weights(other)
        self._spread()

    def hold(self, held: Held) -> None:
        super().hold(held)
        self._spread()

    def _spread(self) -> None:
        self.by_token[:: self._distance] = self.values.view(self.by_token.shape[1], -1).T


class NGrams:
    def __init__(
        self,
        spec: NGramsSpec,
        table: NGramTable,
        key_proj: Linear,
        value_proj: Linear,
        norms: tuple[RMSNorm, RMSNorm, RMSNorm],
        taps: DistantTaps,
        device: torch.device,
        kernels: KernelSet,
    ) -> None:
        """norms: of keys, of queries, and of the inputs of the convolution, each stream by itself."""
        self._table, self._key_proj, self._value_proj, self._taps = table, key_proj, value_proj, taps
        self._norms, self._kernels = norms, kernels

        def column(numbers: Sequence[int]) -> torch.Tensor:
            return torch.tensor(numbers, dtype=torch.int64, device=device)

        sizes = column(spec.table_sizes)
        self._hashes = NGramHashes(column(spec.multipliers), sizes, sizes.cumsum(0) - sizes, spec.end_id)

    def loadables(self) -> Iterator[Loadable]:
        yield self._table
        yield self._key_proj
        yield self._value_proj
        yield from self._norms
        yield self._taps

    def __call__(self, streams: torch.Tensor, step: StepInput, cache: LayerCache) -> torch.Tensor:
        """streams: [T, C * H]. cache: the last inputs of the convolution, by slot. Returns the new streams."""
        assert step.earlier_ids is not None, "a step of a model with n-grams has the ids before its tokens"
        kernels = self._kernels
        rows = kernels.ngram_rows(step.token_ids, step.earlier_ids, self._hashes)
        embedded = kernels.copy_rows(self._table.rows, rows.view(-1)).view(len(rows), -1)
        keys, values = self._key_proj(embedded, step.mix), self._value_proj(embedded, step.mix)
        count = keys.shape[1] // values.shape[1]
        of_keys, of_queries, of_inputs = self._norms
        keys = kernels.norm_streams(keys, of_keys.weight, count, of_keys.eps)
        queries = kernels.norm_streams(streams, of_queries.weight, count, of_queries.eps)
        gated = kernels.gate_streams(keys, queries, values)
        normed = kernels.norm_streams(gated, of_inputs.weight, count, of_inputs.eps)
        step.keep_state_inputs(normed, cache)
        convolved = self._convolve(normed, step, cache)
        return kernels.add_scaled(kernels.add_scaled(convolved, gated), streams)

    def advance(self, inputs: torch.Tensor, step: StepInput, cache: LayerCache) -> None:
        """See Recurrent."""
        self._convolve(inputs, step, cache)

    def _convolve(self, normed: torch.Tensor, step: StepInput, cache: LayerCache) -> torch.Tensor:
        (inputs,) = cache
        return self._kernels.causal_convolution(normed, self._taps.by_token, None, inputs, step, "silu")
