import pytest
import torch
from tests.slow_cases import slow

from stoker.engine.kernels.head_variant import PLAIN_HEADS, HeadVariant

from .levels import LEVEL_NAMES, assert_close, kernels_of


def normed(heads, norm, eps, variant):
    """heads: [T, heads, D] float64."""
    dims = (1, 2) if variant.is_over_all_heads else (2,)
    if variant.is_layer_norm:
        heads = heads - heads.mean(dims, keepdim=True)
    return heads * torch.rsqrt(heads.pow(2).mean(dims, keepdim=True) + eps) * norm.double().view(-1, heads.shape[2])


def rotated(heads, norm, cos_sin, positions, eps=1e-6, variant=PLAIN_HEADS):
    """The expected result, computed in float64 pair by pair."""
    heads = heads.double()
    if norm is not None and not variant.is_norm_last:
        heads = normed(heads, norm, eps, variant)
    half = 0 if cos_sin is None else cos_sin.shape[1] // 2
    out = heads.clone()
    for token, position in enumerate(positions.tolist()):
        for i in range(half):
            first, second = (2 * i, 2 * i + 1) if variant.is_interleaved else (i, half + i)
            cos, sin = cos_sin[position, i].double(), cos_sin[position, half + i].double()
            a, b = heads[token, :, first], heads[token, :, second]
            out[token, :, first], out[token, :, second] = a * cos - b * sin, b * cos + a * sin
    return normed(out, norm, eps, variant) if norm is not None and variant.is_norm_last else out


LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def check(level, dtype, heads, kv_heads, head_dim, rotary_dim, norm_sizes, variant=PLAIN_HEADS):
    """rotary_dim: None for no rotation. norm_sizes: None for no norms."""
    tokens, block_size = 5, 8
    qkv = torch.randn(tokens, variant.num_parts(heads, kv_heads) * head_dim, dtype=dtype)
    norms = [None, None] if norm_sizes is None else [torch.randn(size) for size in norm_sizes]
    cos_sin = None if rotary_dim is None else torch.rand(50, rotary_dim)
    positions, slots = torch.tensor([0, 49, 3, 4, 7]), torch.tensor([9, 31, 0, 8, 15])
    k_cache, v_cache = (torch.full((4, kv_heads, block_size, head_dim), torch.nan, dtype=dtype) for _ in range(2))
    kernels = kernels_of(level, dtype, head_dim)
    queries = kernels.rope_and_store(
        qkv, *norms, 1e-6, cos_sin, positions, slots, k_cache, v_cache, heads, kv_heads, variant
    )
    q, k, *own = qkv.view(tokens, -1, head_dim).split([heads] + [kv_heads] * (2 - variant.values_are_keys), 1)
    v = own[0] if own else k
    expected = rotated(q, norms[0], cos_sin, positions, variant=variant)
    if variant.query_scales is not None:
        expected = expected * variant.query_scales[positions].double()[:, None, None]
    assert_close(queries, expected, absolute=1e-5)
    expected = rotated(k, norms[1], cos_sin, positions, variant=variant)
    for token, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, block_size)
        assert_close(k_cache[block, :, offset], expected[token], absolute=1e-5)
        if variant.has_value_norm:
            wide = v[token].double()
            expected_values = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            assert_close(v_cache[block, :, offset], expected_values, absolute=1e-5)
        else:
            assert torch.equal(v_cache[block, :, offset], v[token])
    written = ~k_cache.isnan().any(-1).any(1).flatten()
    assert written.nonzero().flatten().tolist() == sorted(slots.tolist())


@LEVELS
@DTYPES
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary_dim", "has_norms"),
    [
        (4, 2, 16, 16, True),
        (1, 1, 80, 80, False),
        (7, 1, 64, 24, True),
        (2, 2, 128, 128, True),
        (3, 1, 96, 2, False),
        (2, 1, 48, None, True),
        (4, 2, 256, 256, True),
        (4, 2, 512, 128, True),
    ],
)
@pytest.mark.quick_cases(12)
def test_queries_and_keys_are_rotated_and_the_cache_is_written(
    level, dtype, heads, kv_heads, head_dim, rotary_dim, has_norms
):
    check(level, dtype, heads, kv_heads, head_dim, rotary_dim, [head_dim] * 2 if has_norms else None)


