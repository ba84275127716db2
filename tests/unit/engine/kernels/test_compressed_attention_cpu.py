"""Compressed vectors in C++: the results of torch's ops, and for a query the same bits in any batch and any chunk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import pytest
import torch

from stoker.engine.kernels import Compression, KernelSet
from stoker.engine.layers.rotary import RopeParameters, cos_sin_table

from .levels import BEST, LEVEL_NAMES, kernels_of

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES[1:])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
SETS = pytest.mark.parametrize("is_batch_invariant", [False, pytest.param(True, marks=pytest.mark.slow)])
MAX_LEN, ROTATED = 2048, 12
TABLE = cos_sin_table(RopeParameters(kind="default", theta=100.0, original_max_position=MAX_LEN), ROTATED, MAX_LEN)
# New tokens and context of each row, its last token included: the beginnings of sequences, single tokens, chunks, and
# contexts of several segments of 256 keys. A padding row with tokens and one without are added.
ROWS = [(1, 1), (7, 7), (1, 130), (9, 40), (1, 1500), (17, 1100), (2, 515), (1, 512)]
SHORT = [(1, 1), (7, 7), (9, 40)]


@dataclass
class Step:
    query_start: torch.Tensor
    context_lens: torch.Tensor
    seq_slots: torch.Tensor
    block_tables: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    max_query_len: int = MAX_LEN

    def alone(self, row: int, first: int, count: int = 1) -> Step:
        """`count` tokens of a row, from its `first` one on, as a step."""
        start, end = self.query_start[row : row + 2].tolist()
        own = slice(start + first, start + first + count)
        return Step(
            torch.tensor([0, count], dtype=torch.int32),
            self.context_lens[row : row + 1] - (end - own.stop),
            self.seq_slots[row : row + 1].clone(),
            self.block_tables[row : row + 1].clone(),
            self.positions[own],
            self.slot_mapping[own].clone(),
        )


def step_of(rows: list[tuple[int, int]], block_size: int) -> Step:
    """The rows, in places of the cache in any order, a padding row of two tokens, and one without."""
    generator = torch.Generator().manual_seed(len(rows))
    blocks = -(-max(context for _, context in rows) // block_size)
    tables = torch.randperm((len(rows) + 1) * blocks, generator=generator).view(-1, blocks)[: len(rows)].int()
    positions = [torch.arange(context - count, context) for count, context in rows]
    slots = [
        table[own // block_size].long() * block_size + own % block_size
        for table, own in zip(tables, positions, strict=True)
    ]
    counts = [*(count for count, _ in rows), 2, 0]
    return Step(
        torch.tensor([0, *accumulate(counts)], dtype=torch.int32),
        torch.tensor([*(context for _, context in rows), 2, 0], dtype=torch.int32),
        torch.cat((torch.randperm(len(rows) + 3, generator=generator)[: len(rows)], torch.tensor([-1, -1]))).int(),
        torch.cat((tables, tables[:2] if len(tables) > 1 else tables.expand(2, -1))).contiguous(),
        torch.cat((*positions, torch.arange(2))),
        torch.cat((*slots, torch.tensor([-1, -1]))),
    )


def used(step: Step) -> slice:
    """The tokens that are not padding."""
    return slice(0, int(step.query_start[-3]))


@dataclass
class Case:
    """What attend_compressed takes."""

    step: Step
    q: torch.Tensor
    keys: torch.Tensor
    sinks: torch.Tensor
    window: torch.Tensor
    cache: torch.Tensor | None
    rate: int
    chosen: torch.Tensor | None

    def run(self, kernels: KernelSet) -> tuple[torch.Tensor, torch.Tensor]:
        """The results, and the window that was written."""
        window = self.window.clone()
        out = kernels.attend_compressed(
            self.q, self.keys, self.sinks, window, self.cache, self.rate, self.chosen, TABLE, self.step
        )
        return out.clone(), window

    def alone(self, row: int, first: int, count: int) -> Case:
        own = slice(start := int(self.step.query_start[row]) + first, start + count)
        return replace(
            self,
            step=self.step.alone(row, first, count),
            q=self.q[own].clone(),
            keys=self.keys[own].clone(),
            chosen=None if self.chosen is None else self.chosen[own].clone(),
        )


def case_of(
    rows: list[tuple[int, int]], dtype: torch.dtype, heads: int, dim: int, window: int, rate: int, count: int | None
) -> Case:
    """rate 0: there are no vectors. count: vectors that are chosen, some numbers among them -1; None: all are seen."""
    block_size = 16
    step = step_of(rows, block_size)
    generator = torch.Generator().manual_seed(heads + dim + window)
    tokens = int(step.query_start[-1])

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    kept = normal(len(rows) + 3, window, dim)
    new = [row for row, (length, context) in enumerate(rows) if length == context]
    kept[step.seq_slots[new].long()] = torch.nan  # left by other sequences
    num_blocks = int(step.block_tables.max()) + 2
    cache = normal(num_blocks, 1, block_size, (dim + 16) // rate) if rate else None
    chosen: torch.Tensor | None = None
    if count is not None:
        chosen = torch.full((tokens, count), -1)
        for token, position in enumerate(step.positions.tolist()):
            own = torch.randperm((position + 1) // rate, generator=generator)[:count]
            chosen[token, torch.randperm(count, generator=generator)[: len(own)]] = own
    return Case(step, normal(tokens, heads, dim), normal(tokens, dim), normal(heads).float(), kept, cache, rate, chosen)


@LEVELS
@DTYPES
@SETS
@pytest.mark.parametrize("count", [None, 5, 300])
@pytest.mark.parametrize(
    ("heads", "dim", "window", "rate"), [(3, 16, 5, 4), (33, 48, 128, 8), (64, 64, 300, 2), (5, 512, 20, 16)]
)
@pytest.mark.quick_cases(4)
def test_attention_is_that_of_the_reference(
    level: str,
    dtype: torch.dtype,
    is_batch_invariant: bool,
    heads: int,
    dim: int,
    window: int,
    rate: int,
    count: int | None,
) -> None:
    kernels = kernels_of(level, dtype, dim, 2, batch_invariant=is_batch_invariant)
    for rows in (ROWS, SHORT, [(1, 1500)], [(300, 300)]):
        case = case_of(rows, dtype, heads, dim, window, rate, count)
        out, kept = case.run(kernels)
        wanted, wanted_kept = case.run(KernelSet())
        # levels that multiply pairs of bfloat16 round the weights before multiplying them by the values
        error = 2e-5 if dtype == torch.float32 else 0.03
        torch.testing.assert_close(out[used(case.step)], wanted[used(case.step)], rtol=error, atol=error)
        torch.testing.assert_close(kept, wanted_kept, rtol=0, atol=0, equal_nan=True)
        assert not out[used(case.step).stop :].any()  # of padding


@LEVELS
@DTYPES
def test_without_vectors_a_query_sees_its_window(level: str, dtype: torch.dtype) -> None:
    case = case_of(ROWS, dtype, 7, 32, 24, 0, None)
    out, _ = case.run(kernels_of(level, dtype, 32, 2))
    error = 2e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(out[used(case.step)], case.run(KernelSet())[0][used(case.step)], rtol=error, atol=error)


@LEVELS
@DTYPES
@SETS
@pytest.mark.parametrize("count", [None, 300])
def test_a_query_has_one_result_alone_in_a_batch_and_in_a_chunk(
    level: str, dtype: torch.dtype, is_batch_invariant: bool, count: int | None
) -> None:
    """A row's tokens in two steps, with any number of threads: a lone row is divided among them by its keys."""
    rows = [(2, 90), (41, 1400), (1, 600), *[(1, 33)] * 9]
    case = case_of(rows, dtype, 40, 32, 128, 4, count)
    together, kept = case.run(kernels_of(level, dtype, 32, 2, batch_invariant=is_batch_invariant))
    start, slot = int(case.step.query_start[1]), int(case.step.seq_slots[1])
    for threads in (1, 2, 16):
        kernels = kernels_of(level, dtype, 32, threads, batch_invariant=is_batch_invariant)
        first, last = case.alone(1, 0, 40), case.alone(1, 40, 1)
        out, window = first.run(kernels)
        assert torch.equal(out, together[start : start + 40])
        out, window = replace(last, window=window).run(kernels)
        assert torch.equal(out[0], together[start + 40])
        assert torch.equal(window[slot], kept[slot])


