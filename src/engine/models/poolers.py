"""Poolers: heads that make a result of a whole text, or of each of its tokens, from hidden states.

They compute in float32, whatever the dtype of the model. What a caller applies to a result (the length of a vector, an
activation) is in the description of the head, and not applied here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F

from ...model.pooling import OUTPUT_LAYER, DenseActivation, PoolDense, PoolHead, PoolMode
from ..kernels import KernelSet
from ..layers.embedding import TiedEmbedding
from ..layers.gated_residual import StreamReader
from ..layers.linear import Linear, Mix
from ..layers.loading import Loadable
from ..layers.norm import AnyNorm
from ..layers.vector import Vector
from .parts import Parts

_ACTIVATIONS: dict[DenseActivation, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "log1p_relu": lambda x: torch.log1p(torch.relu(x)),
}


class OutputLayer:
    """The output layer of the model as a layer of a head."""

    def __init__(
        self,
        output: Linear,
        rows: Sequence[tuple[int, int | None]] | None,
        scale: float,
        softcap: float | None,
        kernels: KernelSet,
        device: torch.device,
    ) -> None:
        """
        rows: each row of the layer that is used, with the row that is subtracted from it; None: all rows as they are.
        scale, softcap: the model's, of its logits.
        """
        self._output, self._dtype = output, output.dtype
        self._scale, self._softcap = scale, softcap
        self._rows: torch.Tensor | None = None
        if rows is not None:
            # A row without one that is subtracted from it has itself there, with a factor of 0.
            pairs = [(row, row if subtracted is None else subtracted) for row, subtracted in rows]
            self._rows = torch.tensor(pairs, dtype=torch.int64, device=device)
            factors = [[float(subtracted is not None)] for _, subtracted in rows]
            self._factors = torch.tensor(factors, device=device)
        self._matrix = TiedEmbedding(output, kernels)

    def loadables(self) -> Iterator[Loadable]:
        """Yield nothing: the model loads the output layer."""
        return iter(())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [N, hidden_size] float32. Returns [N, rows] float32."""
        if self._rows is None:
            return self._scaled(self._output(x.to(self._dtype)).float())
        # The rows are read in each step, as the embedding of a tied model is: packed weights are not a matrix.
        wanted, subtracted = (self._matrix(ids.contiguous()).float() for ids in self._rows.unbind(1))
        if self._softcap is None:
            return self._scaled(x @ (wanted - self._factors * subtracted).T)
        return self._scaled(x @ wanted.T) - self._factors.T * self._scaled(x @ subtracted.T)

    def _scaled(self, products: torch.Tensor) -> torch.Tensor:
        products = products if self._scale == 1 else products * self._scale
        return products if self._softcap is None else torch.tanh(products / self._softcap) * self._softcap


