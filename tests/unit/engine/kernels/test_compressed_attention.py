"""Attention over a window and compressed vectors, against a formula that computes each vector and query by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from stoker.engine.kernels import Compression, KernelSet
from stoker.engine.kernels.kernel_set import ONE_ROW
from stoker.engine.layers.rotary import RopeParameters, cos_sin_table

BLOCK_SIZE, NUM_BLOCKS, WINDOW, HEADS, DIM, ROTATED = 8, 24, 5, 3, 16, 8
LENGTHS = [29, 3, 18]  # of the sequences; the second has no complete group of 4 tokens
TABLE = cos_sin_table(RopeParameters(kind="default", theta=100.0, original_max_position=64), ROTATED, 64)
KERNELS = KernelSet()


@dataclass
class Step:
    """The tokens of sequences, from their numbers of computed tokens on."""

    query_start: torch.Tensor
    context_lens: torch.Tensor
    seq_slots: torch.Tensor
    block_tables: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    max_query_len: int = 64

    @classmethod
    def of(cls, spans: list[tuple[int, int]], tables: torch.Tensor) -> Step:
        """spans: of each sequence, its tokens of this step. A last row is padding."""
        lengths = [stop - start for start, stop in spans]
        positions = torch.cat([torch.arange(start, stop) for start, stop in spans])
        rows = torch.repeat_interleave(torch.arange(len(spans)), torch.tensor(lengths))
        slots = tables[rows, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
        starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
        return cls(
            query_start=torch.tensor([*starts, starts[-1]], dtype=torch.int32),
            context_lens=torch.tensor([*(stop for _, stop in spans), 0], dtype=torch.int32),
            seq_slots=torch.tensor([2, 0, 3, -1], dtype=torch.int32),
            block_tables=torch.cat((tables, tables[:1])),
            positions=positions,
            slot_mapping=slots,
        )


def tables() -> torch.Tensor:
    return torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(5))[:12].view(3, 4).int()


def turned(x: torch.Tensor, position: int, sign: float = 1.0) -> torch.Tensor:
    """The last elements of x, [..., DIM], rotated as complex numbers."""
    pairs = torch.view_as_complex(x[..., DIM - ROTATED :].contiguous().view(*x.shape[:-1], -1, 2))
    cosines, sines = TABLE[position].chunk(2)
    back = torch.view_as_real(pairs * torch.complex(cosines, sign * sines)).flatten(-2)
    return torch.cat((x[..., : DIM - ROTATED], back), dim=-1)


def normed(x: torch.Tensor, weight: torch.Tensor | float, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def vector(inputs: torch.Tensor, group: int, compression: Compression) -> torch.Tensor:
    """The vector of one group of a sequence, whose tokens have these inputs."""
    rate, width = compression.rate, inputs.shape[1] // 2
    tokens = range((group - 1) * rate if compression.overlaps else group * rate, (group + 1) * rate)
    values, gates = [], []
    for token in tokens:
        if token < 0:
            continue
        is_own = token >= group * rate
        first = DIM if compression.overlaps and is_own else 0
        values.append(inputs[token, first : first + DIM])
        gates.append((inputs[token, width:] + compression.bias[token % rate])[first : first + DIM])
    mean = (torch.stack(values) * torch.stack(gates).softmax(0)).sum(0)
    return turned(normed(mean, compression.weight, compression.eps), group * rate)


def make(rate: int, *, overlaps: bool) -> tuple[Compression, list[torch.Tensor]]:
    """A compression, and the inputs of each sequence."""
    generator = torch.Generator().manual_seed(rate)
    width = DIM * (1 + overlaps)
    compression = Compression(
        rate,
        overlaps,
        torch.randn(rate, width, generator=generator),
        torch.rand(DIM, generator=generator) + 0.5,
        1e-6,
    )
    return compression, [torch.randn(length, 2 * width, generator=generator) for length in LENGTHS]


# How the sequences are divided into steps: all at once, and in parts that end within and at the ends of groups.
PARTS = [[1.0], [0.1, 0.4, 0.45, 0.9, 1.0]]


def spans_of(parts: list[float]) -> list[list[tuple[int, int]]]:
    ends = [[0, *(math.ceil(part * length) for part in parts)] for length in LENGTHS]
    return [[(each[step], each[step + 1]) for each in ends] for step in range(len(parts))]


def of_step(sequences: list[torch.Tensor], spans: list[tuple[int, int]]) -> torch.Tensor:
    return torch.cat([each[start:stop] for each, (start, stop) in zip(sequences, spans, strict=True)])


@pytest.mark.parametrize("parts", PARTS, ids=["whole", "in parts"])
@pytest.mark.parametrize(("rate", "overlaps"), [(4, True), (8, False), (2, True)])
def test_a_vector_is_the_mean_of_its_group(rate: int, overlaps: bool, parts: list[float]) -> None:
    compression, sequences = make(rate, overlaps=overlaps)
    width = (DIM + 8) // rate  # 8 elements after those of the vector are not its own
    cache = torch.full((NUM_BLOCKS, 1, BLOCK_SIZE, width), 7.0)
    ring = torch.full((4, rate * (1 + overlaps), sequences[0].shape[1]), torch.nan)
    places = tables()
    for spans in spans_of(parts):
        step = Step.of(spans, places)
        KERNELS.compress_tokens(of_step(sequences, spans), compression, TABLE, ring, cache, 0, step)
    found = cache.view(-1, rate * width)
    for row, (inputs, length) in enumerate(zip(sequences, LENGTHS, strict=True)):
        for group in range(length // rate):
            first = group * rate
            place = (int(places[row, first // BLOCK_SIZE]) * BLOCK_SIZE + first % BLOCK_SIZE) // rate
            torch.testing.assert_close(found[place, :DIM], vector(inputs, group, compression))
            assert (found[place, DIM:] == 7).all()
    assert (found == 7).all(1).sum() == len(found) - sum(length // rate for length in LENGTHS)


def expected(
    q: torch.Tensor, keys: torch.Tensor, vectors: torch.Tensor, seen: list[int], sinks: torch.Tensor, position: int
) -> torch.Tensor:
    """q: [HEADS, DIM]. seen: the vectors that the query attends to."""
    near = keys[max(0, position - WINDOW + 1) : position + 1]
    values = torch.cat((near, vectors[seen]))
    weights = torch.cat((q @ values.T / DIM**0.5, sinks[:, None]), 1).softmax(1)[:, :-1]
    return turned(weights @ values, position, -1.0)


@pytest.mark.parametrize("parts", PARTS, ids=["whole", "in parts"])
@pytest.mark.parametrize("count", [None, 2])
def test_attention_is_over_the_window_and_the_vectors(parts: list[float], count: int | None) -> None:
    rate = 4
    generator = torch.Generator().manual_seed(9)
    queries = [torch.randn(length, HEADS, DIM, generator=generator) for length in LENGTHS]
    keys = [torch.randn(length, DIM, generator=generator) for length in LENGTHS]
    index = [torch.randn(length, 16, DIM, generator=generator) for length in LENGTHS]
    weights = [torch.randn(length, 16, generator=generator) for length in LENGTHS]
    sinks = torch.randn(HEADS, generator=generator)
    cache = torch.randn(NUM_BLOCKS, 1, BLOCK_SIZE, 2 * DIM // rate, generator=generator)
    window, places = torch.full((4, WINDOW, DIM), torch.nan), tables()
    stored = cache.view(-1, 2 * DIM)  # of the groups: a vector, and its key in the index
    for spans in spans_of(parts):
        step = Step.of(spans, places)
        chosen = None
        if count is not None:
            chosen = KERNELS.choose_compressed(
                of_step(index, spans), of_step(weights, spans), cache, rate, DIM, step, count
            )
        out = KERNELS.attend_compressed(
            of_step(queries, spans), of_step(keys, spans), sinks, window, cache, rate, chosen, TABLE, step
        )
        token = 0
        for row, (start, stop) in enumerate(spans):
            firsts = torch.arange(LENGTHS[row] // rate) * rate
            of_row = stored[(places[row].long()[firsts // BLOCK_SIZE] * BLOCK_SIZE + firsts % BLOCK_SIZE) // rate]
            for position in range(start, stop):
                seen = list(range((position + 1) // rate))
                if count is not None and len(seen) > count:
                    scores = weights[row][position] @ (index[row][position] @ of_row[:, DIM:].T).relu()
                    seen = scores[: len(seen)].topk(count).indices.tolist()
                wanted = expected(queries[row][position], keys[row], of_row[:, :DIM], sorted(seen), sinks, position)
                torch.testing.assert_close(out[token], wanted)
                token += 1


def test_each_token_by_itself_has_the_same_results() -> None:
    """`model.batch_invariant`: a step of one token at a time, also of rows that end in the same step."""
    compression, sequences = make(4, overlaps=True)
    generator = torch.Generator().manual_seed(3)
    q, keys = torch.randn(50, HEADS, DIM, generator=generator), torch.randn(50, DIM, generator=generator)
    index, weights = torch.randn(50, 16, DIM, generator=generator), torch.randn(50, 16, generator=generator)
    found = []
    for kernels in (KERNELS, ONE_ROW):
        cache, window = torch.zeros(NUM_BLOCKS, 1, BLOCK_SIZE, 8), torch.zeros(4, WINDOW, DIM)
        ring, step = torch.zeros(4, 8, sequences[0].shape[1]), Step.of([(0, length) for length in LENGTHS], tables())
        for first in (0, DIM):
            kernels.compress_tokens(torch.cat(sequences), compression, TABLE, ring, cache, first, step)
        chosen = kernels.choose_compressed(index, weights, cache, 4, DIM, step, 2)
        out = kernels.attend_compressed(q, keys, torch.zeros(HEADS), window, cache, 4, chosen, TABLE, step)
        found.append((cache, window, ring, chosen, out))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("weight", [None, torch.linspace(0.5, 2, DIM)])
@pytest.mark.parametrize("eps", [None, 1e-5])
def test_heads_are_normed_and_their_last_elements_rotated(weight: torch.Tensor | None, eps: float | None) -> None:
    x = torch.randn(5, HEADS, DIM, generator=torch.Generator().manual_seed(2))
    positions = torch.tensor([0, 3, 3, 40, 63])
    out = KERNELS.norm_and_turn(x, weight, eps, TABLE, positions)
    for token, position in enumerate(positions.tolist()):
        own = x[token] if eps is None else normed(x[token], 1.0 if weight is None else weight, eps)
        torch.testing.assert_close(out[token], turned(own, position))
