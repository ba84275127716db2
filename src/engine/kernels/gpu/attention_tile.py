"""One tile of keys and values in attention: loaded from its pages, scored, and added to the running softmax.

Scores are in base 2, because exp2 is a hardware instruction; the factor is part of the scale.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
# Of products of float32: three of tf32, equal to a float32 product within one or two roundings. "ieee" uses no tensor
# cores, and more registers than a thread has.
PRECISION = tl.constexpr("tf32x3")
_MOST_TILE = 64  # tokens; a page may be shorter or longer
_TILE_BYTES = 16384  # of keys: two or three such tiles and as many of values fit into shared memory


def width_of(head_dim: int) -> int:
    """Columns of a tile: a product of tensor cores takes 16 at least."""
    return max(16, int(triton.next_power_of_2(head_dim)))


def tile_of(head_dim: int, itemsize: int) -> int:
    """Tokens of one tile. itemsize: bytes of an element of the queries."""
    return max(16, min(_MOST_TILE, _TILE_BYTES // (width_of(head_dim) * itemsize)))


@triton.jit
def first_visible(positions, window, IS_CHUNKED: tl.constexpr):
    """The first token that queries at these positions see."""
    if IS_CHUNKED:
        first = positions // window * window
    else:
        first = positions - window + 1
    return tl.maximum(first, 0)


@triton.jit
def load_tiles(
    k_cache, v_cache, block_table, kv_head, tile, positions, is_there,
    NUM_KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Keys and values of one kv head, [TILE, WIDTH] each, zero in padding. A tile within one page needs one page id."""
    dims = tl.arange(0, WIDTH)
    mask = is_there[:, None]
    if WIDTH > HEAD_DIM:
        mask = mask & (dims < HEAD_DIM)[None, :]
    if BLOCK_SIZE % TILE == 0:
        page = tl.load(block_table + tile * TILE // BLOCK_SIZE).to(tl.int64)
        first = ((page * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + tile * TILE % BLOCK_SIZE) * HEAD_DIM
        places = tl.arange(0, TILE)[:, None] * HEAD_DIM + dims[None, :]  # the same for every tile: computed once
        return (
            tl.load(k_cache + first + places, mask=mask, other=0.0),
            tl.load(v_cache + first + places, mask=mask, other=0.0),
        )
    page = tl.load(block_table + positions // BLOCK_SIZE, mask=is_there, other=0).to(tl.int64)
    rows = (page * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + positions % BLOCK_SIZE
    places = rows[:, None] * HEAD_DIM + dims[None, :]
    return tl.load(k_cache + places, mask=mask, other=0.0), tl.load(v_cache + places, mask=mask, other=0.0)


@triton.jit
def multipliable(queries, k_cache, UPCAST: tl.constexpr):
    """Queries in the dtype of products with this cache, to which keys and values are converted too."""
    if k_cache.dtype.element_ty.is_fp8():
        queries = queries.to(tl.float16)  # fp8 is converted to float16 by one instruction, to other types by several
    if UPCAST:
        queries = queries.to(tl.float32)
    return queries


@triton.jit
def score(q, keys, scale, softcap, slopes, distances, HAS_SOFTCAP: tl.constexpr, HAS_SLOPES: tl.constexpr):
    """[M, TILE] float32 in base 2. slopes: [M]; distances: [M or 1, TILE], of keys from queries, 0 or less."""
    products = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
    if HAS_SOFTCAP:
        scores = softcap * LOG2_E * (2 * tl.sigmoid(products * (2 * scale / softcap)) - 1)
    else:
        scores = products * (scale * LOG2_E)
    if HAS_SLOPES:
        scores += (slopes * LOG2_E)[:, None] * distances
    return scores


@triton.jit
def fold(scores, values, most, total, sums):
    """Adds a tile to the running softmax. A query that has seen no key yet has a maximum of -inf."""
    highest = tl.maximum(most, tl.max(scores, 1))
    base = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(most - base)
    total = total * shrink + tl.sum(weights, 1)
    sums = sums * shrink[:, None] + tl.dot(weights.to(values.dtype), values, input_precision=PRECISION)
    return highest, total, sums


@triton.jit
def add_sinks(sinks, most, total, sums):
    """sinks: [M] float32, of each query's head."""
    highest = tl.maximum(most, sinks * LOG2_E)
    shrink = tl.exp2(most - highest)
    return total * shrink + tl.exp2(sinks * LOG2_E - highest), sums * shrink[:, None]
