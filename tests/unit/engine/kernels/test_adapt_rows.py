"""Rows of the embedding that adapters change."""

from __future__ import annotations

import pytest
import torch

from stoker.engine.kernels.adapt_rows import AdaptedRows, LoraEmbedding, adapt_rows_reference
from stoker.engine.kernels.lora_add import in_panels

from .levels import LEVEL_NAMES, assert_close, kernels_of

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
CPU = torch.device("cpu")
VOCABULARY = 50


def embedding(width: int, dtype: torch.dtype) -> LoraEmbedding:
    """Slot 0 has all rows, slot 1 rows of three tokens, slot 2 matrices of rank 5, slot 3 nothing."""
    layer = LoraEmbedding(width, 4, CPU)
    layer.place(0, AdaptedRows(torch.randn(VOCABULARY, width).to(dtype)))
    layer.place(1, AdaptedRows(torch.randn(3, width).to(dtype), torch.tensor([0, 7, 49], dtype=torch.int32)))
    a, b = torch.randn(VOCABULARY, 5).to(dtype), torch.randn(width, 5).to(dtype)
    layer.place(2, AdaptedRows(a=a, b=in_panels(b)))
    return layer


def expected_of(rows: torch.Tensor, ids: list[int], slots: list[int], layer: LoraEmbedding) -> torch.Tensor:
    """In float64, row by row."""
    found = rows.double()
    for row, (token, slot) in enumerate(zip(ids, slots, strict=True)):
        own = layer.slots[slot] if slot >= 0 else None
        if own is not None and own.rows is not None:
            known = list(range(VOCABULARY)) if own.ids is None else own.ids.tolist()
            if token in known:
                found[row] = own.rows[known.index(token)].double()
        if own is not None and own.a is not None and own.b is not None:
            matrix = torch.cat([panel.T for panel in own.b.double()])[: layer.width]
            found[row] += matrix @ own.a[token].double()
    return found


@LEVELS
@DTYPES
@pytest.mark.parametrize("width", [64, 33, 7])
def test_each_token_has_the_row_of_its_adapter(level, dtype, width):
    layer = embedding(width, dtype)
    ids, slots = [7, 7, 7, 8, 0, 49, 48, 3, 49], [0, 1, -1, 1, 1, 1, 1, 2, 3]
    rows = torch.randn(len(ids), width).to(dtype)
    before, expected = rows.clone(), expected_of(rows, ids, slots, layer)
    kernels_of(level, dtype, threads=2).adapt_rows(rows, torch.tensor(ids), torch.tensor(slots).int(), layer)
    assert_close(rows, expected, absolute=1e-5 if dtype is torch.float32 else 2**-6)
    for row in (2, 3, 6, 8):  # no adapter, tokens that it does not have, an adapter that changes nothing
        assert torch.equal(rows[row], before[row])
    assert torch.equal(rows[1], layer.slots[1].rows[1])


@pytest.mark.parametrize("level", [each for each in LEVEL_NAMES[1:] if each != "portable"])  # it captures no float32
def test_a_captured_call_reads_tokens_and_adapters_when_it_is_replayed(level):
    kernels = kernels_of(level, torch.float32)
    assert kernels.capture is not None
    layer, rows = embedding(32, torch.float32), torch.zeros(3, 32)
    ids, slots = torch.tensor([1, 2, 3]), torch.tensor([-1, -1, -1], dtype=torch.int32)
    graph = kernels.capture(lambda: kernels.adapt_rows(rows, ids, slots, layer))
    layer.place(3, AdaptedRows(torch.ones(1, 32), torch.tensor([9], dtype=torch.int32)))
    ids.copy_(torch.tensor([4, 9, 9]))
    slots.copy_(torch.tensor([0, 3, 1]))
    rows.zero_()
    graph.replay()
    expected = torch.zeros(3, 32)
    adapt_rows_reference(expected, ids, slots, layer)
    assert torch.equal(rows, expected)
    assert [bool(row.any()) for row in rows] == [True, True, False]


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
def test_other_shapes_are_refused(level):
    kernels = kernels_of(level, torch.float32)
    with pytest.raises(ValueError, match="the embedding has 32 columns"):
        kernels.adapt_rows(
            torch.zeros(2, 16), torch.zeros(2).long(), torch.zeros(2).int(), embedding(32, torch.float32)
        )
