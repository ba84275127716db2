from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from stoker.engine.kernels.lora_add import LoraLayer, LoraWeights, in_panels, lora_add_reference

from .levels import LEVEL_NAMES, assert_close, kernels_of

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@dataclass
class Rows:
    tokens: torch.Tensor
    starts: torch.Tensor

    @classmethod
    def of(cls, slots: list[int], num_slots: int) -> Rows:
        """slots: of each token, -1 for one without an adapter."""
        keys = torch.tensor([num_slots if slot < 0 else slot for slot in slots], dtype=torch.int64)
        counts = torch.bincount(keys, minlength=num_slots + 1)[:num_slots]
        starts = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
        return cls(torch.argsort(keys, stable=True).int(), starts.int())


def weights_of(
    ranks: tuple[int, ...], widths: tuple[int, ...], depth: int, dtype: torch.dtype, has_bias: bool = False
) -> LoraWeights:
    """The parts have a row of A in common with their neighbours."""
    first = [max(sum(ranks[:part]) - part, 0) for part in range(len(ranks))]
    num_rows = max(start + rank for start, rank in zip(first, ranks, strict=True))
    a = (torch.randn(num_rows, depth) / depth**0.5).to(dtype)
    b = tuple(in_panels(torch.randn(width, rank).to(dtype)) for rank, width in zip(ranks, widths, strict=True))
    return LoraWeights(a, tuple(first), b, torch.randn(sum(widths)) if has_bias else None)


def expected_of(x: torch.Tensor, out: torch.Tensor, slots: list[int], layer: LoraLayer) -> torch.Tensor:
    """In float64, row by row."""
    found = out.double()
    for row, slot in enumerate(slots):
        weights = layer.slots[slot] if slot >= 0 else None
        if weights is None:
            continue
        if weights.factors is not None:
            found[row] *= weights.factors.double()
        shrunk = torch.cat((weights.a.double() @ x[row].double(), x[row].double()))
        column = 0
        for first, b, width in zip(weights.first, weights.b, layer.widths, strict=True):
            matrix = torch.cat([panel.T for panel in b.double()])[:width]
            found[row, column : column + width] += matrix @ shrunk[first : first + b.shape[1]]
            column += width
        if weights.bias is not None:
            found[row] += weights.bias.double()
        if (columns := weights.set_columns) is not None:
            found[row, columns.long()] = shrunk[len(weights.a) - len(columns) : len(weights.a)]
    return found


@LEVELS
@DTYPES
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("widths", "depth", "slots"),
    [
        ((64, 32, 32), 96, [0, -1, 1, 2, 0, 1, 1]),
        ((7,), 33, [0]),
        ((100, 1), 31, [2, 2, 2, 2, 2, -1]),
        ((256, 96), 256, [0] * 70 + [1] * 3 + [-1] * 5 + [2] * 130),
        ((32,), 64, [-1, -1]),
        ((32,), 64, []),
    ],
)
def test_the_rows_of_each_adapter_get_its_delta(level, dtype, threads, widths, depth, slots):
    layer = LoraLayer(widths, depth, 4, torch.device("cpu"))
    layer.place(0, weights_of((16,) * len(widths), widths, depth, dtype))
    layer.place(1, weights_of((1, *[0] * (len(widths) - 1)), widths, depth, dtype, has_bias=True))
    layer.place(2, weights_of(tuple(range(5, 5 + len(widths))), widths, depth, dtype))
    x, out = torch.randn(len(slots), depth).to(dtype), torch.randn(len(slots), sum(widths)).to(dtype)
    expected = expected_of(x, out, slots, layer)
    before = out.clone()
    kernels_of(level, dtype, threads=threads).lora_add(x, out, Rows.of(slots, 4), layer)
    assert_close(out, expected, absolute=1e-5 if dtype is torch.float32 else 2**-7)
    base = [row for row, slot in enumerate(slots) if slot < 0]
    assert torch.equal(out[base], before[base])


def replacing(widths: tuple[int, int], depth: int, dtype: torch.dtype) -> list[LoraWeights]:
    """Factors beside a delta, a bias alone; the second part of the weight and three columns of the first."""
    magnified = replace(weights_of((5, 0), widths, depth, dtype, has_bias=True), factors=torch.rand(sum(widths)) + 0.5)
    none = torch.empty(0, depth, dtype=dtype)
    empty = in_panels(torch.empty(widths[0], 0, dtype=dtype))
    biased = LoraWeights(
        none, (0, 0), (empty, in_panels(torch.empty(widths[1], 0, dtype=dtype))), torch.ones(sum(widths))
    )
    own = (torch.randn(widths[1], depth) / depth**0.5).to(dtype)
    factors = torch.tensor([1.0] * widths[0] + [0.0] * widths[1])
    rows = (torch.randn(3, depth) / depth**0.5).to(dtype)
    columns = torch.tensor([2, 0, widths[0] - 1], dtype=torch.int32)
    return [magnified, biased, LoraWeights(rows, (0, 3), (empty, in_panels(own)), None, factors, columns)]


