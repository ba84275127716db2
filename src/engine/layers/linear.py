"""Linear layer: one or several projections of the same input, fused into one product."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self

import torch

from ..kernels import Grouped, Integers, KernelSet, PackedLinear
from ..kernels.grouped import are_alike, stacked
from ..kernels.lora_experts import LoraExperts
from .loading import Held, TensorReader, linear_of
from .norm import AnyNorm, RMSNorm

Finish = Callable[[torch.Tensor], torch.Tensor]


class Mix(Protocol):
    """What the tokens of a step add to the products of linear layers: adapters, each for some of the tokens."""

    def added(self, layer: Linear, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Add the deltas of one layer. `Linear.__call__` is the only caller.

        Args:
            layer: its `parts` name the weights.
            x: [T, in_features], its input.
            out: [T, sum of the parts], its product in their order, which may be changed. The ranks of a divided layer
                have not added theirs yet.
        """
        ...

    def of_experts(self, layer: Any) -> tuple[torch.Tensor, LoraExperts] | None:
        """The slot of each token's adapter, [T] int32, and what the adapters add to a layer of experts
        (expert_weights.Experts), which is the only caller; None if nothing."""
        ...

    def adapt_rows(self, token_ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Change the rows of the embedding, [T, width], of the T tokens. The model's embedding is the only caller."""
        ...

    def of_tokens(self, tokens: torch.Tensor) -> Mix:
        """The mix for these tokens only. tokens: [N] int64, indices into the T; -1 for a padding row."""
        ...


class Linear:
    """x @ W.T + b, where W stacks the rows of its parts in order."""

    def __init__(
        self,
        parts: Mapping[str, int],
        in_features: int,
        has_bias: bool,
        kernels: KernelSet,
        dtype: torch.dtype,
        device: torch.device,
        scheme: str | None = None,
        order: torch.Tensor | None = None,
        finish: Finish | None = None,
        *,
        unbiased: Collection[str] = (),
        bias_name: str | None = None,
    ) -> None:
        """
        parts: name in the checkpoint (without `.weight`) -> out_features.
        unbiased: parts for which the checkpoint has no bias although others have one: theirs is zero.
        bias_name: of a layer with one part, in the checkpoint; None: it has the name of the weight.
        scheme: quantises the weight.
        order: of the outputs, as indices of the stacked rows, -1 for outputs that are 0; None for that of the parts.
        finish: makes the result of the outputs of a part of the weight; None if this is all of it.
        """
        self.parts = parts
        self.in_features, self.dtype = in_features, dtype
        self._biased = frozenset(parts) - frozenset(unbiased) if has_bias else frozenset()
        self._bias_name = bias_name
        self._kernels = kernels
        self._device = device
        self._scheme = scheme
        self._order = order
        self._has_zeros = order is not None and bool((order < 0).any())
        self._finish = finish
        self._packed: PackedLinear | None = None

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for name, rows in self.parts.items():
            yield f"{name}.weight", (rows, self.in_features)
            if name in self._biased:
                yield self._bias_name or f"{name}.bias", (rows,)

    def load(self, tensors: TensorReader) -> None:
        bias = self._stacked_bias(tensors) if self._biased else None
        if (kept := self._integers(tensors, bias) or self._grouped(tensors, bias)) is not None:
            self._packed = kept
            return
        is_single = len(self.parts) == 1 and self._device.type == "cpu" and self._order is None
        view = tensors.view(f"{next(iter(self.parts))}.weight", self.dtype) if is_single else None
        weight = self._stacked_weight(tensors) if view is None else view
        if self._scheme is None:
            packed = self._kernels.pack_linear(weight, bias)
        else:
            packed = self._kernels.quantise_linear(weight, bias, self._scheme)
        if (
            view is not None and packed.weight.data_ptr() == view.data_ptr()
        ):  # it keeps the file's map, which will be released
            packed = replace(packed, weight=view.clone())
        self._packed = packed

    def _integers(self, tensors: TensorReader, bias: torch.Tensor | None) -> PackedLinear | None:
        """The codes of the checkpoint, if its method rounds the inputs of all parts as the kernels do."""
        pack = self._kernels.pack_integers
        if self._scheme is not None or pack is None or self._has_zeros:
            return None
        parts = [tensors.integers(f"{name}.weight") for name in self.parts]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            return None
        codes, scales = torch.cat([part.codes for part in found]), torch.cat([part.scales for part in found])
        if self._order is not None:
            codes, scales = codes[self._order], scales[self._order]
        return pack(Integers(codes, scales), bias, self.dtype)

    def _grouped(self, tensors: TensorReader, bias: torch.Tensor | None) -> PackedLinear | None:
        """The codes of the checkpoint, if all parts have some. Parts that are not alike become pieces."""
        pack = self._kernels.pack_grouped
        if self._scheme is not None or pack is None or self._has_zeros:
            return None
        parts: list[Grouped] = []
        for name in self.parts:
            part = tensors.grouped(f"{name}.weight", self.dtype)
            if part is None:
                return None
            parts.append(part)
        pieces = list(_runs(parts))
        if self._order is not None:
            if len(pieces) > 1:
                return None
            pieces = [[stacked(parts).rows(self._order)]]
        packed: list[PackedLinear] = []
        first = 0
        for piece in pieces:
            stop = first + sum(part.shape[0] for part in piece)
            own = None if bias is None else bias[first:stop]
            if (layer := pack(piece, own, self.dtype)) is None:
                return None
            packed.append(layer)
            first = stop
        return packed[0] if len(packed) == 1 else self._kernels.join_linear(packed)

    def take_weights(self, other: Self) -> None:
        """Take the weights of another layer. Only this layer's weight exists twice meanwhile."""
        self._packed, other._packed = self._kernels.repack_linear(other.packed), None

    def held(self) -> Held:
        return {"packed": self.packed}

    def hold(self, held: Held) -> None:
        self._packed = linear_of(held, "packed", self._num_outputs, self.in_features, self.dtype)

    def _stacked_weight(self, tensors: TensorReader) -> torch.Tensor:
        whole = torch.empty(sum(self.parts.values()), self.in_features, dtype=self.dtype, device=self._device)
        for name, part in zip(self.parts, torch.split(whole, list(self.parts.values())), strict=True):
            tensors.read(f"{name}.weight", part)
        return self._ordered(whole)

    def _stacked_bias(self, tensors: TensorReader) -> torch.Tensor:
        whole = torch.zeros(sum(self.parts.values()), dtype=self.dtype, device=self._device)
        for name, part in zip(self.parts, torch.split(whole, list(self.parts.values())), strict=True):
            if name in self._biased:
                tensors.read(self._bias_name or f"{name}.bias", part)
        return self._ordered(whole)

    def _ordered(self, rows: torch.Tensor) -> torch.Tensor:
        if self._order is None:
            return rows
        if self._has_zeros:
            rows = torch.cat((rows, torch.zeros_like(rows[:1])))  # the last one
        return rows[self._order]

    @property
    def _num_outputs(self) -> int:
        return sum(self.parts.values()) if self._order is None else len(self._order)

    @property
    def num_bytes(self) -> int:
        if self.packed.scales is not None or self.packed.is_grouped:
            return self.packed.num_bytes
        unpadded = sum(math.prod(shape) for _, shape in self.wanted()) * self.dtype.itemsize
        return min(unpadded, self.packed.num_bytes)  # without the padding of the last panel, as `engine plan` counts

    def rows_of(self, part: str, rows: range) -> torch.Tensor:
        """Rows of the weight of one part, [rows, in_features] float32, also where it has codes. Any thread may ask."""
        places, first = self._places(part)[rows.start : rows.stop], 0
        found = torch.empty(len(places), self.in_features)
        for piece in self.packed.pieces or (self.packed,):
            is_own = (places >= first) & (places < first + piece.out_features)
            if bool(is_own.any()):
                found[is_own] = self._kernels.weight_rows(places[is_own] - first, piece).float()
            first += piece.out_features
        return found

    def bias_of(self, part: str) -> torch.Tensor | None:
        """The bias of one part, float32; None of a layer without biases."""
        pieces = self.packed.pieces or (self.packed,)
        if all(piece.bias is None for piece in pieces):
            return None
        whole = torch.cat(
            [
                torch.zeros(piece.out_features) if piece.bias is None else piece.bias[: piece.out_features].float()
                for piece in pieces
            ]
        )
        return whole[self._places(part)]

    def _places(self, part: str) -> torch.Tensor:
        """The places of the outputs of a part among those of the layer."""
        names = list(self.parts)
        first = sum(self.parts[name] for name in names[: names.index(part)])
        rows = torch.arange(first, first + self.parts[part])
        if self._order is None:
            return rows
        places = torch.empty(sum(self.parts.values()), dtype=torch.int64)
        is_own = self._order >= 0
        places[self._order[is_own]] = torch.arange(len(self._order))[is_own]
        return places[rows]

    @property
    def packed(self) -> PackedLinear:
        assert self._packed is not None, f"{list(self.parts)} used before it was loaded"
        return self._packed

    def __call__(self, x: torch.Tensor, mix: Mix | None = None) -> torch.Tensor:
        """x: [T, in_features]. mix: of the T tokens. Returns [T, outputs]."""
        out = self._kernels.linear(x, self.packed)
        if mix is not None:
            out = self._added(mix, x, out)
        return out if self._finish is None else self._finish(out)

    def _added(self, mix: Mix, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Let the mix add its deltas, which it knows in the order of the parts."""
        if self._order is None:
            return mix.added(self, x, out)
        is_own = (self._order >= 0).to(out.device)
        order = self._order.to(out.device)[is_own]
        found = out.clone()
        found[:, is_own] = mix.added(self, x, out[:, is_own][:, order.argsort()])[:, order]
        return found

    def of_normed(
        self, norm: AnyNorm, x: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [T, in_features]; residual: the same, None before the first layer. mix: of the T tokens.

        Returns the layer's output for norm(x + residual), [T, sum of the parts], and the sum.
        """
        if mix is not None or not isinstance(norm, RMSNorm):
            normed, total = norm(self._kernels, x, residual, mix)
            return self(normed, mix), total
        out, total = self._kernels.norm_linear(x, residual, norm.weight, norm.eps, self.packed)
        return out if self._finish is None else self._finish(out), total


def _runs(parts: Sequence[Grouped]) -> Iterator[list[Grouped]]:
    """Neighbours that are alike."""
    run: list[Grouped] = []
    for part in parts:
        if run and not are_alike([run[0], part]):
            yield run
            run = []
        run.append(part)
    yield run
