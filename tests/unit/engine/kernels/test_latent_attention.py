from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from stoker.engine.kernels import KernelSet

from .levels import LEVEL_NAMES, assert_close, kernels_of, sums_of_rounding_errors
from .test_paged_attention import Case, make_case

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
EXTRA = 16  # elements after the latents in the cache, which attention does not read
CPP = pytest.mark.parametrize("level", [level for level in LEVEL_NAMES if level != "torch"])


def case_of(rows: list[tuple[int, int]], heads: int, width: int, block_size: int, dtype: torch.dtype) -> Case:
    """As of paged attention; its key cache holds the latents, and after each EXTRA elements of NaN."""
    case = make_case(rows, heads, 1, width, block_size, dtype)
    extra = torch.full((*case.k_cache.shape[:3], EXTRA), torch.nan, dtype=dtype)
    case.k_cache = torch.cat((case.k_cache, extra), dim=3)
    return case


def expected(
    case: Case, scale: float, rank: int, sinks: torch.Tensor | None = None, window: int | None = None
) -> torch.Tensor:
    """In float64, [T, H, rank]."""
    out = torch.empty(*case.q.shape[:2], rank, dtype=torch.float64)
    starts = case.step.query_start.tolist()
    for row, (start, end) in enumerate(pairwise(starts)):
        keys = case.keys[row][:, 0].double()
        for token in range(start, end):
            seen = int(case.step.context_lens[row]) - end + token + 1
            own = keys[0 if window is None else max(0, seen - window) : seen]
            scores = case.q[token].double() @ own.T * scale
            if sinks is not None:
                scores = torch.cat((scores, sinks.double()[:, None]), 1)
            out[token] = scores.softmax(-1)[:, : len(own)] @ own[:, :rank]
    return out


def scale_of(width: int) -> float:
    return width**-0.5


@LEVELS
@DTYPES
@pytest.mark.parametrize(("heads", "rank", "turned"), [(1, 16, 16), (6, 48, 16), (20, 64, 32), (33, 112, 16)])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.quick_cases(6)
def test_every_query_attends_to_the_latents_before_it(
    level: str, dtype: torch.dtype, heads: int, rank: int, turned: int, has_sinks: bool
):
    """Single queries and chunks in one step; contexts of several segments; heads that fill no task."""
    rows = [(1, 1), (1, 33), (7, 40), (1, 1100), (5, 515), (2, 2), (1, 512)]
    case = case_of(rows, heads, rank + turned, 16, dtype)
    kernels = kernels_of(level, dtype, (rank, turned), threads=2)
    sinks = torch.randn(heads) * 3 if has_sinks else None
    out = kernels.latent_attention(case.q, case.k_cache, case.step, scale_of(rank + turned), rank, sinks)
    # levels that multiply pairs of bfloat16 round the weights before multiplying them by the values
    error = 1e-5 if dtype == torch.float32 else 0.02
    assert_close(out, expected(case, scale_of(rank + turned), rank, sinks), absolute=error)