@LEVELS
@DTYPES
@pytest.mark.parametrize(("widths", "depth"), [((40, 33), 96), ((7, 100), 31)])
def test_what_is_the_adapter_s_own_is_in_place_of_the_layer_s(level, dtype, widths, depth):
    layer = LoraLayer(widths, depth, 3, torch.device("cpu"))
    for slot, weights in enumerate(replacing(widths, depth, dtype)):
        layer.place(slot, weights)
    slots = [0, 2, -1, 1, 2, 2, 0, 2, 2, -1]
    x, out = torch.randn(len(slots), depth).to(dtype), torch.randn(len(slots), sum(widths)).to(dtype)
    expected, before = expected_of(x, out, slots, layer), out.clone()
    kernels_of(level, dtype, threads=2).lora_add(x, out, Rows.of(slots, 3), layer)
    assert_close(out, expected, absolute=1e-5 if dtype is torch.float32 else 2**-6)
    assert torch.equal(out[[2, 9]], before[[2, 9]])


@LEVELS
@DTYPES
def test_a_row_does_not_depend_on_the_other_rows(level, dtype):
    kernels = kernels_of(level, dtype, threads=2, batch_invariant=True)
    layer = LoraLayer((96, 32), 257, 3, torch.device("cpu"))
    for slot in range(3):
        layer.place(slot, weights_of((5 + slot, 2), (96, 32), 257, dtype))
    slots = [slot for slot in (0, 1, -1, 2) for _ in range(37)]
    x, out = torch.randn(len(slots), 257).to(dtype), torch.randn(len(slots), 128).to(dtype)
    together = out.clone()
    kernels.lora_add(x, together, Rows.of(slots, 3), layer)
    for row in (0, 36, 37, 75, 110, 147):
        alone = out[row : row + 1].clone()
        kernels.lora_add(x[row : row + 1], alone, Rows.of([slots[row]], 3), layer)
        assert torch.equal(alone[0], together[row])


@LEVELS
def test_a_slot_is_emptied_and_filled_again(level):
    layer = LoraLayer((32,), 32, 1, torch.device("cpu"))
    kernels, rows = kernels_of(level, torch.float32), Rows.of([0], 1)
    address = layer.table.data_ptr()
    x = torch.randn(1, 32)
    found = []
    for weights in (weights_of((3,), (32,), 32, torch.float32), None, weights_of((9,), (32,), 32, torch.float32)):
        layer.place(0, weights)
        out = torch.zeros(1, 32)
        kernels.lora_add(x, out, rows, layer)
        assert_close(out, expected_of(x, torch.zeros(1, 32), [0], layer), absolute=1e-5)
        found.append(out.abs().sum().item())
    assert found[1] == 0 < min(found[0], found[2])
    assert layer.table.data_ptr() == address


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
def test_a_captured_call_reads_rows_and_adapters_when_it_is_replayed(level):
    kernels = kernels_of(level, torch.bfloat16)
    assert kernels.capture is not None
    layer = LoraLayer((64,), 64, 2, torch.device("cpu"))
    layer.place(0, weights_of((4,), (64,), 64, torch.bfloat16))
    x, out = torch.randn(3, 64).bfloat16(), torch.zeros(3, 64).bfloat16()
    rows = Rows.of([0, -1, -1], 2)
    graph = kernels.capture(lambda: kernels.lora_add(x, out, rows, layer))
    layer.place(1, weights_of((7,), (64,), 64, torch.bfloat16))
    later = Rows.of([1, -1, 0], 2)
    rows.tokens.copy_(later.tokens)
    rows.starts.copy_(later.starts)
    out.zero_()
    graph.replay()
    expected = torch.zeros(3, 64).bfloat16()
    lora_add_reference(x, expected, later, layer)
    torch.testing.assert_close(out, expected, atol=2**-7, rtol=2**-7)
    assert out[1].abs().sum() == 0 < out[0].abs().sum()


@LEVELS
@DTYPES
@pytest.mark.parametrize(("rows", "rank", "columns"), [(64, 16, 64), (33, 3, 50), (7, 1, 7), (0, 4, 40), (40, 0, 40)])
def test_b_is_packed_as_by_the_reference(level, dtype, rows, rank, columns):
    b = torch.randn(rows, rank).to(dtype)
    for factor in 1.0, 0.37:
        expected = in_panels(b, dtype, factor, columns)
        assert torch.equal(kernels_of(level, dtype).pack_lora(b, dtype, factor, columns), expected)
        assert expected.shape == (-(-columns // 32), rank, 32)
    transposed = b.T.contiguous().T
    assert torch.equal(
        kernels_of(level, dtype).pack_lora(transposed, dtype, 1.0, columns), in_panels(b, columns=columns)
    )
    other = torch.bfloat16 if dtype is torch.float32 else torch.float32
    packed = kernels_of(level, dtype).pack_lora(b.to(other), dtype, 0.37, columns)
    assert torch.equal(packed, in_panels((b.to(other).float() * 0.37).to(dtype), columns=columns))


@LEVELS
@DTYPES
@pytest.mark.parametrize("size", [1, 7, 100])
def test_numbers_that_are_not_finite_are_found(level, dtype, size):
    are_finite = kernels_of(level, dtype).are_finite
    largest = torch.full((size,), torch.finfo(dtype).max, dtype=dtype)  # whose sum is not finite
    assert are_finite(largest)
    for value in float("inf"), -float("inf"), float("nan"):
        for place in {0, size - 1}:
            values = largest.clone()
            values[place] = value
            assert not are_finite(values)


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
def test_other_shapes_are_refused(level):
    layer = LoraLayer((64,), 64, 1, torch.device("cpu"))
    kernels = kernels_of(level, torch.float32)
    with pytest.raises(ValueError, match="the layer"):
        kernels.lora_add(torch.zeros(1, 32), torch.zeros(1, 64), Rows.of([0], 1), layer)
