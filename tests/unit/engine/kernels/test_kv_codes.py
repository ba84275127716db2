"""Keys and values in 8 bits: stored as the reference stores them, and attended to as the values that they stand for."""

import pytest
import torch

from stoker.engine.kernels.attention_variant import PLAIN, AttentionVariant
from stoker.engine.kernels.kv_codes import blocks_in, codes_and_scales, to_codes
from stoker.engine.kernels.rope_and_store import rope_and_store_reference
from stoker.model.sizes import KV_SCALE_BYTES

from .levels import LEVEL_NAMES, assert_close, kernels_of
from .test_paged_attention import attended, make_case

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
VARIANTS = {
    "plain": PLAIN,
    "window": AttentionVariant(40),
    "chunks": AttentionVariant(40, True),
    "window, softcap and sinks": AttentionVariant(70, softcap=1.0, sinks=SINKS),
    "slopes": AttentionVariant(slopes=torch.tensor([0.25, 0.125, 0.5, 0.0625])),
}


def empty_cache(num_blocks, kv_heads, block_size, head_dim):
    """Codes and scales that must not be read: 127 times NaN."""
    cache = torch.full((num_blocks, kv_heads, block_size, head_dim + KV_SCALE_BYTES), 127, dtype=torch.int8)
    codes_and_scales(cache)[1].fill_(torch.nan)
    return cache


def in_codes(case, head_dim):
    """The case's caches in 8 bits. Its keys and values become what the codes stand for."""
    caches = []
    for wide, rows in ((case.k_cache, case.keys), (case.v_cache, case.values)):
        cache = empty_cache(*wide.shape[:3], head_dim)
        parts = codes_and_scales(cache)
        for part, found in zip(parts, to_codes(wide), strict=True):
            part.copy_(found)
        parts[1].masked_fill_(wide.isnan().any(-1), torch.nan)
        for row in rows:
            codes, scales = to_codes(row)
            row.copy_(codes.float() * scales.unsqueeze(-1))
        caches.append(cache)
    return caches


def check(level, dtype, rows, heads, kv_heads, head_dim, block_size, variant=PLAIN, **options):
    case = make_case(rows, heads, kv_heads, head_dim, block_size, dtype)
    caches = in_codes(case, head_dim)
    kernels = kernels_of(level, dtype, head_dim, kv_dtype=torch.int8, **options)
    out = kernels.paged_attention(case.q, *caches, case.step, head_dim**-0.5, variant)
    # Integer products round queries to 15 and weights to 16 bits.
    assert_close(out, attended(case, head_dim**-0.5, variant), absolute=2e-4 if dtype == torch.float32 else 0.02)


@LEVELS
@DTYPES
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"),
    [(1, 1, 16, 8), (4, 2, 128, 16), (7, 1, 80, 16), (20, 1, 48, 128), (2, 2, 256, 64), (4, 2, 512, 16)],
)
@pytest.mark.quick_cases(8)
def test_rows_of_any_length_and_group(level, dtype, heads, kv_heads, head_dim, block_size):
    check(level, dtype, [(1, 1), (1, 17), (7, 7), (1, 33), (33, 40), (1, 600)], heads, kv_heads, head_dim, block_size)


@LEVELS
@pytest.mark.parametrize("name", VARIANTS)
def test_what_models_add_to_attention(level, name):
    check(level, torch.bfloat16, [(1, 1), (1, 150), (33, 200), (1, 64)], 4, 2, 32, 16, VARIANTS[name])


@LEVELS
@DTYPES
def test_keys_and_values_are_stored_as_by_the_reference(level, dtype):
    heads, kv_heads, head_dim, block_size = 4, 2, 80, 8
    qkv = torch.randn(5, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    qkv[1, heads * head_dim :] = 0
    qkv[2] *= 1e-35  # too small for a scale
    positions, slots = torch.tensor([0, 49, 3, 4, 7]), torch.tensor([9, 31, 0, 8, 15])
    norms = torch.rand(2, head_dim)
    cos_sin = torch.rand(50, head_dim)
    found, expected = ([empty_cache(4, kv_heads, block_size, head_dim) for _ in "kv"] for _ in range(2))
    store = kernels_of(level, dtype, head_dim, kv_dtype=torch.int8).rope_and_store
    arguments = qkv, *norms, 1e-6, cos_sin, positions, slots
    queries = store(*arguments, *found, heads, kv_heads)
    assert_close(queries, rope_and_store_reference(*arguments, *expected, heads, kv_heads).double(), absolute=1e-5)
    for mine, theirs in zip(found, expected, strict=True):
        (codes, scales), (codes_of_reference, scales_of_reference) = codes_and_scales(mine), codes_and_scales(theirs)
        torch.testing.assert_close(scales, scales_of_reference, equal_nan=True, rtol=0.01, atol=1e-30)
        assert (codes.int() - codes_of_reference.int()).abs().max() <= 1  # keys differ in their last bit


@LEVELS
def test_what_is_not_finite_stays_so(level):
    kernels = kernels_of(level, torch.bfloat16, 16, kv_dtype=torch.int8)
    for part in (16, 32):  # keys, values
        caches = [empty_cache(1, 1, 8, 16) for _ in "kv"]
        qkv = torch.ones(1, 48, dtype=torch.bfloat16)
        qkv[0, part + 3] = torch.inf
        slots = torch.zeros(1, dtype=torch.int64)
        queries = kernels.rope_and_store(qkv, None, None, 0.0, None, slots, slots, *caches, 1, 1)
        case = make_case([(1, 1)], 1, 1, 16, 8, torch.bfloat16)
        case.step.block_tables.fill_(0)
        attended = kernels.paged_attention(queries, *caches, case.step, 0.25)
        assert not codes_and_scales(caches[part // 32])[1][0, 0, 0].isfinite()
        # As in a bfloat16 cache: without AVX512, the weight of a key that is not a number is one.
        assert part == 16 or not attended.isfinite().any()


@LEVELS
def test_a_row_has_the_same_bits_in_any_batch(level):
    kernels = kernels_of(level, torch.bfloat16, 64, kv_dtype=torch.int8, batch_invariant=True)
    case = make_case([(90, 700)], 4, 2, 64, 16, torch.bfloat16)
    caches = in_codes(case, 64)
    together = kernels.paged_attention(case.q, *caches, case.step, 0.125)
    for query in (0, 41, 89):
        case.step.context_lens[0], case.step.query_start[1] = 700 - 89 + query, 1
        alone = kernels.paged_attention(case.q[query : query + 1].contiguous(), *caches, case.step, 0.125)
        assert torch.equal(alone[0], together[query])


def test_the_error_of_a_head_is_at_most_half_a_step():
    heads = torch.randn(7, 3, 16)
    codes, scales = to_codes(heads)
    assert ((codes * scales.unsqueeze(-1) - heads).abs() <= scales.unsqueeze(-1) * 0.501).all()
    cache = torch.zeros(2, 3, 8, 20, dtype=torch.int8)
    codes_and_scales(cache)[1].fill_(2.0)
    codes_and_scales(cache)[0].fill_(3)
    assert torch.equal(blocks_in(cache, torch.tensor([1]), torch.float32), torch.full((1, 3, 8, 16), 6.0))
