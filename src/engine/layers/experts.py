"""Mixture of experts: a router chooses a few feed-forward blocks for each token, and their outputs are added, weighted.

Shazeer et al., arXiv:1701.06538. Experts are stored in two layouts: a tensor for each projection of each expert, or one
for each projection of all experts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self

import torch

from ..kernels import ExpertGate, ExpertWeights, KernelSet, PackedExperts, Routing
from .linear import Linear
from .loading import Loadable, TensorReader
from .mlp import GatedMLP
from .norm import Norm
from .vector import Vector

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    count: int
    hidden: int
    inner: int  # of the gates, and of the ups


class ExpertLayout(Protocol):
    """How a checkpoint stores the experts of a layer."""

    def wanted(self, sizes: ExpertSizes) -> Iterator[tuple[str, Shape]]: ...

    def experts(
        self, tensors: TensorReader, sizes: ExpertSizes, dtype: torch.dtype, device: torch.device
    ) -> Iterator[ExpertWeights]:
        """The experts in order, each in memory of its own."""
        ...


@dataclass(frozen=True, slots=True)
class OneByOne:
    """Tensors of each expert: Qwen-MoE, DeepSeek, Mixtral. Names are without `.weight`; {} is the expert's index."""

    gate: str
    up: str
    down: str
    has_bias: bool = False

    def wanted(self, sizes: ExpertSizes) -> Iterator[tuple[str, Shape]]:
        rows = {self.gate: sizes.inner, self.up: sizes.inner, self.down: sizes.hidden}
        for expert in range(sizes.count):
            for name, outputs in rows.items():
                inputs = sizes.inner if name == self.down else sizes.hidden
                yield f"{name.format(expert)}.weight", (outputs, inputs)
                if self.has_bias:
                    yield f"{name.format(expert)}.bias", (outputs,)

    def experts(
        self, tensors: TensorReader, sizes: ExpertSizes, dtype: torch.dtype, device: torch.device
    ) -> Iterator[ExpertWeights]:
        def stacked(expert: int, kind: str, names: tuple[str, ...], *shape: int) -> torch.Tensor:
            whole = torch.empty(len(names) * shape[0], *shape[1:], dtype=dtype, device=device)
            for name, part in zip(names, whole.chunk(len(names)), strict=True):
                tensors.read(f"{name.format(expert)}.{kind}", part)
            return whole

        gate_up, down = (self.gate, self.up), (self.down,)
        for expert in range(sizes.count):
            yield ExpertWeights(
                stacked(expert, "weight", gate_up, sizes.inner, sizes.hidden),
                stacked(expert, "weight", down, sizes.hidden, sizes.inner),
                stacked(expert, "bias", gate_up, sizes.inner) if self.has_bias else None,
                stacked(expert, "bias", down, sizes.hidden) if self.has_bias else None,
            )


