from dataclasses import dataclass

import pytest
import torch

from stoker.engine.kernels.attention_variant import PLAIN, AttentionVariant

from .levels import LEVEL_NAMES, assert_close, kernels_of


@dataclass
class Step:
    query_start: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    max_query_len: int
    max_context_len: int


@dataclass
class Case:
    """A step over a cache in which every unused slot is NaN."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    step: Step
    keys: list[torch.Tensor]  # per row [context, kv heads, head_dim]
    values: list[torch.Tensor]


def make_case(rows, heads, kv_heads, head_dim, block_size, dtype):
    """rows: (query_len, context_len) each."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    counts = [-(-context // block_size) for _, context in rows]
    num_blocks = sum(counts) + 3
    ids = torch.randperm(num_blocks, generator=generator).tolist()
    tables = torch.full(
        (len(rows), max(counts) + 1), 2**30, dtype=torch.int32
    )  # after a row's blocks: must not be read
    k_cache, v_cache = (torch.full((num_blocks, kv_heads, block_size, head_dim), torch.nan, dtype=dtype) for _ in "kv")
    keys, values = [], []
    for row, (_, context) in enumerate(rows):
        mine = [ids.pop() for _ in range(counts[row])]
        tables[row, : len(mine)] = torch.tensor(mine)
        keys.append(normal(context, kv_heads, head_dim))
        values.append(normal(context, kv_heads, head_dim))
        for token in range(context):
            block, offset = mine[token // block_size], token % block_size
            k_cache[block, :, offset], v_cache[block, :, offset] = keys[-1][token], values[-1][token]
    lengths = [query for query, _ in rows]
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    contexts = torch.tensor([context for _, context in rows], dtype=torch.int32)
    step = Step(starts, contexts, tables, max(lengths), int(contexts.max()))
    return Case(normal(sum(lengths), heads, head_dim), k_cache, v_cache, step, keys, values)


def attended(case, scale, variant=PLAIN):
    """The expected result in float64: one softmax per query and head over the visible keys."""
    group = case.q.shape[1] // case.k_cache.shape[1]
    out = torch.empty(case.q.shape[0], case.q.shape[1] * case.q.shape[2], dtype=torch.float64)
    for row, (start, end) in enumerate(zip(case.step.query_start, case.step.query_start[1:], strict=False)):
        keys, values = (each[row].double().repeat_interleave(group, 1) for each in (case.keys, case.values))
        for token in range(int(start), int(end)):
            last = int(case.step.context_lens[row]) - int(end) + token
            seen = slice(variant.first_visible(last), last + 1)
            scores = torch.einsum("hd,thd->ht", case.q[token].double(), keys[seen]).mul(scale)
            if variant.softcap is not None:
                scores = variant.softcap * torch.tanh(scores / variant.softcap)
            if variant.slopes is not None:
                scores = scores + variant.slopes.double()[:, None] * (torch.arange(seen.start, last + 1) - last)
            if variant.sinks is not None:
                scores = torch.cat((scores, variant.sinks.double()[:, None]), -1)
            weights = scores.softmax(-1)[:, : last + 1 - seen.start]
            out[token] = torch.einsum("ht,thd->hd", weights, values[seen]).flatten()
    return out


def check(level, dtype, rows, heads, kv_heads, head_dim, block_size, variant=PLAIN, threads=1, **kernels):
    case = make_case(rows, heads, kv_heads, head_dim, block_size, dtype)
    scale = head_dim**-0.5
    out = kernels_of(level, dtype, head_dim, threads, **kernels).paged_attention(
        case.q, case.k_cache, case.v_cache, case.step, scale, variant
    )
    # Levels that multiply pairs of bfloat16 round the weights before multiplying them by the values.
    assert_close(out, attended(case, scale, variant), absolute=1e-5 if dtype == torch.float32 else 0.02)


LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@LEVELS
@DTYPES
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"),
    [
        (1, 1, 16, 8),
        (4, 2, 128, 16),
        (8, 2, 64, 32),
        (7, 1, 80, 16),
        (6, 2, 96, 8),
        (20, 1, 48, 128),
        (2, 2, 256, 64),
        (4, 2, 512, 16),
    ],
)
@pytest.mark.quick_cases(12)
def test_decode_rows_of_any_length_and_group(level, dtype, heads, kv_heads, head_dim, block_size):
    rows = [(1, context) for context in (1, 2, 7, 8, 16, 17, 31, 32, 33, 64, 65, 100)]
    check(level, dtype, rows, heads, kv_heads, head_dim, block_size)