@LEVELS
@DTYPES
@pytest.mark.parametrize("window", [1, 30, 600])
@pytest.mark.quick_cases(6)
def test_a_query_attends_to_its_window_and_earlier_tokens_are_not_read(level: str, dtype: torch.dtype, window: int):
    """Windows within a segment, over two, and of more tokens than a context; blocks before them belong to others."""
    rows = [(1, 1), (1, 33), (7, 40), (1, 1100), (5, 1030), (2, 2), (1, 513)]
    heads, rank, turned = 20, 64, 32
    case = case_of(rows, heads, rank + turned, 16, dtype)
    latents = case.k_cache.view(-1, rank + turned + EXTRA)
    for row, (queries, context) in enumerate(rows):
        for token in range(max(0, context - queries - window + 1)):
            latents[case.step.block_tables[row, token // 16] * 16 + token % 16] = torch.nan
    out = kernels_of(level, dtype, (rank, turned), threads=2).latent_attention(
        case.q, case.k_cache, case.step, scale_of(rank + turned), rank, None, window
    )
    error = 1e-5 if dtype == torch.float32 else 0.02
    assert_close(out, expected(case, scale_of(rank + turned), rank, window=window), absolute=error)


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
def test_a_window_of_no_token_is_refused(level: str):
    case = case_of([(1, 9)], 5, 24, 16, torch.float32)
    with pytest.raises(ValueError, match="window"):
        kernels_of(level, torch.float32).latent_attention(case.q, case.k_cache, case.step, 0.3, 16, None, 0)


@pytest.mark.parametrize("has_sinks", [False, True])
def test_attention_to_all_tokens_that_an_index_has_chosen_is_attention(has_sinks: bool):
    case = case_of([(1, 9), (3, 20)], 5, 24, 16, torch.float32)
    sinks = torch.randn(5) if has_sinks else None
    last = torch.tensor([8, 17, 18, 19])
    chosen = torch.arange(20).expand(4, 20).flip(1)
    chosen = torch.where(chosen <= last[:, None], chosen, -1)
    kernels = kernels_of("torch", torch.float32)
    out = kernels.sparse_latent_attention(case.q, chosen, case.k_cache, case.step, 0.3, 16, sinks)
    assert_close(out, expected(case, 0.3, 16, sinks), absolute=1e-5)


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
def test_sinks_of_other_heads_are_refused(level: str):
    case = case_of([(1, 9)], 5, 24, 16, torch.float32)
    with pytest.raises(ValueError, match="sinks"):
        kernels_of(level, torch.float32).latent_attention(case.q, case.k_cache, case.step, 0.3, 16, torch.zeros(4))


@CPP
@DTYPES
@pytest.mark.parametrize("window", [None, 188, 600])  # 188: of some of the queries from the second segment on
def test_a_query_has_one_result_alone_in_a_batch_and_in_a_chunk(level: str, dtype: torch.dtype, window: int | None):
    """The last queries of a row, computed as a chunk with other rows, and each by itself with any number of threads."""
    heads, rank, width, chunk, context = 19, 32, 48, 6, 700
    case = case_of([(1, 90), (chunk, context), (1, 600)], heads, width, 16, dtype)
    together = kernels_of(level, dtype, (rank, 16), threads=2).latent_attention(
        case.q, case.k_cache, case.step, scale_of(width), rank, None, window
    )
    for index in range(chunk):
        alone = case_of([(1, 90)], heads, width, 16, dtype).step
        alone.context_lens = torch.tensor([context - chunk + 1 + index], dtype=torch.int32)
        alone.block_tables = case.step.block_tables[1:2].contiguous()
        query = case.q[1 + index : 2 + index].clone()
        for threads in (1, 3):
            kernels = kernels_of(level, dtype, (rank, 16), threads)
            out = kernels.latent_attention(query, case.k_cache, alone, scale_of(width), rank, None, window)
            assert torch.equal(out[0], together[1 + index])


@LEVELS
@DTYPES
@pytest.mark.parametrize("is_interleaved", [True, False])
@pytest.mark.parametrize("query_width", [24, 0])
@pytest.mark.parametrize("has_key_norm", [False, True])
def test_norms_and_rotated_keys_are_stored_with_the_latents(
    level: str, dtype: torch.dtype, is_interleaved: bool, query_width: int, has_key_norm: bool
):
    """query_width 0: queries are not compressed, and what they are computed from is what was given."""
    rank, turned, tokens, queries = 48, 16, 5, query_width or 40
    generator = torch.Generator().manual_seed(1)
    projected = torch.randn(tokens, queries + rank + turned + 3, generator=generator).to(dtype)
    q_norm = torch.rand(queries, generator=generator) if query_width else None
    kv_norm, cos_sin = torch.rand(rank, generator=generator), torch.randn(50, turned, generator=generator)
    key_norm = torch.rand(turned, generator=generator) if has_key_norm else None
    positions, slots = torch.tensor([3, 0, 49, 7, 7]), torch.tensor([17, 3, 0, 31, 8])
    found = []
    for kernels, kind in ((kernels_of(level, dtype, (rank, turned)), dtype), (KernelSet(), torch.float64)):
        cache = torch.full((2, 1, 16, rank + turned + EXTRA), 9.0, dtype=kind)
        given = projected.to(kind)
        out = kernels.store_latents(
            given, q_norm, kv_norm, 0.1, cos_sin, is_interleaved, positions, slots, cache, queries, key_norm
        )
        assert (out is given) == (query_width == 0)
        found.append((out, cache))
    (out, cache), (exact_out, exact_cache) = found
    assert_close(out, exact_out, absolute=1e-6)
    assert_close(cache, exact_cache, absolute=1e-5)
    assert torch.equal(cache[..., rank + turned :], torch.full_like(cache[..., rank + turned :], 9.0))


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
def test_a_norm_of_keys_of_another_size_is_refused(level: str):
    arguments = torch.zeros(1, 32), None, torch.ones(16), 1e-6, torch.ones(1, 16), True
    at = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="norm of keys"):
        kernels_of(level, torch.float32).store_latents(*arguments, *at, torch.zeros(1, 1, 16, 32), 0, torch.ones(8))


@LEVELS
@DTYPES
@pytest.mark.parametrize("tokens", [1, 2, 7])
@pytest.mark.parametrize(("plain", "rank", "values"), [(20, 48, 12), (64, 320, 96)])
def test_each_head_has_matrices_of_its_own(
    level: str, dtype: torch.dtype, tokens: int, plain: int, rank: int, values: int
):
    heads, turned = 3, 16
    generator = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    queries, keys = normal(tokens, heads * (plain + turned) + 5), normal(heads, plain, rank)
    cos_sin, positions = normal(9, turned).float(), torch.arange(tokens)
    kernels = kernels_of(level, dtype, (rank, turned), threads=2)
    absorbed = kernels.absorb_queries(queries, keys, cos_sin, True, positions)
    exact = KernelSet().absorb_queries(queries.double(), keys.double(), cos_sin.double(), True, positions)
    assert_close(absorbed, exact, absolute=1e-5 * plain)
    out_of = normal(heads, rank, values)
    expanded = kernels.expand_values(absorbed[..., :rank].contiguous(), out_of)
    exact = KernelSet().expand_values(absorbed[..., :rank].double(), out_of.double())
    assert_close(expanded, exact, absolute=1e-5 * rank)


@CPP
def test_products_of_heads_have_one_order_for_any_number_of_tokens(level: str):
    tokens, heads, rank, values = 7, 2, 128, 80
    x, weight = sums_of_rounding_errors(tokens * heads, values, rank)
    attended = x.view(tokens, heads, rank)
    matrices = weight.T.contiguous().expand(heads, rank, values).contiguous()
    kernels = kernels_of(level, torch.float32)
    together = kernels.expand_values(attended, matrices).clone()
    for token in range(tokens):
        assert torch.equal(kernels.expand_values(attended[token : token + 1].clone(), matrices)[0], together[token])