@dataclass
class Inputs:
    """What compress_tokens takes."""

    step: Step
    inputs: torch.Tensor  # with a column before and after those that are read
    compression: Compression
    ring: torch.Tensor
    cache: torch.Tensor

    def run(self, kernels: KernelSet, step: Step, inputs: torch.Tensor) -> None:
        kernels.compress_tokens(inputs[:, 1:-1], self.compression, TABLE, self.ring, self.cache, 3, step)


def inputs_of(
    rows: list[tuple[int, int]], dtype: torch.dtype, rate: int, dim: int, ring_dtype: torch.dtype, *, overlaps: bool
) -> Inputs:
    step, generator = step_of(rows, 32), torch.Generator().manual_seed(dim + rate)
    width, tokens = dim * (1 + overlaps), rate * (1 + overlaps)
    compression = Compression(
        rate,
        overlaps,
        torch.randn(rate, width, generator=generator),
        torch.rand(dim, generator=generator) + 0.5,
        1e-6,
    )
    inputs = torch.randn(int(step.query_start[-1]), 2 * width + 2, generator=generator).to(dtype)
    ring = torch.randn(len(rows) + 3, tokens, 2 * width + 4, generator=generator).to(ring_dtype)[..., 1:-3]
    cache = torch.full((int(step.block_tables.max()) + 2, 1, 32, -(-(dim + 8) // rate)), 7.0, dtype=dtype)
    return Inputs(step, inputs, compression, ring, cache)


def copied(ring: torch.Tensor) -> torch.Tensor:
    """The same elements with the same strides."""
    return torch.empty_strided(ring.shape, ring.stride(), dtype=ring.dtype).copy_(ring)


@LEVELS
@DTYPES
@pytest.mark.parametrize("ring_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rate", "overlaps", "dim"), [(4, True, 32), (2, True, 19), (32, False, 64), (8, False, 500), (4, False, 13)]
)
@pytest.mark.quick_cases(4)
def test_vectors_are_those_of_the_reference(
    level: str, dtype: torch.dtype, ring_dtype: torch.dtype, rate: int, overlaps: bool, dim: int
) -> None:
    found = []
    for kernels in (kernels_of(level, dtype, 32, 2), KernelSet()):
        case = inputs_of(ROWS, dtype, rate, dim, ring_dtype, overlaps=overlaps)
        case.step.slot_mapping[-4] = -1  # of a token whose group another rank keeps
        case.run(kernels, case.step, case.inputs)
        found.append((case.cache, case.ring))
    (cache, ring), (wanted, wanted_ring) = found
    assert torch.equal(ring, wanted_ring)
    error = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(cache, wanted, rtol=error, atol=error)
    assert torch.equal(cache == 7, wanted == 7)


@LEVELS
@DTYPES
@SETS
def test_a_vector_has_one_result_in_any_division_of_a_prompt(
    level: str, dtype: torch.dtype, is_batch_invariant: bool
) -> None:
    kernels = kernels_of(level, dtype, 32, 2, batch_invariant=is_batch_invariant)
    for rate, overlaps in ((4, True), (32, False)):
        rows = [(70, 70), (1, 40), (30, 95)]
        whole = inputs_of(rows, dtype, rate, 32, torch.float32, overlaps=overlaps)
        parts = replace(whole, ring=copied(whole.ring), cache=whole.cache.clone())
        whole.run(kernels, whole.step, whole.inputs)
        for row, (count, _) in enumerate(rows):
            start = int(whole.step.query_start[row])
            for first in range(0, count, 9):
                size = min(9, count - first)
                own = whole.inputs[start + first : start + first + size]
                parts.run(kernels, whole.step.alone(row, first, size), own)
        assert torch.equal(parts.cache, whole.cache)
        assert torch.equal(parts.ring, whole.ring)


@dataclass
class Index:
    """What choose_compressed takes."""

    step: Step
    queries: torch.Tensor
    weights: torch.Tensor  # with columns before and after those that are read
    cache: torch.Tensor
    rate: int

    def run(self, kernels: KernelSet, count: int) -> torch.Tensor:
        weights = self.weights[:, 2:-1]
        return kernels.choose_compressed(self.queries, weights, self.cache, self.rate, 5, self.step, count).clone()


def index_of(rows: list[tuple[int, int]], dtype: torch.dtype, heads: int, dim: int, rate: int) -> Index:
    step, generator = step_of(rows, 16), torch.Generator().manual_seed(heads + dim)
    tokens = int(step.query_start[-1])

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    num_blocks = int(step.block_tables.max()) + 2
    cache = normal(num_blocks, 1, 16, -(-(dim + 9) // rate))
    return Index(step, normal(tokens, heads, dim), normal(tokens, heads + 3), cache, rate)


@LEVELS
@DTYPES
@SETS
@pytest.mark.parametrize("count", [1, 40, 700])
@pytest.mark.parametrize(("heads", "dim", "rate"), [(3, 16, 4), (64, 128, 1), (33, 20, 2)])
@pytest.mark.quick_cases(4)
def test_vectors_with_the_highest_scores_are_chosen(
    level: str, dtype: torch.dtype, is_batch_invariant: bool, count: int, heads: int, dim: int, rate: int
) -> None:
    """Those whose scores are as close as rounding may be exchanged; numbers ascend, and -1 follows them."""
    for rows in (ROWS, SHORT, [(1, 1500)], [(1, 2000), (3, 1900)]):
        index = index_of(rows, dtype, heads, dim, rate)
        found = index.run(kernels_of(level, dtype, 32, 2, batch_invariant=is_batch_invariant), count)
        assert (found[used(index.step).stop :] == -1).all()
        keys = index.cache.view(-1, rate * index.cache.shape[3])[:, 5 : 5 + dim].double()
        for token in range(used(index.step).stop):
            row = int(torch.searchsorted(index.step.query_start, token, right=True)) - 1
            firsts = torch.arange((int(index.step.positions[token]) + 1) // rate) * rate
            places = index.step.block_tables[row][firsts // 16].long() * 16 + firsts % 16
            products = (index.queries[token].double() @ keys[places // rate].T).relu()
            scores = index.weights[token, 2:-1].double() @ products
            size = min(count, len(scores))
            own = found[token, :size]
            assert (found[token, size:] == -1).all()
            assert (own.diff() > 0).all()
            assert size == 0 or (own[0] >= 0 and own[-1] < len(scores))
            best = scores.topk(size).values.sort().values
            torch.testing.assert_close(scores[own].sort().values, best, rtol=1e-4, atol=1e-4)


@LEVELS
@DTYPES
def test_of_equal_scores_the_first_are_chosen(level: str, dtype: torch.dtype) -> None:
    """Also where threads share the keys of a query: most scores are 0, because no product is above it."""
    index = index_of([(1, 2000), (2, 1500)], dtype, 5, 16, 1)
    index.queries.abs_(), index.weights.abs_()
    keys = index.cache.view(-1, index.cache.shape[3])
    keys[:, 5:21] = -keys[:, 5:21].abs()
    few = torch.tensor([1300, 7, 640])
    table = index.step.block_tables[0].long()
    keys[table[few // 16] * 16 + few % 16, 5:21] = 1
    for threads in (1, 2, 16):
        found = index.run(kernels_of(level, dtype, 32, threads), 10)
        assert found[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 640, 1300]
        assert found[1].tolist() == list(range(10))


@LEVELS
@DTYPES
def test_heads_are_normed_and_rotated_as_by_the_reference(level: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    kernels = kernels_of(level, dtype, 32, 2)
    for tokens, heads, dim in ((0, 3, 16), (1, 64, 512), (5, 1, 19), (300, 7, 48)):
        x = torch.randn(tokens, heads, dim, generator=generator).to(dtype)
        positions = torch.randint(MAX_LEN, (tokens,), generator=generator)
        for weight in (None, torch.rand(dim, generator=generator)):
            for eps in (None, 1e-5):
                out = kernels.norm_and_turn(x, weight, eps, TABLE, positions)
                wanted = KernelSet().norm_and_turn(x, weight, eps, TABLE, positions)
                error = 1e-5 if dtype == torch.float32 else 2**-7
                torch.testing.assert_close(out, wanted, rtol=error, atol=error)


def test_shapes_that_do_not_fit_are_refused() -> None:
    kernels = kernels_of(BEST, torch.float32)
    if BEST == "torch":
        pytest.skip("no compiler")
    case = case_of(SHORT, torch.float32, 3, 32, 5, 4, 3)
    assert case.cache is not None
    assert case.chosen is not None
    for broken in (
        replace(case, keys=case.keys[:, :16]),
        replace(case, sinks=case.sinks[1:]),
        replace(case, rate=3),
        replace(case, cache=case.cache[..., :4].contiguous()),
        replace(case, chosen=case.chosen[1:]),
        case_of(SHORT, torch.float32, 3, 24, 5, 4, 3),
    ):
        with pytest.raises(ValueError, match=r"vectors|queries|cache"):
            broken.run(kernels)
    own = inputs_of(SHORT, torch.float32, 4, 32, torch.float32, overlaps=True)
    for wrong in (own.inputs[:, :-2], own.inputs.bfloat16()):
        with pytest.raises(ValueError, match=r"inputs are|expected rows"):
            own.run(kernels, own.step, wrong)
    index = index_of(SHORT, torch.float32, 3, 16, 4)
    with pytest.raises(ValueError, match="weights"):
        replace(index, weights=index.weights[:, 1:]).run(kernels, 3)
    with pytest.raises(ValueError, match="rotated"):
        kernels.norm_and_turn(torch.zeros(2, 1, 8), None, None, TABLE, torch.zeros(2, dtype=torch.int64))
