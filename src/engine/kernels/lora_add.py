"""lora_add: adds the deltas of adapters (LoRA) to the product of a fused linear layer, for the rows that have one.

An adapter may also multiply the product, column by column (DoRA), and have some columns or a whole part of the weight
in place of the layer's own.

One op computes both products, x @ A.T and that @ B.T: on a CPU the intermediate values of a step are a few kilobytes,
which stay in the cache, and a call costs as much as reading one of the small matrices of a decode step. The rows of a
step are sorted by adapter. Their number, order and adapters are read from tensors, and the matrices of each slot of
adapters through a table of addresses, so that captured steps compute what these hold when they are replayed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ...model.adapter_bytes import PANEL
from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """What one adapter adds to one fused layer, and what it has in place of the layer's own.

    A part without a delta has rank 0. Where a part of the weight is the adapter's own, `first` is the number of rows of
    A, B is that part, of as many rows as the layer has inputs, and its factors are 0.
    """

    a: torch.Tensor  # [ranks, in_features]
    first: tuple[int, ...]  # of each part, its first row of A: parts may have rows in common
    b: tuple[
        torch.Tensor, ...
    ]  # of each part: [panels, rank, PANEL], the columns of B.T in panels, the last one padded
    bias: torch.Tensor | None = None  # [columns of all parts], float32
    factors: torch.Tensor | None = None  # [columns of all parts], float32: multiply the layer's own product
    # [n] int32: columns that are the products with the last n rows of A, and nothing else
    set_columns: torch.Tensor | None = None

    @property
    def has_inputs(self) -> bool:
        """Whether some B multiplies the inputs themselves."""
        return any(first == len(self.a) and b.shape[1] > 0 for first, b in zip(self.first, self.b, strict=True))

    @property
    def is_delta(self) -> bool:
        """Whether nothing is in place of the layer's own weights."""
        return self.factors is None and self.set_columns is None and not self.has_inputs

    @property
    def num_bytes(self) -> int:
        others = (self.bias, self.factors, self.set_columns)
        return sum(each.nbytes for each in (self.a, *self.b, *others) if each is not None)


class LoraLayer:
    """The adapters of one fused layer, by slot. The table is at the same address as long as the layer exists.

    A line of the table has the numbers that `_line_of` lists; those of a part are its first row of A, its rank and the
    address of its B.
    """

    def __init__(
        self, widths: Sequence[int], in_features: int, num_slots: int, device: torch.device, max_rank: int = 16
    ) -> None:
        """widths: columns of each part. max_rank: of a part, in any slot."""
        self.widths, self.in_features = tuple(widths), in_features
        self.max_ranks = max_rank * len(self.widths)
        self.slots: list[LoraWeights | None] = [None] * num_slots
        self.table = torch.zeros(num_slots, HEAD + 3 * len(self.widths), dtype=torch.int64, device=device)
        self.columns = torch.tensor(self.widths, dtype=torch.int64, device=device)

    def place(self, slot: int, weights: LoraWeights | None) -> None:
        """weights: None if the slot adds nothing to this layer."""
        assert weights is None or not weights.is_delta or len(weights.a) <= self.max_ranks, "a rank is too large"
        self.slots[slot] = weights
        if weights is None:
            self.table[slot] = 0
        else:
            self.table[slot] = torch.tensor(_line_of(weights), dtype=torch.int64)


HEAD = 8  # numbers of a line before those of the parts
A, RANKS, BIAS = 1, 2, 3  # which of them; the first says whether there is anything


def _line_of(weights: LoraWeights) -> list[int]:
    """The numbers of a line: whether there is anything; A and its rows; the bias; the factors; whether some B
    multiplies the inputs; the columns that are set, and their number; then what there is of each part."""
    columns = weights.set_columns
    line = [
        1,
        weights.a.data_ptr(),
        len(weights.a),
        _address(weights.bias),
        _address(weights.factors),
        int(weights.has_inputs),
        _address(columns),
        0 if columns is None else len(columns),
    ]
    for first, b in zip(weights.first, weights.b, strict=True):
        line += first, b.shape[1], b.data_ptr()
    return line


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


class LoraRows(Protocol):
    """The rows of a step that have an adapter."""

    @property
    def tokens(self) -> torch.Tensor:
        """[T] int32, a permutation of the tokens: those of slot 0, of slot 1, ..., those without one."""
        ...

    @property
    def starts(self) -> torch.Tensor:
        """[slots + 1] int32, where the tokens of each slot begin in `tokens`, and where those of the last one end."""
        ...


LoraAdd = Callable[[torch.Tensor, torch.Tensor, LoraRows, LoraLayer], None]


def lora_add_reference(x: torch.Tensor, out: torch.Tensor, rows: LoraRows, layer: LoraLayer) -> None:
    """Adds (x @ A.T) @ B.T and the bias, in float32, to the rows of `out` times the factors, and sets columns that are
    the adapter's. Rows are rounded once.

    x: [T, in_features]. out: [T, columns of all parts], in x's dtype. Sources: LoRA, arXiv:2106.09685, with the scale
    in B; DoRA, arXiv:2402.09353, with the factors.
    """
    starts = rows.starts.tolist()
    for weights, start, end in zip(layer.slots, starts, starts[1:], strict=False):
        if weights is None or start == end:
            continue
        tokens = rows.tokens[start:end].long()
        own = out[tokens].float() * (1 if weights.factors is None else weights.factors)
        own += delta_reference(x[tokens], weights, layer.widths)
        if (columns := weights.set_columns) is not None:
            own[:, columns.long()] = x[tokens].float() @ weights.a[len(weights.a) - len(columns) :].float().T
        out[tokens] = own.to(out.dtype)