class Dense:
    """A linear layer in float32, its activation, and its norm."""

    def __init__(self, spec: PoolDense, linear: Linear | OutputLayer, device: torch.device) -> None:
        self._spec, self._linear = spec, linear
        self._weight: Vector | None = None
        self._bias: Vector | None = None
        if (norm := spec.norm) is not None:
            self._weight = Vector(f"{norm.name}.weight", spec.outputs, torch.float32, device)
            if norm.has_bias:
                self._bias = Vector(f"{norm.name}.bias", spec.outputs, torch.float32, device)

    def loadables(self) -> Iterator[Loadable]:
        if isinstance(self._linear, Linear):
            yield self._linear
        yield from (each for each in (self._weight, self._bias) if each is not None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [N, inputs] float32. Returns [N, outputs] float32."""
        out = self._linear(x)
        if self._spec.activation != "none":
            out = _ACTIVATIONS[self._spec.activation](out)
        if self._spec.adds_input:
            out = out + x
        if self._weight is None:
            return out
        assert self._spec.norm is not None
        bias = None if self._bias is None else self._bias.values
        return F.layer_norm(out, self._weight.values.shape, self._weight.values, bias, self._spec.norm.eps)


class Pooler:
    """One head: the final norm, layers of each token, the pool, layers of what is pooled."""

    def __init__(
        self,
        head: PoolHead,
        norm: AnyNorm | StreamReader | None,
        before: Sequence[Dense],
        after: Sequence[Dense],
        kernels: KernelSet,
    ) -> None:
        """norm: the final norm, which all heads share; None of a model without it."""
        self.head = head
        self._norm, self._before, self._after, self._kernels = norm, before, after, kernels

    def loadables(self) -> Iterator[Loadable]:
        """The head's own parts."""
        for layer in (*self._before, *self._after):
            yield from layer.loadables()

    def pool(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor | None,
        starts: torch.Tensor,
        first: Sequence[int] | None = None,
        mix: Mix | None = None,
    ) -> torch.Tensor:
        """Make the results of some rows of a step.

        Args:
            hidden, residual: [N, elements of a residual], what `Model.forward` returns for the tokens of these rows,
                row after row: all tokens of their texts, or one of each, its last one unless `head.needs_all`, and its
                first one if `head.needs_first`.
            starts: [R + 1] int64, on the CPU: row r has the hidden states from starts[r] to starts[r + 1].
            first: tokens of each row before this one are not pooled, by a head that leaves out the prompt; None: zeros.
            mix: of the N tokens.
        Returns:
            float32, before the activation of the head: [R, width], or [N, width] of a head without modes.
        """
        states = self._kernels.to_float32(self._normed(hidden, residual, mix))
        if not self.head.modes:
            return _through(self._before, states)
        skipped = first if first is not None and not self.head.includes_prompt else [0] * (len(starts) - 1)
        if not self._before and self.head.modes in (("last",), ("cls",)):
            ends = starts[1:] - 1 if self.head.modes == ("last",) else starts[:-1]
            return _through(self._after, states[ends.to(states.device)])
        pooled: list[torch.Tensor] = []
        for (start, end), skip in zip(pairwise(starts.tolist()), skipped, strict=True):
            # Row by row: a layer with an output for each token of the vocabulary needs much memory for all tokens.
            own = _through(self._before, states[start:end])
            pooled.append(torch.cat([_pooled(own, mode, min(skip, end - start - 1)) for mode in self.head.modes]))
        return _through(self._after, torch.stack(pooled))

    def _normed(self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None) -> torch.Tensor:
        if self._norm is None:
            return hidden
        if isinstance(self._norm, StreamReader):
            return self._norm(hidden, mix)[0]
        return self._norm(self._kernels, hidden, residual, mix)[0]


def _through(layers: Sequence[Dense], x: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        x = layer(x)
    return x


def _pooled(states: torch.Tensor, mode: PoolMode, skip: int) -> torch.Tensor:
    """states: [tokens, width] of a text. skip: tokens at its beginning that are not pooled. Returns [width]."""
    if mode == "cls":  # the first token also where a prompt is left out, as in sentence-transformers
        return states[0]
    own = states[skip:]
    match mode:
        case "last":
            return own[-1]
        case "mean":
            return own.mean(0)
        case "mean_sqrt":
            return own.sum(0) / math.sqrt(len(own))
        case "max":
            return own.amax(0)
        case "weighted_mean":
            weights = torch.arange(1 + skip, 1 + len(states), dtype=torch.float32, device=states.device)
            return (own * weights[:, None]).sum(0) / float(weights.sum())


class PoolerParts(Parts):
    """Makes poolers from their descriptions in the ModelSpec."""

    def poolers(self, norm: AnyNorm | StreamReader | None, output: Linear | None) -> dict[str, Pooler]:
        """Return the poolers by task. norm: the final norm. output: the output layer, of a model that has one."""
        pooling = self._spec.pooling
        if pooling is None:
            return {}
        made: dict[str, Dense] = {}

        def layers(specs: Sequence[PoolDense]) -> list[Dense]:
            for spec in specs:
                if spec.name not in made:
                    made[spec.name] = Dense(spec, self._pool_linear(spec, output), self._device)
            return [made[spec.name] for spec in specs]

        return {
            head.task: Pooler(head, norm, layers(head.before), layers(head.after), self._kernels)
            for head in pooling.heads
        }

    def _pool_linear(self, spec: PoolDense, output: Linear | None) -> Linear | OutputLayer:
        if spec.name == OUTPUT_LAYER:
            assert output is not None, "a head has the output layer of a model without one"
            scale, softcap = self._spec.logits_scale, self._spec.logits_softcap
            return OutputLayer(output, spec.rows, scale, softcap, self._kernels, self._device)
        sizes = {spec.name: spec.outputs}
        return Linear(sizes, spec.inputs, spec.has_bias, self._kernels, torch.float32, self._device)
