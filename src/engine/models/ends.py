"""The ends of a model: what is before its layers, and the heads, which make results of its hidden states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

from ...model.spec import ModelSpec
from ..collectives import Ranks
from ..kernels import KernelSet
from ..layers.embedding import Embedding, EmbeddingPart, Sines, TiedEmbedding
from ..layers.gated_residual import StreamReader
from ..layers.linear import Linear, Mix
from ..layers.loading import Loadable
from ..layers.norm import AnyNorm, Norm
from ..layers.step_input import StepInput


class Embed:
    """Token ids, and rows that are given in place of some, to the input of the first layer."""

    def __init__(
        self,
        tokens: Embedding | TiedEmbedding | EmbeddingPart,
        positions: Embedding | Sines | None,
        norm: Norm | None,
        kernels: KernelSet,
        num_streams: int | None = None,
        types: Embedding | None = None,
    ) -> None:
        """
        positions, types: the embeddings of positions and of types of tokens, of a model that has them.
        num_streams: of the residual of a model with hyper-connections.
        """
        self._tokens, self._positions, self._norm, self._kernels = tokens, positions, norm, kernels
        self._num_streams, self._types = num_streams, types

    def loadables(self) -> Iterator[Loadable]:
        table = self._tokens.part if isinstance(self._tokens, EmbeddingPart) else self._tokens
        if isinstance(table, Embedding):
            yield table
        if isinstance(self._positions, Embedding):
            yield self._positions
        if self._types is not None:
            yield self._types
        if self._norm is not None:
            yield self._norm

    @property
    def multiplier(self) -> float:
        """What multiplies the rows of the embedding."""
        table = self._tokens.part if isinstance(self._tokens, EmbeddingPart) else self._tokens
        return table.multiplier

    def __call__(self, step: StepInput) -> torch.Tensor:
        """Returns the residual stream, [T, hidden_size], or all streams one after the other."""
        hidden: torch.Tensor = self._tokens(step.token_ids)
        if step.mix is not None:
            hidden = step.mix.adapt_rows(step.token_ids, hidden)
        if step.given is not None:
            hidden = hidden.index_copy(0, step.given.tokens, step.given.rows)
        if self._positions is not None:
            hidden = self._kernels.add_scaled(hidden, self._positions(step.positions))
        if self._types is not None:
            types = torch.zeros_like(step.token_ids) if step.token_types is None else step.token_types
            hidden = self._kernels.add_scaled(hidden, self._types(types))
        if self._norm is not None:
            hidden, _ = self._norm(self._kernels, hidden)
        return hidden if self._num_streams is None else self._kernels.write_streams(hidden, self._num_streams)


class Head(Protocol):
    """Makes a result of hidden states: logits, a vector, scores of labels."""

    def loadables(self) -> Iterator[Loadable]:
        """The head's own parts: not the final norm, which all heads share."""
        ...

    def __call__(self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None = None, /) -> torch.Tensor:
        """hidden, residual: [N, elements of a residual], what `Model.forward` returns for the tokens that a head needs.
        mix: of these tokens. Returns [N, outputs] in the model's dtype."""
        ...


class LMHead:
    """Hidden states to logits."""

    def __init__(
        self,
        norm: AnyNorm | StreamReader | None,
        projection: Linear,
        spec: ModelSpec,
        kernels: KernelSet,
        ranks: Ranks | None,
    ) -> None:
        """
        norm: the final norm, or what makes one vector of several streams; None of a model without it.
        projection: this rank's rows of it.
        """
        self.projection = projection
        self._norm, self._spec, self._kernels, self._ranks = norm, spec, kernels, ranks

    def loadables(self) -> Iterator[Loadable]:
        yield self.projection

    def __call__(self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None = None) -> torch.Tensor:
        """Returns [N, vocab_size]: on rank 0, others have a part of the columns."""
        if self._norm is None:
            logits = self.projection(hidden, mix)
        elif isinstance(self._norm, StreamReader):
            logits = self.projection(self._norm(hidden, mix)[0], mix)
        else:
            logits, _ = self.projection.of_normed(self._norm, hidden, residual, mix)
        scale, softcap = self._spec.logits_scale, self._spec.logits_softcap
        if (scale, softcap) != (1, None):
            logits = self._kernels.scale_and_cap(logits, scale, softcap)
        return logits if self._ranks is None else self._ranks.gather(logits, self._spec.vocab_size)
