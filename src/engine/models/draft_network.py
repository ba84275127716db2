"""DraftNetwork: drafts tokens for a model: a language model, or a layer that goes on from what the model computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol, Self

import torch

from ...model.drafts import EMBEDDING_SIDE, HIDDEN_SIDE, JOIN, JOIN_NORM, MASK_HIDDEN, TOKEN_OFFSETS, DraftSpec
from ...vocabulary import SharedTokens
from ..kernels import KernelSet
from ..layers.gated_residual import StreamReader
from ..layers.linear import Linear
from ..layers.loading import Held, Loadable, TensorReader, tensor_of
from ..layers.mixer import LayerCache
from ..layers.step_input import StepInput
from ..layers.vector import Vector
from .decoder import Decoder, DecoderPart
from .decoder_layers import DecoderLayer
from .decoder_parts import DecoderParts
from .ends import LMHead
from .layer_stack import Layer, LayerStep

Hidden = tuple[torch.Tensor, torch.Tensor | None]


class DraftNetwork(Protocol):
    """The features of a position are what it gets of the model there, [T, hidden_size]: for the first draft what the
    model has computed, for later ones its own. A language model has none."""

    draft: DraftSpec
    is_capturable: bool  # whether its steps consist of the kernels' ops alone
    num_tokens: int  # of the vocabulary of the drafts

    @property
    def mask_features(self) -> torch.Tensor | None:
        """The features of a token that is not known, [1, hidden_size], of a network that has some."""
        ...

    def loadables(self) -> Iterator[Loadable]: ...

    def features(self, kept: torch.Tensor) -> torch.Tensor:
        """kept: [T, width], what ModelReader has read."""
        ...

    def forward(
        self,
        steps: Sequence[StepInput],
        caches: Sequence[LayerCache],
        features: torch.Tensor | None,
        rows: torch.Tensor | None,
    ) -> Hidden:
        """Writes what the caches keep of all T tokens. Returns the hidden states of `rows`, of all for None.

        steps, caches: one per layer. With features, the token ids are those after the positions.
        """
        ...

    def logits(self, hidden: Hidden) -> torch.Tensor:
        """[N, tokens of the vocabulary of the drafts]"""
        ...

    def next_features(self, hidden: Hidden) -> torch.Tensor | None:
        """The features of the positions after these."""
        ...

    def model_ids(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Ids of the model's vocabulary for those of the drafts' vocabulary, [N] int64."""
        ...


