"""Attention over a window and compressed vectors, compared with the references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from tests.unit.config.plan.shapes import config_of

from stoker.config.memory import gpu_reserve
from stoker.engine.kernels import Compression, KernelSet, latent_attention
from stoker.engine.kernels.compressed_attention import (
    attend_compressed_reference,
    choose_compressed_reference,
    compress_tokens_reference,
    norm_and_turn_reference,
)
from stoker.engine.models.decoder import Decoder
from stoker.model.compressed import COMPRESSED_TABLE
from stoker.model.read import read_config

pytest.importorskip("triton")
from stoker.engine.kernels.gpu import choose_compressed
from stoker.engine.kernels.gpu.choose_compressed import choose_compressed_gpu
from stoker.engine.kernels.gpu.compress_tokens import compress_tokens_gpu
from stoker.engine.kernels.gpu.compressed_attention import attend_compressed_gpu
from stoker.engine.kernels.gpu.kernels import gpu_kernels
from stoker.engine.kernels.gpu.norm_and_turn import norm_and_turn_gpu

from .batches import ALL_DTYPES, LIMITS

BLOCK_SIZE, NUM_SLOTS, POSITIONS, ROTATED = 16, 8, 160, 6
Rows = Sequence[tuple[int, int, int]]  # tokens computed before, tokens of the step, slot
# Tokens that complete a group of 4, none, one of 8, and one of 16; a new sequence, a long context; padding with and
# without a token.
DECODE: Rows = [(3, 1, 2), (0, 1, 4), (23, 1, 0), (0, 0, -1), (150, 1, 6), (0, 1, -1), (47, 1, 1)]
# New and continued: shorter than a group, longer than windows and rings, a decode row, parts of groups at both ends.
MIXED: Rows = [(0, 2, 3), (2, 9, 6), (0, 0, -1), (31, 1, 0), (9, 30, 1), (0, 19, 2), (0, 3, -1), (61, 5, 5)]
STEPS = pytest.mark.parametrize("rows", [DECODE, MIXED], ids=["decode", "mixed"])


@dataclass(frozen=True)
class Step:
    query_start: torch.Tensor
    context_lens: torch.Tensor
    seq_slots: torch.Tensor
    block_tables: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    max_query_len: int
    num_blocks: int

    @property
    def num_tokens(self) -> int:
        return len(self.positions)

    @property
    def is_real(self) -> torch.Tensor:
        """[T]: whether a token is in a row with a slot."""
        counts = self.query_start.diff().long()
        return torch.repeat_interleave(self.seq_slots >= 0, counts, output_size=self.num_tokens)


def step_of(rows: Rows, device: torch.device) -> Step:
    counts = torch.tensor([count for _, count, _ in rows])
    contexts = torch.tensor([before + count if slot >= 0 else 0 for before, count, slot in rows])
    needed = [-(-int(context) // BLOCK_SIZE) for context in contexts]
    blocks = torch.randperm(sum(needed) + 1)
    table = torch.full((len(rows), max(needed) + 1), int(blocks[-1]))
    for row, count in enumerate(needed):
        table[row, :count] = blocks[sum(needed[:row]) :][:count]
    positions = torch.cat([torch.arange(before, before + count) for before, count, _ in rows])
    of_token = torch.repeat_interleave(torch.arange(len(rows)), counts)
    slots = table[of_token, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    places = torch.tensor([slot for *_, slot in rows])
    slots[places[of_token] < 0] = -1

    def int32(values: torch.Tensor) -> torch.Tensor:
        return values.int().to(device)

    return Step(
        query_start=int32(torch.cat((torch.zeros(1), counts.cumsum(0)))),
        context_lens=int32(contexts),
        seq_slots=int32(places),
        block_tables=int32(table),
        positions=positions.to(device),
        slot_mapping=slots.to(device),
        max_query_len=int(counts.max()),
        num_blocks=len(blocks),
    )


def angles(device: torch.device) -> torch.Tensor:
    turns = torch.rand(POSITIONS, ROTATED // 2) * 7
    return torch.cat((turns.cos(), turns.sin()), 1).to(device)


def apart(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Random rows with NaN between them."""
    wide = torch.full((*shape[:-1], shape[-1] + 5), torch.nan, dtype=dtype, device=device)
    wide[..., : shape[-1]] = torch.randn(shape, device=device)
    return wide[..., : shape[-1]]