VARIANTS = {
    "interleaved": HeadVariant(is_interleaved=True),
    "layer norm": HeadVariant(is_layer_norm=True),
    "norm last": HeadVariant(is_norm_last=True),
    "scales": HeadVariant(query_scales=torch.linspace(0.5, 3, 50)),
    "values": HeadVariant(has_value_norm=True),
    "keys": HeadVariant(values_are_keys=True),
    "normed keys": HeadVariant(has_value_norm=True, values_are_keys=True),
    "all": HeadVariant(True, True, False, True, True, torch.linspace(0.5, 3, 50)),
}


@LEVELS
@DTYPES
@pytest.mark.parametrize("norm_size", [None, 48, 3 * 48])
def test_queries_alone_leave_the_cache_as_it_is(level, dtype, norm_size):
    """Of a layer that reads the cache of another one."""
    cache = torch.full((4, 1, 8, 48), 7.0, dtype=dtype)
    norm = None if norm_size is None else torch.randn(norm_size)
    cos_sin, positions = torch.rand(50, 48), torch.tensor([0, 49, 3])
    q = torch.randn(3, 3 * 48, dtype=dtype)
    found = kernels_of(level, dtype, 48).rope_and_store(
        q, norm, None, 1e-6, cos_sin, positions, torch.tensor([9, 31, 0]), cache, cache, 3, 0
    )
    assert_close(found, rotated(q.view(3, 3, 48), norm, cos_sin, positions), absolute=1e-5)
    assert bool((cache == 7).all())


@LEVELS
@DTYPES
@pytest.mark.parametrize("has_own_weights", [False, True])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary_dim"),
    [(4, 2, 64, 64), (7, 1, 80, 20), slow(2, 2, 128, 128), slow(3, 1, 48, None)],
)
@pytest.mark.quick_cases(48)
def test_variants_of_models(level, dtype, heads, kv_heads, head_dim, rotary_dim, variant, has_own_weights):
    sizes = [heads * head_dim, kv_heads * head_dim] if has_own_weights else [head_dim] * 2
    check(level, dtype, heads, kv_heads, head_dim, rotary_dim, sizes, variant)


@LEVELS
@DTYPES
@pytest.mark.parametrize("is_layer_norm", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "rotary_dim"), [(4, 2, 64, 64), (7, 1, 80, 20)])
def test_a_norm_over_all_heads(level, dtype, is_layer_norm, heads, kv_heads, head_dim, rotary_dim):
    variant = HeadVariant(is_layer_norm=is_layer_norm, is_over_all_heads=True)
    check(level, dtype, heads, kv_heads, head_dim, rotary_dim, [heads * head_dim, kv_heads * head_dim], variant)


def test_a_norm_over_all_heads_after_the_rotation_is_refused():
    with pytest.raises(ValueError, match="a norm over all heads precedes the rotation"):
        HeadVariant(is_over_all_heads=True, is_norm_last=True)


@LEVELS
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((16, None), "both have norms, or neither"),
        ((64, 16), "norms of 64 and 16 weights for 4 and 2 heads of 16"),
    ],
)
def test_norms_that_do_not_fit_the_heads_are_refused(level, sizes, message):
    q_norm, k_norm = (None if size is None else torch.ones(size) for size in sizes)
    cache, zero = torch.zeros(1, 2, 8, 16), torch.tensor([0])
    with pytest.raises(ValueError, match=message):
        kernels_of(level, torch.float32, 16).rope_and_store(
            torch.zeros(1, 128), q_norm, k_norm, 1e-6, None, zero, zero, cache, cache, 4, 2
        )


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
def test_a_row_that_does_not_fit_the_heads_is_refused(level):
    cache = torch.zeros(1, 2, 8, 16)
    with pytest.raises(ValueError, match=r"qkv is \(1, 100\) for 4 and 2 heads of 16"):
        kernels_of(level, torch.float32, 16).rope_and_store(
            torch.zeros(1, 100), None, None, 1e-6, torch.zeros(1, 16), torch.tensor([0]), torch.tensor([0]), cache,
            cache, 4, 2,
        )  # fmt: skip
