"""Norms, gates, rotary embedding and embedding, compared with their references."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stoker.engine.kernels.activation import ACTIVATIONS, activate_and_mul_reference, activate_reference
from stoker.engine.kernels.add_layer_norm import add_layer_norm_reference
from stoker.engine.kernels.add_rms_norm import add_rms_norm_reference
from stoker.engine.kernels.head_variant import HeadVariant
from stoker.engine.kernels.rope_and_store import rope_and_store_reference
from stoker.engine.kernels.scaling import add_scaled_reference, scale_and_cap_reference

pytest.importorskip("triton")
from stoker.engine.kernels.gpu.activation import activate_and_mul_gpu, activate_gpu
from stoker.engine.kernels.gpu.add_layer_norm import add_layer_norm_gpu
from stoker.engine.kernels.gpu.add_rms_norm import add_rms_norm_gpu
from stoker.engine.kernels.gpu.embed import embed_gpu
from stoker.engine.kernels.gpu.rope_and_store import rope_and_store_gpu
from stoker.engine.kernels.gpu.scaling import add_scaled_gpu, scale_and_cap_gpu

from .batches import ALL_DTYPES, DTYPES, LIMITS


def apart(rows: torch.Tensor) -> torch.Tensor:
    """The same rows, with NaN between them."""
    wide = torch.full((len(rows), rows.shape[1] + 5), torch.nan, dtype=rows.dtype, device=rows.device)
    wide[:, : rows.shape[1]] = rows
    return wide[:, : rows.shape[1]]


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    limit = LIMITS[expected.dtype]
    torch.testing.assert_close(found, expected, atol=limit, rtol=limit)


@ALL_DTYPES
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 100), (5, 1024), (0, 64)])
@pytest.mark.parametrize("has_residual", [False, True])
def test_add_rms_norm(device, dtype, rows, width, has_residual):
    x, residual = (torch.randn(rows, width, device=device).to(dtype) for _ in range(2))
    weight = torch.randn(width, device=device).to(dtype)
    other = residual if has_residual else None
    expected = add_rms_norm_reference(x, other, weight, 0.1)
    for given in (x, apart(x)):
        found = add_rms_norm_gpu(given, other if other is None else apart(other), weight, 0.1)
        assert_close(found[0], expected[0])
        assert torch.equal(found[1], expected[1])


def test_a_norm_of_other_shapes_is_refused(device):
    x = torch.zeros(2, 8, device=device)
    with pytest.raises(ValueError, match="residual"):
        add_rms_norm_gpu(x, torch.zeros(1, 8, device=device), torch.zeros(8, device=device), 1e-6)


@ALL_DTYPES
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 1100), (0, 8)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(device, dtype, rows, width, activation):
    gate_up = (2 * torch.randn(rows, 2 * width, device=device)).to(dtype)
    for given in (gate_up, apart(gate_up)):
        assert_close(activate_and_mul_gpu(given, activation), activate_and_mul_reference(gate_up, activation))
        assert_close(activate_gpu(given, activation), activate_reference(gate_up, activation))


@ALL_DTYPES
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 1100), (0, 8)])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_scaling(device, dtype, rows, width, softcap):
    x, residual = (torch.randn(rows, width, device=device).to(dtype) for _ in range(2))
    assert torch.equal(add_scaled_gpu(x, residual), x + residual)
    assert_close(add_scaled_gpu(x, residual, 0.22), add_scaled_reference(x, residual, 0.22))
    expected = scale_and_cap_reference(x.clone(), 0.7, softcap)
    assert_close(scale_and_cap_gpu(x, 0.7, softcap), expected)


def test_scaling_of_other_shapes_is_refused(device):
    x = torch.zeros(2, 8, device=device)
    with pytest.raises(ValueError, match="residual"):
        add_scaled_gpu(x, x[:1])
    with pytest.raises(ValueError, match="contiguous"):
        add_scaled_gpu(x, x.t().contiguous().t())
    with pytest.raises(ValueError, match="contiguous"):
        scale_and_cap_gpu(x[:, :4])


@ALL_DTYPES
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 100), (0, 64)])
@pytest.mark.parametrize("has_more", [False, True])
def test_add_layer_norm(device, dtype, rows, width, has_more):
    x, residual = ((torch.randn(rows, width, device=device) + 3).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(width, device=device).to(dtype) for _ in range(2))
    residual, bias = (residual, bias) if has_more else (None, None)
    expected = add_layer_norm_reference(x, residual, weight, bias, 0.1)
    for given in (x, apart(x)):
        found = add_layer_norm_gpu(given, residual if residual is None else apart(residual), weight, bias, 0.1)
        assert_close(found[0], expected[0])
        assert torch.equal(found[1], expected[1])


def test_a_layer_norm_is_exact_with_a_large_mean(device):
    x = torch.tensor([[10000.0, 10001.0, 10002.0]], device=device)
    ones = torch.ones(3, device=device)
    assert_close(add_layer_norm_gpu(x, None, ones, None, 0.0)[0], add_layer_norm_reference(x, None, ones, None, 0.0)[0])


def test_a_layer_norm_of_other_shapes_is_refused(device):
    x, eight = torch.zeros(2, 8, device=device), torch.zeros(8, device=device)
    with pytest.raises(ValueError, match="residual"):
        add_layer_norm_gpu(x, torch.zeros(1, 8, device=device), eight, None, 1e-6)
    with pytest.raises(ValueError, match="bias"):
        add_layer_norm_gpu(x, None, eight, eight[:7], 1e-6)


@ALL_DTYPES
def test_embed(device, dtype):
    weight = torch.randn(50, 1100, device=device).to(dtype)
    ids = torch.tensor([0, 49, 7, 7], device=device)
    assert torch.equal(embed_gpu(ids, weight), weight[ids])
    assert embed_gpu(ids[:0], weight).shape == (0, 1100)
    assert not embed_gpu(torch.tensor([-1, 50], device=device), weight).any()


def check_rope_and_store(device, dtype, num_heads, num_kv_heads, head_dim, rotary_dim, block_size, norm_sizes, variant):
    tokens = 6
    qkv = torch.randn(tokens, variant.num_parts(num_heads, num_kv_heads) * head_dim, device=device).to(dtype)
    norms = [None, None] if norm_sizes is None else [torch.randn(size, device=device) for size in norm_sizes]
    cos_sin = None if rotary_dim is None else torch.randn(40, rotary_dim, device=device)
    positions = torch.tensor([0, 1, 39, 5, 5, 17], device=device)
    slots = torch.randperm(4 * block_size)[:tokens].to(device)
    shape = (4, num_kv_heads, block_size, head_dim)
    caches = [torch.full(shape, torch.nan, device=device).to(dtype) for _ in range(4)]
    given, sizes = (*norms, 0.1, cos_sin, positions, slots), (num_heads, num_kv_heads, variant)
    expected = rope_and_store_reference(qkv, *given, *caches[:2], *sizes)
    found = rope_and_store_gpu(apart(qkv), *given, *caches[2:], *sizes)
    assert_close(found, expected)
    for ours, reference in zip(caches[2:], caches[:2], strict=True):
        torch.testing.assert_close(ours, reference, atol=LIMITS[dtype], rtol=LIMITS[dtype], equal_nan=True)


@DTYPES
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "rotary_dim", "block_size"),
    [(4, 2, 16, 16, 16), (3, 1, 24, 24, 8), (2, 2, 80, 32, 32), (2, 1, 16, None, 8)],
)
@pytest.mark.quick_cases(5)
def test_rope_and_store(device, dtype, has_norms, num_heads, num_kv_heads, head_dim, rotary_dim, block_size):
    sizes = [head_dim] * 2 if has_norms else None
    check_rope_and_store(device, dtype, num_heads, num_kv_heads, head_dim, rotary_dim, block_size, sizes, HeadVariant())


HEAD_VARIANTS = {
    "interleaved": HeadVariant(is_interleaved=True),
    "layer norm": HeadVariant(is_layer_norm=True),
    "norm last": HeadVariant(is_norm_last=True),
    "scales": HeadVariant(query_scales=torch.linspace(0.5, 3, 40)),
    "values": HeadVariant(has_value_norm=True),
    "keys": HeadVariant(has_value_norm=True, values_are_keys=True),
    "layer norm last": HeadVariant(True, True, False, True),
}


@DTYPES
@pytest.mark.parametrize("has_own_weights", [False, True])
@pytest.mark.parametrize("name", HEAD_VARIANTS)
@pytest.mark.quick_cases(2, name=["scales", "layer norm last"])
def test_variants_of_heads(device, dtype, name, has_own_weights):
    variant = HEAD_VARIANTS[name]
    scales = variant.query_scales
    variant = replace(variant, query_scales=None if scales is None else scales.to(device))
    sizes = [3 * 24, 24] if has_own_weights else [24, 24]
    for rotary_dim in (24, 10):
        check_rope_and_store(device, dtype, 3, 1, 24, rotary_dim, 8, sizes, variant)


@DTYPES
def test_queries_alone_leave_the_cache_as_it_is(device, dtype):
    cache, norm = torch.full((4, 1, 8, 24), 7.0, device=device).to(dtype), torch.randn(24, device=device)
    q, cos_sin = torch.randn(3, 2 * 24, device=device).to(dtype), torch.randn(40, 24, device=device)
    places = [torch.tensor(each, device=device) for each in ([0, 39, 5], [9, 31, 0])]
    given = (norm, None, 0.1, cos_sin, *places, cache, cache, 2, 0)
    assert_close(rope_and_store_gpu(apart(q), *given), rope_and_store_reference(q, *given))
    assert bool((cache == 7).all())


@DTYPES
@pytest.mark.parametrize("is_layer_norm", [False, True])
def test_a_norm_over_all_heads(device, dtype, is_layer_norm):
    variant = HeadVariant(is_layer_norm=is_layer_norm, is_over_all_heads=True)
    check_rope_and_store(device, dtype, 3, 2, 24, 24, 8, [3 * 24, 2 * 24], variant)


def test_rope_and_store_in_fp8_clamps_values_out_of_range(device):
    heads, head_dim, tokens = 2, 16, 7
    extremes = torch.tensor([0.0, 1e-4, 0.019, 1.1, 3.3, 446, 447, 448, 449, 464, 465, 480, 1e3, 1e5, 3e38, 0.3])
    qkv = torch.randn(tokens, 3 * heads, head_dim, device=device) * 0.02  # some of it below the smallest normal number
    qkv[:2, heads:], qkv[2:4, heads:] = extremes.to(device), -extremes.to(device)
    qkv[4, heads:, 7] = torch.nan
    qkv[0, 2 * heads :, 0] = torch.inf
    cos_sin = torch.tensor([[1.0, 1.0, 0.0, 0.0]], device=device)  # no rotation: it would add a rounding of float32
    positions, slots = torch.zeros(tokens, dtype=torch.int64, device=device), torch.randperm(8)[:tokens].to(device)
    caches = [torch.zeros(2, heads, 4, head_dim, device=device).to(torch.float8_e4m3fn) for _ in range(4)]
    rest = None, None, 1e-6, cos_sin, positions, slots
    rope_and_store_reference(qkv.flatten(1), *rest, *caches[:2], heads, heads)
    rope_and_store_gpu(apart(qkv.flatten(1)), *rest, *caches[2:], heads, heads)
    for ours, reference in zip(caches[2:], caches[:2], strict=True):
        torch.testing.assert_close(ours.float(), reference.float(), atol=0, rtol=0, equal_nan=True)
        kept = ours[slots // 4, :, slots % 4].float()
        assert kept[:4].abs().amax() == 448
        assert kept[4].isnan().sum() == heads


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.float8_e4m3fn])
def test_rope_and_store_divides_keys_and_values_by_their_scales(device, kv_dtype):
    heads, head_dim, tokens = 2, 16, 5
    qkv = torch.randn(tokens, 3 * heads * head_dim, device=device) * 1000
    cos_sin = torch.tensor([[1.0, 1.0, 0.0, 0.0]], device=device)
    positions, slots = torch.zeros(tokens, dtype=torch.int64, device=device), torch.randperm(8)[:tokens].to(device)
    caches = [torch.zeros(2, heads, 4, head_dim, device=device).to(kv_dtype) for _ in range(6)]
    rest, variant = (None, None, 1e-6, cos_sin, positions, slots), HeadVariant(k_scale=16.0, v_scale=0.5)
    queries = rope_and_store_reference(qkv, *rest, *caches[:2], heads, heads, variant)
    assert_close(rope_and_store_gpu(apart(qkv), *rest, *caches[2:4], heads, heads, variant), queries)
    rope_and_store_reference(qkv, *rest, *caches[4:], heads, heads)
    for ours, reference in zip(caches[2:4], caches[:2], strict=True):
        torch.testing.assert_close(ours.float(), reference.float(), atol=0, rtol=0)
    if kv_dtype == torch.float32:
        torch.testing.assert_close(caches[0] * 16, caches[4], atol=0, rtol=0)
        torch.testing.assert_close(caches[1] / 2, caches[5], atol=0, rtol=0)


def test_a_token_without_a_slot_is_not_stored(device):
    qkv, cos_sin = torch.randn(2, 64, device=device), torch.randn(4, 16, device=device)
    caches = [torch.full((2, 1, 4, 16), torch.nan, device=device) for _ in range(2)]
    zeros, nowhere = torch.zeros(2, dtype=torch.int64, device=device), torch.tensor([-1, -1], device=device)
    rope_and_store_gpu(qkv, None, None, 1e-6, cos_sin, zeros, nowhere, *caches, 2, 1)
    assert all(cache.isnan().all() for cache in caches)
