"""Deltas of adapters, compared with their reference."""

from __future__ import annotations

import pytest
import torch
from tests.unit.engine.kernels.test_lora_add import Rows, weights_of

from stoker.engine.kernels.lora_add import LoraLayer, LoraWeights, lora_add_reference

pytest.importorskip("triton")
from stoker.engine.kernels.gpu.lora_add import lora_add_gpu

from .batches import DTYPES, LIMITS


def layer_of(widths: tuple[int, ...], depth: int, dtype: torch.dtype, device: torch.device) -> LoraLayer:
    """Three slots, the last one empty; the second changes the last part only, and has a bias."""
    layer = LoraLayer(widths, depth, 3, device, max_rank=20)
    none = (0,) * (len(widths) - 1)
    for slot, weights in enumerate(
        (weights_of((17,) * len(widths), widths, depth, dtype), weights_of((*none, 3), widths, depth, dtype, True))
    ):
        bias = None if weights.bias is None else weights.bias.to(device)
        b = tuple(each.to(device) for each in weights.b)
        layer.place(slot, LoraWeights(weights.a.to(device), weights.first, b, bias))
    return layer


@DTYPES
@pytest.mark.parametrize(
    ("widths", "depth", "slots"),
    [
        ((70, 32, 33), 100, [0, -1, 1, 0, 2, 1, 1]),
        ((7,), 33, [1]),
        ((40, 9), 65, [0] * 37 + [-1] * 2 + [1] * 18),
        ((16,), 16, [-1, 2]),
        ((16,), 16, []),
    ],
)
def test_the_rows_of_each_adapter_get_its_delta(device, dtype, widths, depth, slots):
    layer, rows = layer_of(widths, depth, dtype, device), Rows.of(slots, 3)
    rows = Rows(rows.tokens.to(device), rows.starts.to(device))
    x = torch.randn(len(slots), depth, device=device).to(dtype)
    out = torch.randn(len(slots), sum(widths), device=device).to(dtype)
    expected = out.clone()
    lora_add_reference(x, expected, rows, layer)
    lora_add_gpu(x, out, rows, layer)
    torch.testing.assert_close(out, expected, atol=LIMITS[dtype], rtol=LIMITS[dtype])


def test_other_shapes_are_refused(device):
    layer, rows = layer_of((16,), 16, torch.float32, device), Rows.of([0], 3)
    with pytest.raises(ValueError, match="the layer"):
        lora_add_gpu(torch.zeros(1, 8, device=device), torch.zeros(1, 16, device=device), rows, layer)
    with pytest.raises(ValueError, match="contiguous"):
        lora_add_gpu(torch.zeros(16, 1, device=device).t(), torch.zeros(1, 32, device=device)[:, ::2], rows, layer)