@LEVELS
@DTYPES
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"),
    [(1, 1, 16, 8), (4, 2, 128, 16), (8, 2, 64, 32), (7, 1, 80, 16), (3, 1, 96, 64), (4, 2, 512, 16)],
)
@pytest.mark.quick_cases(12)
def test_prefill_chunks_attend_to_earlier_tokens_only(level, dtype, heads, kv_heads, head_dim, block_size):
    rows = [(2, 2), (7, 7), (33, 40), (100, 133), (2, 130), (50, 178)]
    check(level, dtype, rows, heads, kv_heads, head_dim, block_size)


@LEVELS
@DTYPES
def test_decode_and_prefill_rows_share_a_step(level, dtype):
    rows = [(1, 40), (33, 33), (1, 1), (5, 200), (1, 129), (3, 3)]
    check(level, dtype, rows, 4, 2, 64, 16)


@LEVELS
@DTYPES
@pytest.mark.parametrize("window", [1, 5, 16, 64, 1000])
@pytest.mark.quick_cases(8)
def test_a_window_hides_the_older_tokens(level, dtype, window):
    rows = [(1, 1), (1, 40), (1, 150), (33, 33), (100, 260), (2, 140)]
    check(level, dtype, rows, 4, 2, 32, 16, AttentionVariant(window))


VARIANTS = {
    "chunks": AttentionVariant(16, is_chunked=True),
    "odd chunks": AttentionVariant(37, is_chunked=True),
    "one chunk": AttentionVariant(1000, is_chunked=True),
    "chunks of one": AttentionVariant(1, is_chunked=True),
    "softcap": AttentionVariant(softcap=0.7),
    "sinks": AttentionVariant(sinks=torch.tensor([0.5, -3.0, 4.0, -200.0])),
    "large sink": AttentionVariant(sinks=torch.tensor([200.0, 8.0, -0.5, 0.0])),
    "slopes": AttentionVariant(slopes=torch.tensor([0.5, 0.25, 0.004, 0.0])),
    "all": AttentionVariant(70, True, 1.5, torch.tensor([0.5, -3.0, 4.0, -200.0]), torch.tensor([0.5, 0.0, 0.1, 0.3])),
    "window, softcap and sinks": AttentionVariant(70, False, 1.5, torch.tensor([0.5, -3.0, 4.0, -200.0])),
}


@LEVELS
@DTYPES
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.quick_cases(11, batch_invariant=[False])
def test_variants_of_models(level, dtype, batch_invariant, variant):
    rows = [(1, 1), (1, 40), (1, 150), (33, 33), (100, 260), (2, 140), (1, 64), (70, 333)]
    check(level, dtype, rows, 4, 2, 32, 16, variant, batch_invariant=batch_invariant)


@LEVELS
@DTYPES
@pytest.mark.parametrize(
    "variant",
    [
        AttentionVariant(700, True),
        AttentionVariant(None, False, 1.5, torch.ones(6)),
        AttentionVariant(slopes=torch.tensor([0.5, 0.1, 0.02, 0.01, 0.003, 0.001])),
    ],
)
@pytest.mark.quick_cases(5)
def test_variants_of_contexts_of_several_segments(level, dtype, variant):
    check(level, dtype, [(1, 1300), (1, 700), (1, 701), (1, 2100)], 6, 3, 32, 16, variant)
    check(level, dtype, [(1, 1300)], 6, 3, 32, 16, variant, threads=2)
    kernels_of(level, dtype, 32)


