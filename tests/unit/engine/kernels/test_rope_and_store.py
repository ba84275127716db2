import pytest
import torch

from .levels import LEVEL_NAMES, assert_close, kernels_of


def rotated(heads, norm, cos_sin, positions, eps=1e-6):
    """The expected result, computed in float64 pair by pair."""
    heads = heads.double()
    if norm is not None:
        heads = heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + eps) * norm.double()
    half = cos_sin.shape[1] // 2
    out = heads.clone()
    for token, position in enumerate(positions.tolist()):
        for i in range(half):
            cos, sin = cos_sin[position, i].double(), cos_sin[position, half + i].double()
            a, b = heads[token, :, i], heads[token, :, half + i]
            out[token, :, i], out[token, :, half + i] = a * cos - b * sin, b * cos + a * sin
    return out


@pytest.mark.parametrize("level", LEVEL_NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary_dim", "normed"),
    [(4, 2, 16, 16, True), (1, 1, 80, 80, False), (7, 1, 64, 24, True), (2, 2, 128, 128, True)],
)
def test_queries_and_keys_are_rotated_and_the_cache_is_written(
    level, dtype, heads, kv_heads, head_dim, rotary_dim, normed
):
    tokens, block_size = 5, 8
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    norms = [torch.randn(head_dim, dtype=dtype) if normed else None for _ in range(2)]
    cos_sin = torch.rand(50, rotary_dim)
    positions, slots = torch.tensor([0, 49, 3, 4, 7]), torch.tensor([9, 31, 0, 8, 15])
    k_cache, v_cache = (torch.full((4, kv_heads, block_size, head_dim), torch.nan, dtype=dtype) for _ in range(2))
    kernels = kernels_of(level, dtype, head_dim)
    queries = kernels.rope_and_store(qkv, *norms, 1e-6, cos_sin, positions, slots, k_cache, v_cache, heads, kv_heads)
    q, k, v = qkv.view(tokens, -1, head_dim).split([heads, kv_heads, kv_heads], 1)
    assert_close(queries, rotated(q, norms[0], cos_sin, positions), absolute=1e-5)
    expected = rotated(k, norms[1], cos_sin, positions)
    for token, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, block_size)
        assert_close(k_cache[block, :, offset], expected[token], absolute=1e-5)
        assert torch.equal(v_cache[block, :, offset], v[token])
    written = ~k_cache.isnan().any(-1).any(1).flatten()
    assert written.nonzero().flatten().tolist() == sorted(slots.tolist())


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
def test_a_row_that_does_not_fit_the_heads_is_refused(level):
    cache = torch.zeros(1, 2, 8, 16)
    with pytest.raises(ValueError, match=r"qkv is \(1, 100\) for 4 \+ 2 \* 2 heads of 16"):
        kernels_of(level, torch.float32, 16).rope_and_store(
            torch.zeros(1, 100), None, None, 1e-6, torch.zeros(1, 16), torch.tensor([0]), torch.tensor([0]), cache,
            cache, 4, 2,
        )  # fmt: skip