def delta_reference(x: torch.Tensor, weights: LoraWeights, widths: Sequence[int]) -> torch.Tensor:
    """What an adapter adds to the product of some rows.

    x: [T, in_features]. widths: columns of each part. Returns [T, columns of all parts], float32.
    """
    shrunk = torch.cat((x.float() @ weights.a.float().T, x.float()), dim=1)
    parts = [
        shrunk[:, first : first + b.shape[1]]
        @ b.float().transpose(0, 1).reshape(b.shape[1], b.shape[0] * PANEL)[:, :width]
        for first, b, width in zip(weights.first, weights.b, widths, strict=True)
    ]
    delta = torch.cat(parts, dim=1)
    return delta if weights.bias is None else delta + weights.bias


# b, factor and the number of columns: see `in_panels`
PackLora = Callable[[torch.Tensor, torch.dtype, float, int], torch.Tensor]
AreFinite = Callable[[torch.Tensor], bool]


def in_panels(
    b: torch.Tensor, dtype: torch.dtype | None = None, factor: float = 1.0, columns: int | None = None
) -> torch.Tensor:
    """B in the layout of the kernels.

    Args:
        b: [rows, rank], the rows are columns of the product.
        dtype: of the result; None: that of b.
        factor: multiplies the elements in float32, before they are rounded.
        columns: at least the rows of b; None: as many.
    Returns:
        [panels, rank, PANEL], padded with zeros.
    """
    rows, rank = b.shape
    panels = -(-(rows if columns is None else columns) // PANEL)
    padded = b.new_zeros(panels * PANEL, rank, dtype=dtype or b.dtype)
    padded[:rows] = b if factor == 1 else b.float() * factor
    return padded.view(panels, PANEL, rank).transpose(1, 2).contiguous()


def are_finite_reference(values: torch.Tensor) -> bool:
    """Whether no element is infinite or not a number."""
    # The sum of all is finite nearly always, and takes a fraction of the time.
    return math.isfinite(values.sum().item()) or bool(values.isfinite().all())


def pack_lora_cpu(library: CpuLibrary, dtype: torch.dtype) -> PackLora:
    """The op of one thread, for threads beside that of the steps: torch's would compute with several."""
    call = library.op("pack_lora", dtype, [POINTER] * 2 + [INT64] * 3 + [FLOAT])

    def pack_lora(b: torch.Tensor, of_result: torch.dtype, factor: float, columns: int) -> torch.Tensor:
        if not b.dtype is of_result is dtype:
            return in_panels(b, of_result, factor, columns)
        (rows, rank), count = b.shape, -(-columns // PANEL)
        panels = torch.empty(count, rank, PANEL, dtype=dtype)
        b = b.contiguous()  # kept until the call returns
        call(pointer(b, dtype), panels.data_ptr(), rows, rank, count, factor)
        return panels

    return pack_lora


def are_finite_cpu(library: CpuLibrary, dtype: torch.dtype) -> AreFinite:
    """See pack_lora_cpu."""
    call = library.op("are_finite", dtype, [POINTER, INT64], INT)

    def are_finite(values: torch.Tensor) -> bool:
        if values.dtype is not dtype:
            return are_finite_reference(values)
        return bool(call(pointer(values, dtype), values.numel()))

    return are_finite


def lora_add_cpu(library: CpuLibrary, dtype: torch.dtype) -> LoraAdd:
    """Takes adapters whose elements have the type of x."""
    call = library.op("lora_add", dtype, [POINTER] * 6 + [INT64] * 4)

    def lora_add(x: torch.Tensor, out: torch.Tensor, rows: LoraRows, layer: LoraLayer) -> None:
        num_tokens, width = out.shape
        if x.shape != (num_tokens, layer.in_features) or width != sum(layer.widths):
            raise ValueError(f"x is {tuple(x.shape)}, out {tuple(out.shape)}, the layer {layer.widths}")
        call(
            pointer(x, dtype),
            pointer(out, dtype),
            pointer(rows.tokens, torch.int32),
            pointer(rows.starts, torch.int32),
            layer.table.data_ptr(),
            layer.columns.data_ptr(),
            len(layer.widths),
            len(layer.slots),
            layer.in_features,
            width,
        )

    return lora_add


@dataclass(frozen=True, slots=True)
class _OneRow:
    tokens: torch.Tensor
    starts: torch.Tensor


def lora_add_by_row(x: torch.Tensor, out: torch.Tensor, rows: LoraRows, layer: LoraLayer) -> None:
    """The reference for one row at a time: torch chooses the order of its sums by the number of rows."""
    starts = rows.starts.tolist()
    for slot, (start, end) in enumerate(itertools.pairwise(starts)):
        own = rows.starts.new_zeros(len(starts))
        own[slot + 1 :] = 1
        for token in rows.tokens[start:end].tolist():
            row = out[token : token + 1].clone()
            lora_add_reference(x[token : token + 1].clone(), row, _OneRow(rows.tokens.new_zeros(1), own), layer)
            out[token] = row[0]
