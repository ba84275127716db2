"""Mixer: the part of a layer by which tokens see each other, between two linear layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch

from .linear import Linear
from .loading import Loadable
from .step_input import StepInput

# Of attention: keys and values, each [num_blocks, num_kv_heads, block_size, head_dim]; of latent attention one tensor,
# [num_blocks, 1, block_size, width]. Of a layer with a recurrent state: the last inputs of its convolution and its
# sums, each [num_slots, ...] (StateShape in model/mixers.py). Of a layer with both: those of attention, then the state.
# Attention with an index of blocks has the keys of the index too, in the shape of keys. A layer with n-grams has the
# last inputs of their convolution at the end, [num_slots, ...].
LayerCache = tuple[torch.Tensor, ...]


class Mixer(Protocol):
    in_proj: Linear
    out_proj: Linear

    def loadables(self) -> Iterator[Loadable]: ...

    def __call__(
        self, projected: torch.Tensor, step: StepInput, cache: LayerCache, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """Writes what the cache keeps of all T tokens of the step.

        projected: of `in_proj`, [T, outputs]. rows: [N] int64, the tokens whose result is needed; None for all.
        Returns the input of `out_proj` for these.
        """
        ...


@runtime_checkable
class Recurrent(Protocol):
    """A part of a layer that keeps a state of each sequence: a mixer, or n-grams."""

    def advance(self, inputs: torch.Tensor, step: StepInput, cache: LayerCache) -> None:
        """Change the states by the T tokens of a step whose results are not needed.

        inputs: [T, ...], what the part has kept of these tokens in the step that computed their results
        (StateInputs).
        """
        ...