@LEVELS
@pytest.mark.parametrize("is_chunked", [False, True])
def test_keys_before_the_window_are_not_read(level, is_chunked):
    rows, variant = [(1, 150), (1, 33), (33, 200), (2, 140)], AttentionVariant(20, is_chunked)
    case = make_case(rows, 2, 1, 16, 16, torch.float32)
    expected = attended(case, 0.25, variant)
    for row, (count, length) in enumerate(rows):
        case.step.block_tables[row, : variant.first_visible(length - count) // 16] = 2**30
    found = kernels_of(level, torch.float32, 16).paged_attention(
        case.q, case.k_cache, case.v_cache, case.step, 0.25, variant
    )
    assert_close(found, expected, absolute=1e-5)


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
@pytest.mark.parametrize("name", ["sinks", "slopes"])
def test_values_of_heads_that_do_not_fit_their_number_are_refused(level, name):
    case = make_case([(1, 5)], 4, 2, 16, 16, torch.float32)
    with pytest.raises(ValueError, match=rf"{name} are \(3,\) for 4 heads"):
        kernels_of(level, torch.float32, 16).paged_attention(
            case.q, case.k_cache, case.v_cache, case.step, 0.25, AttentionVariant(**{name: torch.zeros(3)})
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"window": 0}, "window is 0; allowed: at least 1"),
        ({"is_chunked": True}, "is_chunked needs a window"),
        ({"softcap": 0.0}, "softcap is 0.0; allowed: greater than 0"),
    ],
)
def test_a_variant_without_a_meaning_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        AttentionVariant(**fields)


@LEVELS
@DTYPES
@pytest.mark.parametrize("window", [None, 700])
@pytest.mark.parametrize("threads", [1, 2])
def test_long_contexts_are_divided_into_segments(level, dtype, window, threads):
    """Fewer rows than threads, so that heads are divided among the threads too."""
    rows = [(1, 1100), (1, 511), (1, 512), (1, 513)][: 4 if threads == 1 else 1]
    try:
        check(level, dtype, rows, 6, 3, 32, 16, AttentionVariant(window), threads)
    finally:
        kernels_of(level, dtype, 32)


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
@DTYPES
def test_a_decode_row_has_the_same_result_in_any_batch(level, dtype):
    case = make_case([(1, context) for context in (5, 1300, 600, 40, 700)], 4, 2, 32, 16, dtype)
    kernels = kernels_of(level, dtype, 32)

    def run(step, q):
        return kernels.paged_attention(q, case.k_cache, case.v_cache, step, 0.2)

    together = run(case.step, case.q)
    for row in range(5):
        contexts, tables = case.step.context_lens[row : row + 1], case.step.block_tables[row : row + 1]
        alone = Step(torch.tensor([0, 1], dtype=torch.int32), contexts, tables.contiguous(), 1, int(contexts))
        assert torch.equal(run(alone, case.q[row : row + 1])[0], together[row])


@LEVELS
def test_a_row_without_queries_is_skipped(level):
    rows = [(1, 5), (0, 9), (3, 12)]
    check(level, torch.float32, rows, 2, 1, 16, 8)


@LEVELS
@DTYPES
def test_large_differences_of_scores_do_not_overflow(level, dtype):
    """Scores of several hundred: the softmax must subtract the maximum, also across tiles."""
    rows = [(1, 300), (40, 300)]
    case = make_case(rows, 2, 1, 32, 16, dtype)
    ramp = torch.linspace(-40, 40, 300)[:, None, None]
    for row, keys in enumerate(case.keys):
        keys.copy_(ramp.expand_as(keys) if row else ramp.flip(0).expand_as(keys))
        for token in range(300):
            block = int(case.step.block_tables[row, token // 16])
            case.k_cache[block, :, token % 16] = keys[token]
    out = kernels_of(level, dtype, 32).paged_attention(case.q, case.k_cache, case.v_cache, case.step, 1.0)
    tolerance = 2e-3 if dtype == torch.float32 else 0.03  # scores of 1000 are exact to 1e-4 in float32
    assert_close(out, attended(case, 1.0), absolute=tolerance)
