"""Per-layer inputs (Gemma 3n and 4): a vector of each token for each layer, which multiplies a gate of its output.

The vector is 2**-0.5 * (sqrt(W) * row of a table + norm(projection of the embedding / sqrt(H))). A factor before an RMS
norm only scales its eps: that of the projection is hidden_size * eps, and the layers' own norm, which follows the
product with the gate, takes 2 * eps instead of the factor 2**-0.5.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...model.activations import Activation
from ..kernels import KernelSet
from .embedding import Embedding
from .linear import Linear, Mix
from .loading import Loadable
from .norm import Norm, RMSNorm


class LayerInputs:
    """The vectors of all layers."""

    def __init__(self, table: Embedding, projection: Linear, norm: RMSNorm, scale: float, kernels: KernelSet) -> None:
        """
        table: [vocab_size, num_layers * W]: of a step it is read one row per token.
        norm: of W elements, with the eps of the projection before it is scaled.
        scale: of the rows of the table.
        """
        self._table, self._projection, self._norm = table, projection, norm
        self._scale, self._kernels = scale, kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self._table
        yield self._projection
        yield self._norm

    def __call__(self, token_ids: torch.Tensor, embedded: torch.Tensor, mix: Mix | None = None) -> torch.Tensor:
        """embedded: [T, hidden_size]. mix: of the T tokens. Returns [T, num_layers, W], without the factor 2**-0.5."""
        rows, width = self._table(token_ids), len(self._norm.weight)
        normed, _ = self._norm(self._kernels, self._projection(embedded, mix).view(-1, width))
        added = self._kernels.add_scaled(rows.view(-1, width), normed, self._scale)
        return added.view(len(rows), rows.shape[1] // width, width)


class EmbeddingForLayers:
    """The embedding itself, for all layers."""

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers

    def loadables(self) -> Iterator[Loadable]:
        yield from ()

    def __call__(self, token_ids: torch.Tensor, embedded: torch.Tensor, mix: Mix | None = None) -> torch.Tensor:
        """See LayerInputs. Returns [T, num_layers, hidden_size], without a copy."""
        return embedded[:, None].expand(-1, self._num_layers, -1)


class LayerInput:
    """What one layer does with its vectors."""

    def __init__(
        self, gate: Linear, projection: Linear, norm: Norm, activation: Activation, kernels: KernelSet
    ) -> None:
        """norm: with twice the eps."""
        self._gate, self._projection, self._norm = gate, projection, norm
        self._activation, self._kernels = activation, kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self._gate
        yield self._projection
        yield self._norm

    def __call__(self, stream: torch.Tensor, inputs: torch.Tensor, mix: Mix | None = None) -> torch.Tensor:
        """stream: [N, hidden_size]; inputs: [N, W]. mix: of the N tokens. Returns what is added to the stream."""
        gated = self._kernels.gate_inputs(self._gate(stream, mix), inputs, self._activation)
        return self._norm(self._kernels, self._projection(gated, mix))[0]
