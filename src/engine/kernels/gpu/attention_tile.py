"""One tile of keys and values in attention: read from its pages, scored, and folded into the running softmax.

Scores are in base 2: exp2 is the instruction that there is, and the factor is folded into the scale.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_tiles(
    k_cache, v_cache, block_table, kv_head, tile, positions, is_there,
    NUM_KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Keys and values of one kv head, [TILE, WIDTH] each, zeros where no token is. A tile in one page has one id."""
    dims = tl.arange(0, WIDTH)
    if BLOCK_SIZE % TILE == 0:
        page = tl.load(block_table + tile * TILE // BLOCK_SIZE).to(tl.int64)
    else:
        page = tl.load(block_table + positions // BLOCK_SIZE, mask=is_there, other=0).to(tl.int64)
    rows = (page * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + positions % BLOCK_SIZE
    mask = is_there[:, None]
    if WIDTH > HEAD_DIM:
        mask = mask & (dims < HEAD_DIM)[None, :]
    places = rows[:, None] * HEAD_DIM + dims[None, :]
    return tl.load(k_cache + places, mask=mask, other=0.0), tl.load(v_cache + places, mask=mask, other=0.0)


@triton.jit
def score(q, keys, scale, softcap, slopes, distances, HAS_SOFTCAP: tl.constexpr, HAS_SLOPES: tl.constexpr):
    """[M, TILE] float32 in base 2. slopes: [M]; distances: [M or 1, TILE], of keys from queries, 0 or less."""
    products = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale
    if HAS_SOFTCAP:
        products = softcap * (2 * tl.sigmoid(2 * products / softcap) - 1)
    if HAS_SLOPES:
        products += slopes[:, None] * distances
    return products * LOG2_E


@triton.jit
def fold(scores, values, most, total, sums):
    """The running softmax of a tile more. A query that has seen no key yet has a maximum of -inf."""
    highest = tl.maximum(most, tl.max(scores, 1))
    base = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(most - base)
    total = total * shrink + tl.sum(weights, 1)
    sums = sums * shrink[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return highest, total, sums


@triton.jit
def add_sinks(sinks, most, total, sums):
    """sinks: [M] float32, of each query's head."""
    highest = tl.maximum(most, sinks * LOG2_E)
    shrink = tl.exp2(most - highest)
    return total * shrink + tl.exp2(sinks * LOG2_E - highest), sums * shrink[:, None]
