"""Attention over the tokens of each rank, and the parts together, against attention over all tokens at once."""

from __future__ import annotations

import pytest
import torch
from tests.slow_cases import slow

from stoker.engine.kernels.attention_variant import PLAIN, AttentionVariant
from stoker.engine.kernels.exchange import merge_parts_reference
from stoker.engine.layers.step_input import StepInput
from stoker.engine.runner.context_part import ContextPart

from .levels import LEVEL_NAMES, assert_close, kernels_of
from .test_latent_attention import case_of, expected
from .test_paged_attention import Case, attended, make_case

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
PARTS = pytest.mark.parametrize(("count", "run"), [(2, 1), slow(4, 2), slow(2, 8)])
BLOCK = 16
# lengths of queries and contexts: parts without tokens, chunks whose first queries see none, tiles and segments of each
ROWS = [(1, 1), (3, 3), (1, 2), (7, 40), (1, 1100), (20, 560), (1, 33), (33, 33)]


def step_of(case: Case, query_lens: torch.Tensor) -> StepInput:
    """A step of the last tokens of each context."""
    contexts = case.step.context_lens
    rows = list(zip(query_lens.tolist(), contexts.tolist(), case.step.block_tables, strict=True))
    positions = torch.cat([torch.arange(context - count, context) for count, context, _ in rows])
    slots = [
        table[torch.arange(context - count, context) // BLOCK].long() * BLOCK
        + torch.arange(context - count, context) % BLOCK
        for count, context, table in rows
    ]
    return StepInput(
        token_ids=torch.zeros_like(positions),
        positions=positions,
        slot_mapping=torch.cat(slots),
        query_start=torch.cat((torch.zeros(1), query_lens.cumsum(0))).int(),
        context_lens=contexts,
        block_tables=case.step.block_tables,
        max_query_len=int(query_lens.max()),
        max_context_len=int(contexts.max()),
    )


def part_of(cache: torch.Tensor, kept: StepInput, whole: StepInput, part: ContextPart) -> torch.Tensor:
    """The cache of a rank, in which every unused slot is NaN. kept, whole: all tokens of all contexts."""
    num_blocks, heads, _, width = cache.shape
    own = torch.full((num_blocks, heads, part.slots, width), torch.nan, dtype=cache.dtype)
    is_own = kept.slot_mapping >= 0
    to, at = kept.slot_mapping[is_own], whole.slot_mapping[is_own]
    own[to // part.slots, :, to % part.slots] = cache[at // BLOCK, :, at % BLOCK]
    return own


def steps_and_caches(case: Case, part: ContextPart) -> tuple[StepInput, torch.Tensor, torch.Tensor]:
    whole = step_of(case, case.step.context_lens)
    kept = part.of(whole)
    caches = (part_of(cache, kept, whole, part) for cache in (case.k_cache, case.v_cache))
    return part.of(step_of(case, case.step.query_start.diff())), *caches


def parts(count: int, run: int) -> list[ContextPart]:
    return [ContextPart(index, count, run, BLOCK) for index in range(count)]


@LEVELS
@DTYPES
@PARTS
@pytest.mark.parametrize(("heads", "kv_heads", "width", "softcap"), [(4, 1, 32, None), (6, 2, 80, 3.0)])
@pytest.mark.quick_cases(4)
def test_parts_of_the_keys_are_together_all_of_them(
    level: str, dtype: torch.dtype, count: int, run: int, heads: int, kv_heads: int, width: int, softcap: float | None
) -> None:
    case, scale, variant = make_case(ROWS, heads, kv_heads, width, BLOCK, dtype), width**-0.5, PLAIN
    if softcap is not None:
        variant = AttentionVariant(softcap=softcap)
    kernels = kernels_of(level, dtype, width, threads=2)
    found = []
    for part in parts(count, run):
        step, k_cache, v_cache = steps_and_caches(case, part)
        out, log_totals = kernels.attend_part(case.q, k_cache, v_cache, step, scale, variant)
        found.append((out.view(case.q.shape), log_totals))
    merged = merge_parts_reference(*map(torch.stack, zip(*found, strict=True)))
    assert_close(merged.flatten(1), attended(case, scale, variant), absolute=1e-5 if dtype == torch.float32 else 0.03)


@LEVELS
@DTYPES
@PARTS
def test_parts_of_the_latents_are_together_all_of_them(level: str, dtype: torch.dtype, count: int, run: int) -> None:
    heads, rank, turned = 19, 48, 16
    case, scale = case_of(ROWS, heads, rank + turned, BLOCK, dtype), (rank + turned) ** -0.5
    kernels = kernels_of(level, dtype, (rank, turned), threads=2)
    found = []
    for part in parts(count, run):
        step, cache, _ = steps_and_caches(case, part)
        found.append(kernels.attend_latent_part(case.q, cache, step, scale, rank))
    merged = merge_parts_reference(*map(torch.stack, zip(*found, strict=True)))
    assert_close(merged, expected(case, scale, rank), absolute=1e-5 if dtype == torch.float32 else 0.03)


@LEVELS
@pytest.mark.parametrize("is_latent", [False, True])
def test_a_query_has_one_result_in_a_chunk_and_alone(level: str, is_latent: bool) -> None:
    """With `model.batch_invariant`; latent attention always."""
    heads, width, rank = 3, 32, 16
    kernels = kernels_of(level, torch.float32, (rank, 16) if is_latent else width, batch_invariant=True)
    case = make_case(ROWS, heads, 1, width, BLOCK, torch.float32)
    step, k_cache, v_cache = steps_and_caches(case, ContextPart(1, 2, 1, BLOCK))

    def attend(q: torch.Tensor, of: StepInput) -> tuple[torch.Tensor, torch.Tensor]:
        if is_latent:
            return kernels.attend_latent_part(q, k_cache, of, 0.2, rank)
        return kernels.attend_part(q, k_cache, v_cache, of, 0.2)

    out, log_totals = attend(case.q, step)
    for token in range(0, len(case.q), 7):
        alone = step.of_tokens(torch.tensor([token]))
        result, total = attend(case.q[token : token + 1], alone)
        assert torch.equal(result[0], out[token])
        assert torch.equal(total[0], log_totals[token])


@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_keys_that_other_ranks_keep_are_not_stored(level: str) -> None:
    heads, width, tokens = 2, 32, 4
    kernels = kernels_of(level, torch.float32, width)
    qkv, cos_sin = torch.randn(tokens, (heads + 2) * width), torch.randn(8, width)
    slots = torch.tensor([-1, 5, -1, 6])
    caches = [torch.full((1, 1, BLOCK, width), 9.0) for _ in "kv"]
    positions = torch.arange(tokens)
    queries = kernels.rope_and_store(qkv, None, None, 0.0, cos_sin, positions, slots, *caches, heads, 1)
    stored = [torch.full_like(cache, 9.0) for cache in caches]
    all_slots = torch.tensor([4, 5, 7, 6])
    expected = kernels.rope_and_store(qkv, None, None, 0.0, cos_sin, positions, all_slots, *stored, heads, 1)
    assert torch.equal(queries, expected)
    for cache, other in zip(caches, stored, strict=True):
        other[0, 0, [4, 7]] = 9.0
        assert torch.equal(cache, other)


@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_latents_that_other_ranks_keep_are_not_stored(level: str) -> None:
    rank, turned, tokens = 48, 16, 3
    kernels = kernels_of(level, torch.float32, (rank, turned))
    projected, cos_sin = torch.randn(tokens, rank + turned), torch.randn(8, turned)

    def stored(slots: list[int]) -> torch.Tensor:
        cache = torch.full((1, 1, BLOCK, rank + turned), 9.0)
        at = torch.arange(tokens), torch.tensor(slots)
        kernels.store_latents(projected, None, torch.rand(rank).fill_(0.5), 1e-6, cos_sin, False, *at, cache, 0)
        return cache[0, 0]

    found, every = stored([-1, 5, -1]), stored([4, 5, 6])
    assert torch.equal(found[5], every[5])
    assert (found[[0, 4, 6]] == 9.0).all()
