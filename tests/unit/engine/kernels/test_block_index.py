"""The index that chooses blocks of tokens, and attention over the chosen ones."""

from __future__ import annotations

import pytest
import torch

from stoker.engine.kernels import KernelSet
from stoker.engine.kernels.block_index import (
    BlockKeys,
    choose_blocks_reference,
    sparse_attention_reference,
    store_block_keys,
)
from stoker.engine.kernels.kernel_set import ONE_ROW

from .levels import LEVEL_NAMES, assert_close, kernels_of
from .test_paged_attention import Case, make_case

ROWS = [(1, 1), (1, 33), (7, 40), (5, 5), (2, 2), (1, 90)]  # tokens of the step, tokens of the context
DIM, BLOCK, COUNT, SIZE = 8, 4, 3, 16  # of the index's keys; tokens of a block; chosen blocks; elements of a head
NO_TURN = torch.tensor([[1.0, 1.0, 0.0, 0.0]]).expand(100, 4)


def case_of() -> tuple[Case, list[torch.Tensor]]:
    """The values' cache holds the keys of the index. Returns also these by row, [context, DIM]."""
    case = make_case(ROWS, 4, 2, SIZE, 16, torch.float32)
    return case, [values[:, 0, :DIM] for values in case.values]


def block_keys(cos_sin: torch.Tensor = NO_TURN) -> BlockKeys:
    return BlockKeys(torch.linspace(0.5, 2, DIM), 1e-3, cos_sin, BLOCK)


def positions_of(case: Case) -> torch.Tensor:
    return torch.cat([torch.arange(context - count, context) for count, context in ROWS])


def chosen_by_hand(case: Case, queries: torch.Tensor, keys: list[torch.Tensor]) -> list[set[int]]:
    found = []
    starts = case.step.query_start.tolist()
    for row, (count, context) in enumerate(ROWS):
        for token in range(count):
            seen = context - count + token + 1
            whole = seen // BLOCK
            means = keys[row][: whole * BLOCK].view(whole, BLOCK, DIM).mean(1)
            normed = means / (means.square().mean(1, keepdim=True) + 1e-3).sqrt() * torch.linspace(0.5, 2, DIM)
            scores = (queries[starts[row] + token] @ normed.T).relu().sum(0)
            blocks = sorted(range(whole), key=lambda block: -scores[block].item())[:COUNT]
            tokens = {block * BLOCK + place for block in blocks for place in range(BLOCK)}
            found.append(tokens | set(range(whole * BLOCK, seen)))
    return found


@pytest.mark.parametrize("kernels", [KernelSet(), ONE_ROW])
def test_the_best_blocks_and_the_tokens_after_the_last_whole_one(kernels: KernelSet):
    case, keys = case_of()
    queries = torch.randn(len(case.q), 16, DIM)
    chosen = kernels.choose_blocks(queries, block_keys(), positions_of(case), case.v_cache, case.step, COUNT)
    assert chosen.shape == (len(case.q), COUNT * BLOCK + BLOCK - 1)
    tokens = [[token for token in row if token >= 0] for row in chosen.tolist()]
    assert all(len(set(each)) == len(each) for each in tokens)
    assert [set(each) for each in tokens] == chosen_by_hand(case, queries, keys)


def test_a_block_is_rotated_by_the_position_of_its_first_token():
    """Each position turns by a quarter: the query at 7 has turned by 3 quarters more than the block at 4."""
    quarter = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]][place % 4] for place in range(100)])
    case = make_case([(1, 8)], 1, 1, SIZE, 16, torch.float32)
    keys = case.v_cache
    keys[case.step.block_tables[0, 0], 0, :8, :2] = torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 1.0]] * 4)
    own = BlockKeys(torch.ones(2), 1e-3, quarter, BLOCK)
    query = torch.tensor([[[1.0, 0.0]]])  # turned by 7 quarters: to (0, -1)
    best = choose_blocks_reference(query, own, torch.tensor([7]), keys, case.step, 1)
    turned = choose_blocks_reference(-query, own, torch.tensor([7]), keys, case.step, 1)
    assert best[0, 0].item() in (0, 4)
    assert turned[0, :BLOCK].tolist() == [4, 5, 6, 7]  # (0, 1), which only the second block has


@pytest.mark.parametrize("level", LEVEL_NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "count"), [(4, 2, 16, 40), (3, 1, 100, 7), (8, 1, 64, 25)])
def test_attention_over_chosen_tokens(level, dtype, heads, kv_heads, head_dim, count):
    case = make_case(ROWS, heads, kv_heads, head_dim, 16, dtype)
    chosen = torch.full((len(case.q), count), -1)
    expected = torch.empty(*case.q.shape, dtype=torch.float64)
    query = 0
    for row, (own, context) in enumerate(ROWS):
        for token in range(own):
            order = torch.randperm(context - own + token + 1)[:count]
            chosen[query, torch.randperm(count)[: len(order)]] = order
            keys, values = (
                each[row][order].double().repeat_interleave(heads // kv_heads, 1) for each in (case.keys, case.values)
            )
            weights = (torch.einsum("hd,khd->hk", case.q[query].double(), keys) * 0.3).softmax(1)
            expected[query] = torch.einsum("hk,khd->hd", weights, values)
            query += 1
    attend = kernels_of(level, dtype, head_dim, threads=2).sparse_attention
    found = attend(case.q, chosen, case.k_cache, case.v_cache, case.step, 0.3)
    assert_close(found, expected.flatten(1), absolute=2e-5)


def test_other_shapes_are_refused():
    case, _ = case_of()
    with pytest.raises(ValueError, match="chosen"):
        sparse_attention_reference(case.q, torch.zeros(3, 4).long(), case.k_cache, case.v_cache, case.step, 0.3)


@pytest.mark.parametrize("kernels", [KernelSet(), ONE_ROW])
def test_attention_to_all_tokens_is_that_of_a_layer_without_an_index(kernels: KernelSet):
    case, _ = case_of()
    everything = torch.full((len(case.q), 90), -1)
    for row, position in enumerate(positions_of(case).tolist()):
        everything[row, 90 - position - 1 :] = torch.arange(position + 1)
    found = kernels.sparse_attention(case.q, everything, case.k_cache, case.v_cache, case.step, 0.3)
    expected = kernels.paged_attention(case.q, case.k_cache, case.v_cache, case.step, 0.3)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_attention_reads_only_the_chosen_tokens():
    case, _ = case_of()
    chosen = torch.stack([positions_of(case), torch.full((len(case.q),), -1)], 1)
    found = sparse_attention_reference(case.q, chosen, case.k_cache, case.v_cache, case.step, 0.3)
    own = torch.cat([values[context - count :] for (count, context), values in zip(ROWS, case.values, strict=True)])
    torch.testing.assert_close(found, own.repeat_interleave(2, 1).flatten(1))


def test_keys_are_stored_in_every_head():
    cache, keys = torch.full((3, 2, 4, 6), torch.nan), torch.randn(3, 5)
    store_block_keys(keys, torch.tensor([9, -1, 2]), cache)
    for head in range(2):
        assert torch.equal(cache[2, head, 1, :5], keys[0])
        assert torch.equal(cache[0, head, 2, :5], keys[2])
    assert cache.isnan().sum() == cache.numel() - 2 * 2 * 5
