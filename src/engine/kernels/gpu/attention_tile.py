"""One tile of keys and values in attention: read from its pages, scored, and folded into the running softmax.

Scores are in base 2: exp2 is the instruction that there is, and the factor is folded into the scale.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
# Of products of float32: three of tf32, as exact as one to a rounding or two. A "ieee" one takes no tensor core, and
# more registers than there are.
PRECISION = tl.constexpr("tf32x3")
_MOST_TILE = 64  # tokens; a page may be shorter or longer
_TILE_BYTES = 16384  # of keys: two or three such tiles and as many of values fit into shared memory


def tile_of(head_dim: int, itemsize: int) -> int:
    """How many tokens are taken at once. itemsize: bytes of a number of the queries."""
    width: int = triton.next_power_of_2(head_dim)
    return max(16, min(_MOST_TILE, _TILE_BYTES // (width * itemsize)))


@triton.jit
def load_tiles(
    k_cache, v_cache, block_table, kv_head, tile, positions, is_there,
    NUM_KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Keys and values of one kv head, [TILE, WIDTH] each, zeros where no token is. A tile in one page has one id."""
    dims = tl.arange(0, WIDTH)
    mask = is_there[:, None]
    if WIDTH > HEAD_DIM:
        mask = mask & (dims < HEAD_DIM)[None, :]
    if BLOCK_SIZE % TILE == 0:
        page = tl.load(block_table + tile * TILE // BLOCK_SIZE).to(tl.int64)
        first = ((page * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + tile * TILE % BLOCK_SIZE) * HEAD_DIM
        places = tl.arange(0, TILE)[:, None] * HEAD_DIM + dims[None, :]  # the same for every tile: found once
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
    """Queries as products with keys of this cache take them, which keys and values are then converted to as well."""
    if k_cache.dtype.element_ty.is_fp8():
        queries = queries.to(tl.float16)  # the one type that fp8 becomes in an instruction
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
    """The running softmax of a tile more. A query that has seen no key yet has a maximum of -inf."""
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