def ring_of(rows: Rows, *shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A ring for each slot: NaN where no token of a row has been, and before the first slot."""
    ring = torch.full((NUM_SLOTS + 1, *shape), torch.nan, dtype=dtype, device=device)
    for before, _, slot in rows:
        if slot >= 0:
            ring[1 + slot, : min(before, shape[0])] = torch.randn(min(before, shape[0]), shape[1], device=device)
    return ring


@ALL_DTYPES
@pytest.mark.parametrize("has_weight", [True, False])
@pytest.mark.parametrize("eps", [1e-5, None])
@pytest.mark.parametrize(("heads", "dim"), [(3, 20), (1, 6), (70, 64)])
@pytest.mark.quick_cases(3, dtype=[torch.float32])
def test_heads_are_normed_and_rotated(device, dtype, has_weight, eps, heads, dim):
    x = apart(4, heads, dim, dtype=dtype, device=device)
    weight = torch.rand(dim, device=device) + 0.5 if has_weight else None
    positions = torch.tensor([0, 3, POSITIONS - 1, 3], device=device)
    arguments = x, weight, eps, angles(device), positions
    found, expected = norm_and_turn_gpu(*arguments), norm_and_turn_reference(*arguments)
    torch.testing.assert_close(found, expected, atol=LIMITS[dtype], rtol=LIMITS[dtype])


@ALL_DTYPES
@pytest.mark.parametrize(("rate", "overlaps"), [(4, True), (8, False), (16, False), (2, True)])
@STEPS
@pytest.mark.quick_cases(4, dtype=[torch.float32])
def test_tokens_are_compressed(device, dtype, rows, rate, overlaps):
    """The cache and the ring, which has another type than the inputs, are compared."""
    step, turns, dim, first = step_of(rows, device), angles(device), 20, 3
    step.slot_mapping[step.positions == 23] = -1  # not stored
    width = dim * (1 + overlaps)
    inputs = apart(step.num_tokens, 2 * width, dtype=dtype, device=device)
    bias, weight = torch.randn(rate, width, device=device), torch.rand(dim, device=device) + 0.5
    compression = Compression(rate, overlaps, bias, weight, 1e-5)
    ring = ring_of(rows, rate * (1 + overlaps), 2 * width, dtype=torch.float32, device=device)
    cache = torch.full((step.num_blocks + 1, 1, BLOCK_SIZE, dim), 7.0, dtype=dtype, device=device)
    found, expected = [(ring.clone(), cache.clone()) for _ in range(2)]
    # What is before the ring and the cache would be written for slot -1.
    compress_tokens_gpu(inputs, compression, turns, found[0][1:], found[1][1:], first, step)
    compress_tokens_reference(inputs, compression, turns, expected[0][1:], expected[1][1:], first, step)
    torch.testing.assert_close(found[0], expected[0], atol=0, rtol=0, equal_nan=True)
    torch.testing.assert_close(found[1], expected[1], atol=LIMITS[dtype], rtol=LIMITS[dtype])
    assert (expected[1] != 7).any()


def test_padding_after_the_last_row_is_not_compressed(device):
    """A captured step has tokens for the largest batch, at position 0: with a rate of 1 each completes a group."""
    step, dim = step_of([(2, 1, 1)], device), 6
    slots = torch.tensor([0, -1, -1], device=device)
    step = replace(step, positions=torch.tensor([2, 0, 0], device=device), slot_mapping=slots)
    compression = Compression(1, False, torch.zeros(1, dim, device=device), torch.ones(dim, device=device), 1e-5)
    ring = torch.full((3, 1, 2 * dim), 5.0, device=device)
    cache = torch.full((2, 1, BLOCK_SIZE, dim), 7.0, device=device)
    compress_tokens_gpu(torch.randn(3, 2 * dim, device=device), compression, angles(device), ring, cache, 0, step)
    assert (ring != 5).flatten(1).any(1).tolist() == [False, True, False]
    assert (cache != 7).flatten(0, 2).any(1).nonzero().tolist() == [[0]]


def vectors_in(step: Step, elements: int, *, rate: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A cache of vectors, with NaN in the groups of all rows that are not complete, and in blocks of none."""
    cache = torch.full((step.num_blocks, 1, BLOCK_SIZE, -(-elements // rate)), torch.nan, device=device)
    groups = cache.view(-1, rate * cache.shape[3])
    for row, context in enumerate(step.context_lens.tolist()):
        firsts = torch.arange(context // rate, device=device) * rate
        slots = step.block_tables[row].long()[firsts // BLOCK_SIZE] * BLOCK_SIZE + firsts % BLOCK_SIZE
        groups[slots // rate] = torch.randn(len(firsts), groups.shape[1], device=device)
    return cache.to(dtype)


@ALL_DTYPES
@pytest.mark.parametrize(("count", "heads"), [(3, 5), (9, 40), (1, 5)])
@pytest.mark.parametrize("limit", [16, 1 << 24], ids=["in parts", "at once"])
@STEPS
@pytest.mark.quick_cases(4, dtype=[torch.float32])
def test_the_best_vectors_are_chosen(device, dtype, rows, count, heads, limit, monkeypatch):
    """limit: elements of scores in memory."""
    monkeypatch.setattr(latent_attention, "_MAX_ELEMENTS", limit * 8)
    monkeypatch.setattr(choose_compressed, "_SCORES", 16)  # several tiles
    monkeypatch.setattr(choose_compressed, "_TILE", 16)
    step, rate, dim, first = step_of(rows, device), 4, 12, 5
    queries = torch.randn(step.num_tokens, heads, dim, dtype=dtype, device=device)
    queries[:, 0].abs_()  # finds something in each vector: no scores are equal
    weights = apart(step.num_tokens, heads, dtype=dtype, device=device)
    cache = vectors_in(step, first + dim, rate=rate, dtype=dtype, device=device).abs_()
    found = choose_compressed_gpu(queries, weights, cache, rate, first, step, count, 4)
    expected = choose_compressed_reference(queries, weights, cache, rate, first, step, count)
    assert torch.equal(found, expected.masked_fill(expected < 0, 1 << 40).sort(-1).values.masked_fill_(found < 0, -1))
    assert (found == -1).any()
    assert (found > count).any()


def test_a_plan_has_room_for_the_scores():
    assert gpu_reserve.SCORES_BYTES == 4 * latent_attention._MAX_ELEMENTS


def test_equal_scores_are_chosen_from_the_first(device):
    """Scores are 0 where no head finds anything, with the sign of its weight."""
    step = step_of([(60, 1, 0)], device)
    queries, weights = torch.ones(1, 2, 16, device=device), torch.tensor([[-1.0, -1.0]], device=device)
    cache = torch.full((step.num_blocks, 1, BLOCK_SIZE, 4), -1.0, device=device)
    groups = cache.view(-1, 16)
    slot = int(step.block_tables[0, 0]) * BLOCK_SIZE
    groups[slot // 4 + 1] = 1.0  # a negative score
    found = choose_compressed_gpu(queries, weights, cache, 4, 0, step, 5, 4)
    assert found.tolist() == [[0, 2, 3, 4, 5]]


def chosen_of(rows: Rows, count: int, rate: int, device: torch.device) -> torch.Tensor:
    """Some complete groups of each query's context, in any order, with gaps; of some queries none."""
    made = []
    for before, tokens, _ in rows:
        for position in range(before, before + tokens):
            order = torch.randperm((position + 1) // rate)[: count - 2]
            row = torch.full((count,), -1)
            row[torch.randperm(count)[: len(order)]] = order
            made.append(row)
    return torch.stack(made).to(device)


@ALL_DTYPES
@pytest.mark.parametrize(("heads", "dim"), [(3, 20), (40, 16), (16, 64)])
@pytest.mark.parametrize(("rate", "count"), [(0, None), (4, None), (8, None), (4, 20), (8, 20)])
@pytest.mark.parametrize("programs", [1, 200])
@STEPS
@pytest.mark.quick_cases(12, dtype=[torch.float32], heads=[3])
def test_queries_attend_to_the_window_and_vectors(device, dtype, rows, heads, dim, rate, count, programs):
    """rate: 0 without vectors. programs: by them the keys of a query are divided or not, in a decode step."""
    step, turns, length = step_of(rows, device), angles(device), 7
    q = torch.randn(step.num_tokens, heads, dim, dtype=dtype, device=device)
    keys = torch.randn(step.num_tokens, dim, dtype=dtype, device=device)
    sinks = torch.randn(heads, device=device) * 3
    window = ring_of(rows, length, dim, dtype=dtype, device=device)
    cache = vectors_in(step, dim + 5, rate=rate, dtype=dtype, device=device) if rate else None
    chosen = None if count is None else chosen_of(rows, count, rate, device)
    found, expected = window.clone(), window.clone()
    arguments = cache, rate, chosen, turns, step
    out = attend_compressed_gpu(q, keys, sinks, found[1:], *arguments, programs)
    wanted = attend_compressed_reference(q, keys, sinks, expected[1:], *arguments)
    torch.testing.assert_close(found, expected, atol=0, rtol=0, equal_nan=True)
    real, limit = step.is_real, LIMITS[dtype]
    torch.testing.assert_close(out[real], wanted[real], atol=limit, rtol=limit)
    assert not out[~real].any()


@STEPS
def test_vectors_may_be_in_fp8(device, rows):
    """What is stored may be rounded to the other of two neighbours: an eighth of the value."""
    step, turns, dim, rate = step_of(rows, device), angles(device), 20, 4
    cache = vectors_in(step, 2 * dim, rate=rate, dtype=torch.float8_e4m3fn, device=device)
    inputs, ring = torch.randn(step.num_tokens, 4 * dim, device=device) * 9, (8, 4 * dim)
    compression = Compression(4, True, torch.randn(4, 2 * dim, device=device), torch.ones(dim, device=device), 1e-5)
    kept, found = ring_of(rows, *ring, dtype=torch.float32, device=device)[1:], cache.clone()
    compress_tokens_gpu(inputs, compression, turns, kept.clone(), found, dim, step)
    compress_tokens_reference(inputs, compression, turns, kept, cache, dim, step)
    torch.testing.assert_close(found.float(), cache.float(), atol=2e-3, rtol=0.13, equal_nan=True)
    queries, weights = (
        torch.randn(step.num_tokens, 3, dim, device=device),
        torch.ones(step.num_tokens, 3, device=device),
    )
    chosen = choose_compressed_gpu(queries, weights, cache, rate, dim, step, 5, 4)
    expected = choose_compressed_reference(queries, weights, cache, rate, dim, step, 5)
    assert torch.equal(chosen.sort(-1).values, expected.sort(-1).values)
    keys, window = queries[:, 0].contiguous(), ring_of(rows, 7, dim, dtype=torch.float32, device=device)
    sinks = torch.zeros(3, device=device)
    out = attend_compressed_gpu(queries, keys, sinks, window[1:].clone(), cache, rate, chosen, turns, step, 1)
    wanted = attend_compressed_reference(queries, keys, sinks, window[1:], cache, rate, chosen, turns, step)
    torch.testing.assert_close(out[step.is_real], wanted[step.is_real], atol=1e-5, rtol=1e-5)


def test_steps_of_a_model_are_captured_with_these_kernels_only():
    meta, file = torch.device("meta"), config_of("deepseek-v4-flash")
    spec, *_ = read_config({**file, "num_hidden_layers": 3, "compress_ratios": [0, 4, 128]})
    ours, torchs = gpu_kernels(torch.device("cpu"), 1), KernelSet()
    captured, other = (Decoder(spec, kernels, 64, torch.bfloat16, meta) for kernels in (ours, torchs))
    assert (captured.is_capturable, captured.table) == (True, {})
    assert (other.is_capturable, other.table) == (False, COMPRESSED_TABLE)


def test_tokens_after_the_last_row_see_nothing(device):
    rows = [(20, 1, 1), (7, 1, 0)]
    step, turns = step_of(rows, device), angles(device)
    zeros = torch.zeros(2, dtype=torch.int64, device=device)
    padded = replace(step, positions=torch.cat((step.positions, zeros)), slot_mapping=torch.cat((zeros, zeros - 1)))
    q, keys = torch.randn(4, 3, 16, device=device), torch.randn(4, 16, device=device)
    cache = vectors_in(step, 16, rate=4, dtype=torch.float32, device=device)
    chosen = choose_compressed_gpu(q, q[:, :, 0], cache, 4, 0, padded, 2, 4)
    assert (chosen[2:] == -1).all()
    for programs in (1, 64):
        window = ring_of(rows, 7, 16, dtype=torch.float32, device=device)
        expected = window.clone()
        arguments = cache, 4, chosen, turns
        out = attend_compressed_gpu(q, keys, torch.zeros(3, device=device), window[1:], *arguments, padded, programs)
        assert not out[2:].any()
        assert out[:2].isfinite().all()
        for slot, position, key in ((1, 20, keys[0]), (0, 7, keys[1])):
            expected[1 + slot, position % 7] = key
        torch.testing.assert_close(window, expected, atol=0, rtol=0, equal_nan=True)


def test_other_shapes_are_refused(device):
    step, turns = step_of([(3, 1, 0)], device), angles(device)
    x = torch.zeros(1, 2, 16, device=device)
    with pytest.raises(ValueError, match="6 of 5 elements cannot be rotated"):
        norm_and_turn_gpu(x[..., :5], None, None, turns, step.positions)
    compression = Compression(4, True, torch.zeros(4, 16, device=device), torch.zeros(8, device=device), 1e-5)
    with pytest.raises(ValueError, match="vectors of 8"):
        compress_tokens_gpu(torch.zeros(1, 32, device=device), compression, turns, x[:, :1], x[:, None], 0, step)
    with pytest.raises(ValueError, match="the window"):
        attend_compressed_gpu(x, x[:, 0], x[0, :, 0], x.half(), None, 0, None, turns, step, 1)
