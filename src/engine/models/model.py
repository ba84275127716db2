"""Model: what the runners hold and call, whatever the family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

import torch

from ...config.checkpoint.stored import StoredTensor
from ...model.spec import ModelSpec
from ..layers.attention import Attention
from ..layers.loading import Loadable
from ..layers.mixer import LayerCache
from ..layers.step_input import StepInput
from .ends import Head
from .poolers import Pooler


class Model(Protocol):
    """Token ids to hidden states, and heads that make results of these."""

    model_spec: ModelSpec
    table: dict[str, str]  # rows of the start-up table about the model
    is_capturable: bool  # whether a decode step consists of the kernels' ops alone

    @property
    def logits(self) -> Head:
        """The head whose results are sampled, of a model that generates tokens."""
        ...

    @property
    def heads(self) -> Mapping[str, Head]:
        """All heads that make something of each token alone, by name; `logits` is one of them."""
        ...

    @property
    def poolers(self) -> Mapping[str, Pooler]:
        """Heads that make something of whole texts, by their tasks (model/pooling.py)."""
        ...

    def loadables(self) -> Iterator[Loadable]:
        """All parts with weights, in the order of loading."""
        ...

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of all tensors."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights, after they are loaded."""
        ...

    def tensors(self, folder: Path, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """The tensors of a checkpoint under the names of `wanted`.

        Raises ModelFilesError unless the files have exactly these, in the right shapes.
        """
        ...

    def attention_layers(self) -> Mapping[int, Attention]:
        """Attention by the number of the layer; without attention of latents, and without transformers' modules."""
        ...

    def take_weights(self, other: Self) -> None:
        """Takes the weights of the same model with other kernels, which can no longer be used."""
        ...

    def forward(
        self, steps: Sequence[StepInput], caches: Sequence[LayerCache], rows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Writes what the caches keep of all T tokens. Returns hidden and residual of `rows`, for the heads.

        steps, caches: one per layer; the steps differ in the blocks that they use. rows: [N] int64, indices of the
        tokens that a head needs; None for all.
        """
        ...
