"""Decode and prefill attention against the reference in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.slow_cases import slow

from stoker.engine.kernels.attention_variant import AttentionVariant
from stoker.engine.kernels.paged_attention import paged_attention_reference

from .batches import DTYPES, LIMITS, Batch, batch

pytest.importorskip("triton")
from tests.kernels.references import attention_reference

from stoker.engine.kernels.gpu import decode_attention as gpu
from stoker.engine.kernels.gpu.prefill_attention import prefill_attention

SCALE = 0.25
DECODES = [(1, 33), (0, 0), (1, 1), (1, 150), (1, 64), (1, 65)]
CHUNKS = [(7, 7), (0, 0), (2, 90), (70, 70), (33, 200), (3, 3), (40, 86), (60, 82)]
PROGRAMS = pytest.mark.parametrize("programs", [5, slow(64)])
VARIANTS = {
    "plain": AttentionVariant(),
    "window": AttentionVariant(window=40),
    "window of one": AttentionVariant(window=1),
    "softcap": AttentionVariant(softcap=0.7),
    "sinks": AttentionVariant(sinks=torch.tensor([0.5, -1.0, 2.0, 0.0])),
    "slopes": AttentionVariant(slopes=torch.tensor([0.25, 0.125, 0.5, 0.0625])),
    "window, softcap and sinks": AttentionVariant(70, softcap=1.0, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0])),
    "chunks": AttentionVariant(window=40, is_chunked=True),
    "chunks of a tile, softcap and sinks": AttentionVariant(64, True, 1.0, torch.tensor([0.5, -1.0, 2.0, 0.0])),
    "scaled": AttentionVariant(k_scale=0.5, v_scale=2.0),
}
_QUICK = ("plain", "window", "slopes", "window, softcap and sinks", "chunks", "chunks of a tile, softcap and sinks")
NAMED = pytest.mark.parametrize("name", [name if name in _QUICK else slow(name) for name in VARIANTS])
SHAPES = pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "block_size"),
    [
        (3, 1, 24, 64),
        *(slow(*each) for each in ((4, 2, 16, 16), (2, 2, 16, 128), (14, 2, 16, 32), (4, 4, 80, 16), (2, 1, 136, 32))),
    ],
)


def decoded(made: Batch, variant: AttentionVariant, programs: int, workspace=None) -> torch.Tensor:
    _, num_heads, head_dim = made.q.shape
    out = torch.full((len(made.q), num_heads * head_dim), torch.nan, dtype=made.q.dtype, device=made.q.device)
    workspace = workspace or gpu.decode_workspace(
        len(made.context_lens), num_heads, made.k_cache.shape[1], head_dim, made.q.device, programs
    )
    gpu.decode_attention(made.q, made.k_cache, made.v_cache, made, SCALE, out, workspace, variant)
    assert not workspace.tickets.any()
    return out


def prefilled(made: Batch, variant: AttentionVariant, programs: int) -> torch.Tensor:
    _, num_heads, head_dim = made.q.shape
    out = torch.full((len(made.q), num_heads * head_dim), torch.nan, dtype=made.q.dtype, device=made.q.device)
    prefill_attention(made.q, made.k_cache, made.v_cache, made, SCALE, out, programs, variant)
    return out


def assert_attended(found: torch.Tensor, made: Batch, variant: AttentionVariant, is_wanted: torch.Tensor) -> None:
    """Rows that are not wanted must be unchanged."""
    expected = attention_reference(made.q, made.k_cache, made.v_cache, made, SCALE, variant)
    limit = LIMITS[made.q.dtype]
    torch.testing.assert_close(found[is_wanted].double(), expected[is_wanted], atol=limit, rtol=limit)
    assert found[~is_wanted].isnan().all()


def all_at_once(num_heads: int, device: torch.device) -> AttentionVariant:
    sinks, slopes = torch.randn(num_heads, device=device), torch.rand(num_heads, device=device) / 4
    return AttentionVariant(40, softcap=0.9, sinks=sinks, slopes=slopes)


def is_of_one_query(made: Batch) -> torch.Tensor:
    counts = made.query_start.diff()
    return (counts == 1).repeat_interleave(counts)


def on(device: torch.device, variant: AttentionVariant) -> AttentionVariant:
    def move(each: torch.Tensor | None) -> torch.Tensor | None:
        return None if each is None else each.to(device)

    return replace(variant, sinks=move(variant.sinks), slopes=move(variant.slopes))


def test_the_reference_agrees_with_that_of_the_cpu_kernel(device: torch.device):
    made = batch(CHUNKS + DECODES, device=device, dtype=torch.float32)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], device=device)
    for own in ((), (40,), (40, True), (None, False, 0.7), (7, True, 0.7, sinks), (70, False, None, sinks)):
        expected = paged_attention_reference(made.q, made.k_cache, made.v_cache, made, SCALE, AttentionVariant(*own))
        found = attention_reference(made.q, made.k_cache, made.v_cache, made, SCALE, AttentionVariant(*own))
        torch.testing.assert_close(found.float(), expected, atol=1e-5, rtol=1e-5)


@PROGRAMS
@NAMED
@pytest.mark.quick_cases(2)
def test_decode(device: torch.device, name: str, programs: int):
    made, variant = batch(DECODES, device=device), on(device, VARIANTS[name])
    assert_attended(decoded(made, variant, programs), made, variant, is_of_one_query(made))


@SHAPES
@DTYPES
def test_decode_of_other_shapes(device, dtype, num_heads, num_kv_heads, head_dim, block_size):
    shape = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim, "block_size": block_size}
    made = batch(DECODES, device=device, dtype=dtype, **shape)
    for variant in (AttentionVariant(), all_at_once(num_heads, device)):
        assert_attended(decoded(made, variant, 7), made, variant, is_of_one_query(made))


def test_a_workspace_serves_one_step_after_another(device: torch.device):
    workspace = gpu.decode_workspace(6, 4, 2, 16, device, 5)
    workspace.part_sums.fill_(torch.nan)
    workspace.part_stats.fill_(torch.nan)
    plain = AttentionVariant()
    for rows in (DECODES, [(1, 300)], [(1, 1)] * 6, [(0, 0)] * 3, DECODES[::-1]):
        made = batch(rows, device=device)
        assert_attended(decoded(made, plain, 5, workspace), made, plain, is_of_one_query(made))


@PROGRAMS
@NAMED
@pytest.mark.quick_cases(2)
def test_prefill(device: torch.device, name: str, programs: int):
    made, variant = batch(CHUNKS, device=device), on(device, VARIANTS[name])
    assert_attended(prefilled(made, variant, programs), made, variant, ~is_of_one_query(made))


@SHAPES
@DTYPES
def test_prefill_of_other_shapes(device, dtype, num_heads, num_kv_heads, head_dim, block_size):
    shape = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim, "block_size": block_size}
    made = batch(CHUNKS, device=device, dtype=dtype, **shape)
    for programs, variant in ((3, AttentionVariant()), (1, all_at_once(num_heads, device))):
        assert_attended(prefilled(made, variant, programs), made, variant, ~is_of_one_query(made))


@pytest.mark.parametrize("block_size", [16, slow(64), slow(96)])
@pytest.mark.parametrize("attend", [decoded, prefilled])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_keys_before_the_window_are_not_read(device: torch.device, attend, block_size: int, is_chunked: bool):
    rows = [(1, 150), (1, 64)] if attend is decoded else [(33, 200), (2, 90), (3, 150)]
    made = batch(rows, device=device, block_size=block_size)
    variant = AttentionVariant(20, is_chunked)
    expected = attention_reference(made.q, made.k_cache, made.v_cache, made, SCALE, variant)
    for row, (count, length) in enumerate(rows):
        first = variant.first_visible(length - count)
        for position in range(first):
            page = made.block_tables[row, position // block_size]
            made.k_cache[page, :, position % block_size] = torch.nan
            made.v_cache[page, :, position % block_size] = torch.nan
        made.block_tables[row, : first // block_size] = made.block_tables[row, -1]  # a page of NaN
    torch.testing.assert_close(attend(made, variant, 3).double(), expected, atol=2e-3, rtol=2e-3)


def test_each_kernel_leaves_the_rows_of_the_other(device: torch.device):
    made = batch([(1, 70), (5, 80), (1, 3), (0, 0), (66, 66)], device=device)
    plain = AttentionVariant()
    assert_attended(decoded(made, plain, 3), made, plain, is_of_one_query(made))
    assert_attended(prefilled(made, plain, 3), made, plain, ~is_of_one_query(made))


@pytest.mark.parametrize("attend", [decoded, prefilled])
def test_a_cache_in_fp8(device: torch.device, attend):
    rows = DECODES if attend is decoded else CHUNKS
    made = batch(rows, device=device, kv_dtype=torch.float8_e4m3fn)
    variant = AttentionVariant(k_scale=0.75, v_scale=1.5)
    is_wanted = is_of_one_query(made) if attend is decoded else ~is_of_one_query(made)
    assert_attended(attend(made, variant, 5), made, variant, is_wanted)


def test_no_rows_at_all(device: torch.device):
    made = batch([(0, 0)], device=device)
    assert decoded(made, AttentionVariant(), 2).shape == (0, 64)
    assert prefilled(made, AttentionVariant(), 2).shape == (0, 64)
