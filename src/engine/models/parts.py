"""Parts: makes what several blocks of a model are built from: norms, linear layers and rotary embeddings."""

from __future__ import annotations

from collections.abc import Collection

import torch

from ...model.mixers import RopeSpec
from ...model.pooling import OUTPUT_LAYER
from ...model.quantised import SCHEMES
from ...model.spec import ModelSpec
from ...model.spec import Norm as NormSpec
from ..collectives import Ranks, SharedExperts
from ..kernels import KernelSet
from ..layers.linear import Finish, Linear
from ..layers.norm import LayerNorm, Norm, RMSNorm
from ..layers.rotary import Rotation, cos_sin_table
from .rope import rope_parameters
from .shared_block import SharedBlock


class Parts:
    """Makes the parts of a model, with the same kernels, dtype and device."""

    def __init__(
        self,
        model_spec: ModelSpec,
        kernels: KernelSet,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
        quantization: str | None,
        ranks: Ranks | None,
        replicas: SharedExperts | None,
    ) -> None:
        """model_spec: of what this process computes."""
        self._ranks, self._replicas = ranks, replicas
        self._sum = None if ranks is None else ranks.sum
        self._spec = model_spec
        self._kernels = kernels
        self._max_model_len = max_model_len
        self._dtype, self._device = dtype, device
        self._scheme = SCHEMES[quantization] if quantization else None
        self._rotations: dict[tuple[RopeSpec, int, int], Rotation] = {}
        self._blocks: dict[int, SharedBlock] = {}  # by the layers that have their weights
        self._query_scales: dict[tuple[float, float, int], torch.Tensor] = {}

    def norm(self, name: str, width: int) -> Norm:
        return self._norm(self._spec.norm, name, width)

    def _norm(self, spec: NormSpec, name: str, width: int | tuple[int, ...]) -> Norm:
        offset = 1.0 if spec.is_offset else 0.0
        if spec.kind == "rms":
            return RMSNorm(name, width, spec.eps, self._dtype, self._device, offset=offset)
        has_bias = spec.has_bias
        return LayerNorm(name, width, spec.eps, self._dtype, self._device, offset=offset, has_bias=has_bias)

    def output(self, name: str) -> Linear:
        scheme = self._scheme and self._scheme.output
        rows, columns = {name: self._spec.vocab_size}, self._spec.hidden_size
        has_bias, kernels = self._spec.has_output_bias, self._kernels
        # A tied layer has the weight of the embedding, and a bias of its own.
        return Linear(
            rows, columns, has_bias, kernels, self._dtype, self._device, scheme, bias_name=f"{OUTPUT_LAYER}.bias"
        )

    def linear(
        self,
        prefix: str,
        parts: dict[str, int],
        in_features: int,
        has_bias: bool,
        order: torch.Tensor | None = None,
        finish: Finish | None = None,
        *,
        unbiased: Collection[str] = (),
    ) -> Linear:
        named = {f"{prefix}.{name}": size for name, size in parts.items()}
        plain = [f"{prefix}.{name}" for name in unbiased]
        scheme, kernels = self._scheme and self._scheme.layers, self._kernels
        return Linear(
            named, in_features, has_bias, kernels, self._dtype, self._device, scheme, order, finish, unbiased=plain
        )

    def summed(self, prefix: str, name: str, in_features: int, has_bias: bool) -> Linear:
        """The last layer of a block, whose inputs the ranks share: what they compute is added."""
        return self.linear(prefix, {name: self._spec.hidden_size}, in_features, has_bias, finish=self._sum)

    def rotation(self, rope: RopeSpec, head_dim: int, copies: int = 1) -> Rotation:
        """The rotary embedding, shared by all layers that have the same. copies: heads of this size that are one to the
        kernels."""
        key = rope, head_dim, copies
        if key not in self._rotations:
            parameters = rope_parameters(rope, self._spec.max_position_embeddings)
            share = 1.0 if rope.kind == "proportional" else rope.partial_rotary_factor  # it has pairs that stay
            rotary_dim = int(head_dim * share)
            table = cos_sin_table(parameters, rotary_dim, self._max_model_len).to(self._device)
            if copies > 1:
                table = torch.cat([half.repeat(1, copies) for half in table.chunk(2, 1)], 1)
            self._rotations[key] = Rotation(table, rope.pair_kinds)
        return self._rotations[key]