@dataclass(frozen=True, slots=True)
class Together:
    """All experts in one tensor: gpt-oss, Llama 4, Qwen3-VL-MoE. Names are complete.

    is_transposed: inputs before outputs, [E, H, 2 * I] and [E, I, H].
    is_interleaved: gates and ups take turns, else all gates are first.
    """

    gate_up: str
    down: str
    gate_up_bias: str | None = None
    down_bias: str | None = None
    is_transposed: bool = False
    is_interleaved: bool = False

    def wanted(self, sizes: ExpertSizes) -> Iterator[tuple[str, Shape]]:
        for name, outputs, inputs in (
            (self.gate_up, 2 * sizes.inner, sizes.hidden),
            (self.down, sizes.hidden, sizes.inner),
        ):
            yield name, (sizes.count, inputs, outputs) if self.is_transposed else (sizes.count, outputs, inputs)
        if self.gate_up_bias is not None:
            yield self.gate_up_bias, (sizes.count, 2 * sizes.inner)
        if self.down_bias is not None:
            yield self.down_bias, (sizes.count, sizes.hidden)

    def experts(
        self, tensors: TensorReader, sizes: ExpertSizes, dtype: torch.dtype, device: torch.device
    ) -> Iterator[ExpertWeights]:
        shapes = dict(self.wanted(sizes))

        def whole(name: str) -> torch.Tensor:
            view = tensors.view(name, dtype) if device.type == "cpu" else None
            if view is not None:
                return view
            found = torch.empty(shapes[name], dtype=dtype, device=device)
            tensors.read(name, found)
            return found

        gate_ups, downs = whole(self.gate_up), whole(self.down)
        gate_up_biases = None if self.gate_up_bias is None else whole(self.gate_up_bias)
        down_biases = None if self.down_bias is None else whole(self.down_bias)
        for expert in range(sizes.count):
            gate_up, down = gate_ups[expert], downs[expert]
            if self.is_transposed:
                gate_up, down = gate_up.T, down.T
            yield ExpertWeights(
                self._gates_first(gate_up),
                _own(down),
                None if gate_up_biases is None else self._gates_first(gate_up_biases[expert]),
                None if down_biases is None else _own(down_biases[expert]),
            )

    def _gates_first(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat((rows[::2], rows[1::2])) if self.is_interleaved else _own(rows)


def _own(part: torch.Tensor) -> torch.Tensor:
    """A contiguous copy: the file's map is released, and the tensor of all experts too."""
    return part.clone(memory_format=torch.contiguous_format)


class Experts:
    """The weights of all experts of a layer."""

    def __init__(
        self,
        layout: ExpertLayout,
        sizes: ExpertSizes,
        gate: ExpertGate,
        kernels: KernelSet,
        dtype: torch.dtype,
        device: torch.device,
        scheme: str | None = None,
    ) -> None:
        """scheme: quantises the weights."""
        self.sizes = sizes
        self._layout, self._gate, self._kernels = layout, gate, kernels
        self._dtype, self._device, self._scheme = dtype, device, scheme
        self._packed: PackedExperts | None = None

    def wanted(self) -> Iterator[tuple[str, Shape]]:
        return self._layout.wanted(self.sizes)

    def load(self, tensors: TensorReader) -> None:
        """At no time do more than the weights of this layer exist twice."""
        experts = self._layout.experts(tensors, self.sizes, self._dtype, self._device)
        self._packed = self._kernels.pack_experts(experts, self.sizes.count, self._gate, self._scheme)

    def take_weights(self, other: Self) -> None:
        self._packed, other._packed = self._kernels.repack_experts(other.packed), None

    @property
    def num_bytes(self) -> int:
        if self._scheme is not None:
            return self.packed.num_bytes
        unpadded = sum(math.prod(shape) for _, shape in self.wanted()) * self._dtype.itemsize
        return min(unpadded, self.packed.num_bytes)  # as Linear.num_bytes

    @property
    def packed(self) -> PackedExperts:
        assert self._packed is not None, "experts used before they were loaded"
        return self._packed


class Router:
    def __init__(
        self, projection: Linear, routing: Routing, kernels: KernelSet, choice_bias: Vector | None = None
    ) -> None:
        """projection: of one output for each expert; x is converted to float32 if the projection is float32.
        choice_bias: is added to the scores for the choice, not for the weights (DeepSeek-V3, arXiv:2412.19437)."""
        self.projection = projection
        self.choice_bias = choice_bias
        self._routing, self._kernels = routing, kernels

    def loadables(self) -> Iterator[Loadable]:
        yield self.projection
        if self.choice_bias is not None:
            yield self.choice_bias

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [T, hidden]. Returns the experts of each token and their weights, both [T, per_token]."""
        is_wide = self.projection.packed.dtype == torch.float32
        logits = self.projection(self._kernels.to_float32(x) if is_wide else x)
        bias = None if self.choice_bias is None else self.choice_bias.values
        return self._kernels.route_experts(logits, bias, self._routing)


class MixtureOfExperts:
    """Has the interface of GatedMLP."""

    def __init__(
        self,
        router: Router,
        experts: Experts,
        kernels: KernelSet,
        shared: GatedMLP | None = None,
        shared_gate: Linear | None = None,
    ) -> None:
        """shared: the block that every token goes through; shared_gate: of one output, whose sigmoid multiplies it."""
        self.router = router
        self.experts = experts
        self.shared = shared
        self.shared_gate = shared_gate
        self._kernels = kernels

    def loadables(self) -> Iterator[Loadable]:
        yield from self.router.loadables()
        yield self.experts
        if self.shared is not None:
            yield self.shared.gate_up_proj
            yield self.shared.down_proj
        if self.shared_gate is not None:
            yield self.shared_gate

    def __call__(
        self, norm: Norm, hidden: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden, residual: [T, hidden]. Returns the block's output for norm(hidden + residual), and the sum."""
        normed, total = norm(self._kernels, hidden, residual)
        return self.of(normed), total

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output for x itself, [T, hidden]."""
        ids, weights = self.router(x)
        shared = None if self.shared is None else self.shared.of(x)
        shared_gate = None if self.shared_gate is None else self.shared_gate(x)
        return self._kernels.experts(x, ids, weights, self.experts.packed, shared, shared_gate)