class DraftModel:
    """A language model that drafts what it would say, as far as the model has its tokens."""

    def __init__(self, draft: DraftSpec, decoder: Decoder, tokens: SharedTokens | None, device: torch.device) -> None:
        """tokens: of two vocabularies; None if they are the same."""
        self.draft, self._decoder = draft, decoder
        self.num_tokens, self.is_capturable = draft.spec.vocab_size, decoder.is_capturable
        self.mask_features = None
        self._tokens = None
        # Of two vocabularies in which each token has the same id, further rows are never what the model samples.
        self._num_ids = self.num_tokens if tokens is None else len(tokens.model_ids)
        if tokens is not None and not tokens.is_identity:
            self.num_tokens, self.is_capturable = len(tokens.model_ids), False  # torch translates them
            ids = tokens.translated, tokens.draft_ids, tokens.model_ids
            self._tokens = tuple(torch.from_numpy(each).to(device) for each in ids)

    def loadables(self) -> Iterator[Loadable]:
        return self._decoder.loadables()

    def features(self, kept: torch.Tensor) -> torch.Tensor:
        return kept

    def forward(
        self,
        steps: Sequence[StepInput],
        caches: Sequence[LayerCache],
        features: torch.Tensor | None,
        rows: torch.Tensor | None,
    ) -> Hidden:
        if self._tokens is not None:
            translated = self._tokens[0][steps[0].token_ids]
            steps = [replace(step, token_ids=translated) for step in steps]
        return self._decoder.forward(steps, caches, rows)

    def logits(self, hidden: Hidden) -> torch.Tensor:
        logits = self._decoder.logits(*hidden)
        return logits if self._tokens is None else logits.index_select(1, self._tokens[1])

    def next_features(self, hidden: Hidden) -> torch.Tensor | None:
        return None

    def model_ids(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self._tokens is not None:
            return self._tokens[2][token_ids]
        return torch.where(token_ids < self._num_ids, token_ids, 0)


class TokenOffsets:
    """What is added to the id of each token of a smaller vocabulary, [tokens] int64."""

    def __init__(self, num_tokens: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self.values = torch.zeros(num_tokens, dtype=torch.int64, device=device)

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield TOKEN_OFFSETS, tuple(self.values.shape)

    def load(self, tensors: TensorReader) -> None:
        """Raises ValueError for a token that the model does not have."""
        offsets = torch.zeros_like(self.values, dtype=torch.int32)
        tensors.read(TOKEN_OFFSETS, offsets)
        self.values.copy_(offsets)
        ids = self.values + torch.arange(len(self.values), device=self.values.device)
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < self._vocab_size):
            raise ValueError(f"`d2t` names token {int(ids.max())} of {self._vocab_size}")

    def take_weights(self, other: Self) -> None:
        self.values = other.values

    def held(self) -> Held:
        return {"values": self.values}

    def hold(self, held: Held) -> None:
        self.values = tensor_of(held, "values", self.values)

    @property
    def num_bytes(self) -> int:
        return self.values.nbytes


class DraftLayers(DecoderPart):
    """A layer that begins with the embedding of a token and the model's hidden state of the token before it."""

    def __init__(
        self,
        draft: DraftSpec,
        model: Decoder,
        kernels: KernelSet,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
        quantization: str | None = None,
    ) -> None:
        """model: that it drafts for, whose embedding it reads. Else as DecoderPart."""
        self.draft, self._model, self.num_tokens = draft, model, draft.spec.vocab_size
        self._dtype, self._device = dtype, device
        super().__init__(draft.spec, kernels, max_model_len, dtype, device, quantization)

    def _add_ends(self, make: DecoderParts) -> None:
        spec, draft = self.draft.spec, self.draft
        hidden = spec.hidden_size
        norm = make.last_norm() if draft.has_last_norm else None
        assert not isinstance(norm, StreamReader)
        self.norm = norm
        self._sides = [make.norm(name, hidden) for name in (EMBEDDING_SIDE, HIDDEN_SIDE)] if draft.norms_sides else []
        self._offsets: TokenOffsets | None = None
        inputs, has_bias = draft.num_joined * hidden, draft.has_join_bias
        self._join_norm = make.norm(JOIN_NORM, inputs) if draft.norms_joined else None
        has_mask = draft.mask_token_id is not None and not draft.is_block
        # what is read instead of the model's hidden states of a token that is not known
        self._mask = Vector(MASK_HIDDEN, (1, inputs), self._dtype, self._device) if has_mask else None
        self._join = Linear({JOIN: hidden}, inputs, has_bias, self._kernels, self._dtype, self._device)
        if not draft.has_own_output:
            self.head = LMHead(self.norm, self._model.logits.projection, self._model.model_spec, self._kernels, None)
            return
        self._output = make.output("lm_head")
        self.head = LMHead(self.norm, self._output, spec, self._kernels, None)
        if spec.vocab_size != draft.vocab_size:
            self._offsets = TokenOffsets(spec.vocab_size, draft.vocab_size, self._device)

    def loadables(self) -> Iterator[Loadable]:
        for norm in self._sides:
            yield from norm.loadables()
        if self._join_norm is not None:
            yield from self._join_norm.loadables()
        yield self._join
        yield from super().loadables()
        if self.norm is not None:
            yield from self.norm.loadables()
        if self.draft.has_own_output:
            yield self._output
        if self._offsets is not None:
            yield self._offsets
        if self._mask is not None:
            yield self._mask

    @property
    def mask_features(self) -> torch.Tensor | None:
        return None if self._mask is None else self.features(self._mask.values.to(self._dtype)[None])

    def features(self, kept: torch.Tensor) -> torch.Tensor:
        if self.draft.kind != "eagle3":
            return kept
        return self._join(kept if self._join_norm is None else self._join_norm(self._kernels, kept)[0])

    def forward(
        self,
        steps: Sequence[StepInput],
        caches: Sequence[LayerCache],
        features: torch.Tensor | None,
        rows: torch.Tensor | None,
    ) -> Hidden:
        assert features is not None
        for step in steps:
            step.plans.clear()
        embedded = self._model.embed(steps[0])
        if self.draft.kind == "eagle3":
            inputs = embedded[:, None].expand(-1, len(self.layers), -1)  # the first layer reads them
            return self.stack(features, None, steps, caches, rows, inputs)
        parts = [embedded, features]
        if self._sides:
            parts = [norm(self._kernels, part)[0] for norm, part in zip(self._sides, parts, strict=True)]
        if self.draft.hidden_first:
            parts.reverse()
        return self.stack(self._join(self._kernels.join_columns(parts)), None, steps, caches, rows)

    def logits(self, hidden: Hidden) -> torch.Tensor:
        return self.head(*hidden) if self.norm is not None else self.head(self._sum(hidden), None)

    def next_features(self, hidden: Hidden) -> torch.Tensor:
        if self.draft.feeds_normed and self.norm is not None:
            normed: torch.Tensor = self.norm(self._kernels, *hidden)[0]
            return normed
        return self._sum(hidden)

    def _sum(self, hidden: Hidden) -> torch.Tensor:
        stream, residual = hidden
        return stream if residual is None else self._kernels.add_scaled(stream, residual)

    def model_ids(self, token_ids: torch.Tensor) -> torch.Tensor:
        return token_ids if self._offsets is None else token_ids + self._offsets.values[token_ids]


class BlockLayers(DraftLayers):
    """Layers that draft a block of tokens, which see each other and what is kept of all tokens before them. What the
    layers keep of known tokens comes from the model's hidden states alone."""

    def _add_ends(self, make: DecoderParts) -> None:
        super()._add_ends(make)
        self._after_join = make.norm(HIDDEN_SIDE, self.draft.spec.hidden_size)
        self.is_capturable = False  # torch puts known tokens and drafts together

    def loadables(self) -> Iterator[Loadable]:
        yield from super().loadables()
        yield from self._after_join.loadables()

    def features(self, kept: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self._after_join(self._kernels, self._join(kept))[0]
        return normed

    def forward(
        self,
        steps: Sequence[StepInput],
        caches: Sequence[LayerCache],
        features: torch.Tensor | None,
        rows: torch.Tensor | None,
    ) -> Hidden:
        """Known tokens are those that see none, or all if `visible` is missing; the features are theirs. rows: some of
        the others."""
        assert features is not None
        for step in steps:
            step.plans.clear()
        first = steps[0]
        is_known = torch.ones_like(first.token_ids, dtype=torch.bool) if first.visible is None else first.visible == 0
        drafted = (~is_known).nonzero()[:, 0]
        if len(drafted):  # each token is a row, which has a context of its own
            every = torch.arange(len(is_known), device=is_known.device)
            apart = {view: step.of_tokens(every) for view, step in {id(step): step for step in steps}.items()}
            steps = [apart[id(step)] for step in steps]
        inputs = features.new_zeros(len(is_known), features.shape[1])
        inputs[is_known] = features
        hidden, residual = self._model.embed(first)[drafted], None
        for layer, step, cache in zip(self.layers, steps, caches, strict=True):
            assert isinstance(layer, DecoderLayer)
            of_mixer, of_mlp = layer.norms
            normed, residual = of_mixer(self._kernels, hidden, residual)
            projected = layer.mixer.in_proj(inputs.index_copy(0, drafted, normed), None)
            mixed = LayerStep(step, cache, drafted)(layer.mixer, projected)
            hidden, residual = layer.mlp(of_mlp, mixed, residual, None)
        if rows is None or not len(drafted):  # known tokens have no results
            return hidden, residual
        wanted = torch.searchsorted(drafted, rows)
        return hidden[wanted], None if residual is None else residual[wanted]


class ModelReader:
    """Reads what a network gets of each token of a model: its last hidden state after the norm, or the inputs of some
    of its layers."""

    def __init__(self, draft: DraftSpec, model: Decoder, kernels: KernelSet) -> None:
        """The layers that are read store their inputs as soon as it is made."""
        self.width = model.model_spec.hidden_size * max(1, len(draft.read_layers))
        assert not isinstance(model.norm, StreamReader), "rules exclude models with several streams"
        self._norm, self._kernels = model.norm, kernels
        self._stores: list[StoringLayer] = []
        for index in draft.read_layers:
            stored = model.stack.layers[index] = StoringLayer(model.stack.layers[index], kernels)
            self._stores.append(stored)

    def read(self, hidden: Hidden) -> torch.Tensor:
        """hidden: of all T tokens of the step that was computed last. Returns [T, width]."""
        if self._stores:
            return self._kernels.join_columns([layer.take() for layer in self._stores])
        stream, residual = hidden
        if self._norm is None:
            return stream if residual is None else self._kernels.add_scaled(stream, residual)
        normed: torch.Tensor = self._norm(self._kernels, stream, residual)[0]
        return normed


class StoringLayer:
    """A layer whose input is stored until it is taken."""

    def __init__(self, layer: Layer, kernels: KernelSet) -> None:
        self._layer, self._kernels = layer, kernels
        self._input: torch.Tensor | None = None
        self.mixer, self.recurrents = layer.mixer, layer.recurrents

    def loadables(self) -> Iterator[Loadable]:
        return self._layer.loadables()

    def __call__(self, hidden: torch.Tensor, residual: torch.Tensor | None, step: LayerStep) -> Hidden:
        self._input = hidden if residual is None else self._kernels.add_scaled(hidden, residual)
        return self._layer(hidden, residual, step)

    def take(self) -> torch.Tensor:
        """[T, hidden_size]"""
        assert self._input is not None, "no step was computed"
        taken, self._input = self._input, None
        return taken
