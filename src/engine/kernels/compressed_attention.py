"""Attention over the last tokens of a sequence, and over one compressed vector for each group of tokens before.

A vector is key and value of all heads. Those of the last `window` tokens, and the inputs of vectors that are not
complete, are kept with a sequence's state: token t has row t % rows of a ring. Complete vectors are in the paged cache,
in the place of their tokens. The references are plain torch, row by row; compressed_attention_cpu.py has C++, and gpu/
has Triton.

Source: DeepSeek-V4's configuration and modules in transformers (`deepseek_v4`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from .latent_attention import parts_of
from .recurrent_step import RecurrentStep
from .rope_and_store import rotated, to_cache_dtype


class CompressedStep(RecurrentStep, Protocol):
    @property
    def positions(self) -> torch.Tensor: ...  # [T] int64, in the sequence
    @property
    def slot_mapping(self) -> torch.Tensor: ...  # [T] int64; a token in slot -1 is not stored
    @property
    def block_tables(self) -> torch.Tensor: ...  # [R, max blocks in use] int32


@dataclass(frozen=True, slots=True)
class Compression:
    """How the inputs of `rate` tokens become one vector of D elements: each element is a weighted mean, whose weights
    are the softmax of the tokens' gates.

    With an overlap the tokens of the group before are in the mean too: inputs have a first half for the vector of the
    next group, and a second half for that of their own.
    """

    rate: int
    overlaps: bool
    bias: torch.Tensor  # [rate, width of the inputs] float32: is added to the gates, by the token's place in its group
    weight: torch.Tensor  # [D] float32, of the RMS norm of the mean
    eps: float

    @property
    def dim(self) -> int:
        return len(self.weight)


# The arguments of norm_and_turn_reference.
NormAndTurn = Callable[[torch.Tensor, torch.Tensor | None, float | None, torch.Tensor, torch.Tensor], torch.Tensor]
# The arguments of compress_tokens_reference.
CompressTokens = Callable[
    [torch.Tensor, Compression, torch.Tensor, torch.Tensor, torch.Tensor, int, CompressedStep], None
]
# The arguments of choose_compressed_reference.
ChooseCompressed = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int, int, CompressedStep, int], torch.Tensor]
# The arguments of attend_compressed_reference.
AttendCompressed = Callable[
    [
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor | None,
        int,
        torch.Tensor | None,
        torch.Tensor,
        CompressedStep,
    ],
    torch.Tensor,
]


def norm_and_turn_reference(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float | None, cos_sin: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """RMS norm of each head, whose last elements are rotated then, as neighbouring pairs.

    Args:
        x: [T, H, D].
        weight, eps: of the norm. weight: [D] float32, or None for ones. eps: None: there is no norm.
        cos_sin: [max_position, R] float32, cosines in the first half and sines in the second; R is at most D.
        positions: [T] int64.
    Returns:
        [T, H, D] in x's dtype; arithmetic in float32.
    """
    normed = x.float() if eps is None else _normed(x.float(), weight, eps)
    return _turned(normed, cos_sin[positions].unsqueeze(1)).to(x.dtype)


def compress_tokens_reference(
    inputs: torch.Tensor,
    compression: Compression,
    cos_sin: torch.Tensor,
    ring: torch.Tensor,
    cache: torch.Tensor,
    first: int,
    step: CompressedStep,
) -> None:
    """Writes the vectors of the groups that the step completes, and keeps the inputs of its last tokens.

    Args:
        inputs: [T, 2 * W]: what is averaged, then the gates. W is D, or 2 * D with an overlap.
        cos_sin: as norm_and_turn takes it; a vector is rotated by the position of the first token of its group.
        ring: [slots, rate, 2 * W], or twice the rate with an overlap; written in place.
        cache: [num_blocks, 1, block_size, elements of a token]; the block size is a multiple of the rate. The place of
            a group's tokens has its vector from element `first` on.
    """
    vectors = vectors_of(cache, compression.rate)
    rate, span = compression.rate, ring.shape[1]
    for row in _rows_of(step):
        closed = range(row.first_position // rate, row.end_position // rate)
        if closed:  # a decoded token seldom completes a group; others need no inputs of earlier tokens
            before = max(0, closed.start * rate - (span - rate))
            kept = ring[row.slot, torch.arange(before, row.first_position, device=ring.device) % span]
            seen = torch.cat((kept.float(), inputs[row.start : row.end].float()))
            found = _means(seen, before, closed, compression)
            turn = cos_sin[torch.arange(closed.start, closed.stop, device=cos_sin.device) * rate]
            last = row.start - row.first_position + rate - 1  # token that completes group 0
            slots = step.slot_mapping[last + closed.start * rate : last + closed.stop * rate : rate]
            is_stored = slots >= 0
            places = slots[is_stored] // rate
            vectors[places, first : first + compression.dim] = to_cache_dtype(
                _turned(found, turn)[is_stored], vectors.dtype
            )
        _keep(ring[row.slot], inputs[row.start : row.end], row)


def choose_compressed_reference(
    queries: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    rate: int,
    first: int,
    step: CompressedStep,
    count: int,
) -> torch.Tensor:
    """The vectors with the highest scores: the sum over the heads of an index of weight * relu(query * key).

    Args:
        queries: [T, H, D], normed and rotated as the keys are.
        weights: [T, H].
        cache, rate, first: as compress_tokens takes them; the keys are what it has written at `first`.
        count: vectors that a query attends to at most.
    Returns:
        [T, count] int64, numbers of groups in the row's context; -1 where a query sees fewer.
    """
    vectors, dim = vectors_of(cache, rate), queries.shape[2]
    chosen = torch.full((len(queries), count), -1, dtype=torch.int64, device=queries.device)
    for row in _rows_of(step):
        places = _places(row, step, cache.shape[2], rate)
        keys = vectors[places, first : first + dim].float()
        for start, stop in parts_of(row.start, row.end, queries.shape[1] * len(places)):
            scores = torch.relu(torch.einsum("qhd,kd->qhk", queries[start:stop].float(), keys))
            scores = torch.einsum("qh,qhk->qk", weights[start:stop].float(), scores)
            is_seen = _is_complete(row, start, stop, len(places), rate, queries.device)
            best = scores.masked_fill_(~is_seen, -torch.inf).topk(min(count, len(places)), dim=-1)
            chosen[start:stop, : best.indices.shape[1]] = best.indices.masked_fill(best.values == -torch.inf, -1)
    return chosen


def attend_compressed_reference(
    q: torch.Tensor,
    keys: torch.Tensor,
    sinks: torch.Tensor,
    window: torch.Tensor,
    cache: torch.Tensor | None,
    rate: int,
    chosen: torch.Tensor | None,
    cos_sin: torch.Tensor,
    step: CompressedStep,
) -> torch.Tensor:
    """Each query attends to the tokens of its window and to the vectors of the groups that are complete.

    Args:
        q: [T, H, D], of norm_and_turn.
        keys: [T, D], also values: of norm_and_turn. They are kept for later steps.
        sinks: [H] float32, a logit of each head that has no value.
        window: [slots, tokens of the window, D], a ring; written in place.
        cache, rate: as compress_tokens takes them, the first D elements of a vector; None if there are none.
        chosen: of choose_compressed; None: a query attends to all that are complete.
        cos_sin: with which q and keys were rotated: the results are rotated back by the position of their query.
    Returns:
        [T, H, D] in q's dtype; arithmetic in float32.
    """
    out = torch.empty_like(q)
    for row in _rows_of(step):
        near = _near(window, keys, row)
        far = _Far(near[:0], near[:0], None, 1)
        if cache is not None:
            places = _places(row, step, cache.shape[2], rate)
            far = _Far(vectors_of(cache, rate)[:, : q.shape[2]], places, chosen if len(places) else None, rate)
        for start, stop in parts_of(row.start, row.end, _elements(q, len(near), len(far.places), far.chosen)):
            vectors, is_far = far.of(row, start, stop)
            is_near = _is_near(row, start, stop, len(near), window)
            found = _attend(q[start:stop].float(), (near, vectors), (is_near, is_far), sinks)
            turn = _back(cos_sin[step.positions[start:stop]]).unsqueeze(1)
            out[start:stop] = _turned(found, turn).to(q.dtype)
        _keep(window[row.slot], keys[row.start : row.end], row)
    return out


class _Row(NamedTuple):
    """A row that has tokens and a slot."""

    number: int
    start: int  # its first token, and the one after its last
    end: int
    slot: int
    end_position: int  # the one after that of its last token

    @property
    def first_position(self) -> int:
        return self.end_position - (self.end - self.start)

    def position_of(self, token: int) -> int:
        return self.first_position + token - self.start


class _Far(NamedTuple):
    """The vectors of a row's groups."""

    stored: torch.Tensor  # [groups of the cache, D]
    places: torch.Tensor  # of the row's, in `stored`
    chosen: torch.Tensor | None
    rate: int

    def of(self, row: _Row, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What these queries attend to, in float32: [K, D] for all, or [queries, K, D]; and whether each sees it."""
        if self.chosen is not None:
            picks = self.chosen[start:stop]
            return self.stored[self.places[picks.clamp(min=0)]].float(), picks >= 0
        is_seen = _is_complete(row, start, stop, len(self.places), self.rate, self.stored.device)
        return self.stored[self.places.long()].float(), is_seen


def _near(window: torch.Tensor, keys: torch.Tensor, row: _Row) -> torch.Tensor:
    """The keys that the row's first query sees, its own included, and those after it. [tokens, D] float32."""
    before = max(0, row.first_position - window.shape[1] + 1)
    kept = window[row.slot, torch.arange(before, row.first_position, device=window.device) % window.shape[1]]
    return torch.cat((kept, keys[row.start : row.end])).float()


def _is_near(row: _Row, start: int, stop: int, count: int, window: torch.Tensor) -> torch.Tensor:
    """[queries, count]: whether each of the keys of `_near` is in the window of each query."""
    positions = torch.arange(row.position_of(start), row.position_of(stop), device=window.device)[:, None]
    distance = positions - torch.arange(row.end_position - count, row.end_position, device=window.device)
    return (distance >= 0) & (distance < window.shape[1])


def _elements(q: torch.Tensor, num_near: int, num_far: int, picks: torch.Tensor | None) -> int:
    """Elements of the largest intermediate result of one query."""
    num_far = num_far if picks is None else picks.shape[1]
    return max(q.shape[1] * (num_near + num_far), 0 if picks is None else num_far * q.shape[2])


def _attend(
    q: torch.Tensor, keys: Sequence[torch.Tensor], is_seen: Sequence[torch.Tensor], sinks: torch.Tensor
) -> torch.Tensor:
    """Attention over the keys of several places, which are values too. All float32.

    q: [queries, H, D]. keys: [K, D], or [queries, K, D] if each query has its own. is_seen: [queries, K], of each place
    that has keys. Returns [queries, H, D].
    """
    places = [(each, seen) for each, seen in zip(keys, is_seen, strict=True) if each.numel()]
    scores = [
        (q @ each.transpose(-1, -2) * q.shape[2] ** -0.5).masked_fill_(~seen[:, None], -torch.inf)
        for each, seen in places
    ]
    logits = sinks.float()[None, :, None].expand(len(q), -1, 1)
    shares = torch.cat((*scores, logits), dim=-1).softmax(-1)
    out, first = torch.zeros_like(q), 0
    for each, _ in places:
        out += shares[..., first : first + each.shape[-2]] @ each
        first += each.shape[-2]
    return out


def vectors_of(cache: torch.Tensor, rate: int) -> torch.Tensor:
    """cache: [num_blocks, 1, block_size, elements of a token]. Returns [groups of `rate` tokens, their elements]."""
    return cache.view(-1, rate * cache.shape[3])


def _rows_of(step: CompressedStep) -> Iterator[_Row]:
    starts, contexts, slots = step.query_start.tolist(), step.context_lens.tolist(), step.seq_slots.tolist()
    for number, (start, end, slot) in enumerate(zip(starts, starts[1:], slots, strict=False)):
        if end > start and slot >= 0:
            yield _Row(number, start, end, slot, contexts[number])


def _places(row: _Row, step: CompressedStep, block_size: int, rate: int) -> torch.Tensor:
    """Indices in vectors_of of the row's groups that are complete after the step."""
    firsts = torch.arange(row.end_position // rate, device=step.block_tables.device) * rate
    blocks = step.block_tables[row.number].long()[firsts // block_size]
    return (blocks * block_size + firsts % block_size) // rate


def _is_complete(row: _Row, start: int, stop: int, count: int, rate: int, device: torch.device) -> torch.Tensor:
    """[queries, count]: whether each of the row's groups is complete at each query."""
    ends = torch.arange(row.position_of(start) + 1, row.position_of(stop) + 1, device=device)
    return torch.arange(count, device=device) < (ends // rate)[:, None]


def _means(seen: torch.Tensor, before: int, closed: range, compression: Compression) -> torch.Tensor:
    """Normed means of the groups. seen: [tokens from position `before` on, 2 * W]. Returns [groups, D] float32."""
    rate, dim = compression.rate, compression.dim
    skipped = (closed.start - compression.overlaps) * rate - before  # below 0: group 0 has none before it
    own = seen[max(0, skipped) : closed.stop * rate - before]
    groups = own.view(-1, rate, own.shape[1])
    values, gates = groups.chunk(2, dim=-1)
    gates = gates + compression.bias
    if compression.overlaps:
        if skipped < 0:
            values = torch.cat((torch.zeros_like(values[:1]), values))
            gates = torch.cat((torch.full_like(gates[:1], -torch.inf), gates))
        values, gates = (torch.cat((x[:-1, :, :dim], x[1:, :, dim:]), dim=1) for x in (values, gates))
    return _normed((values * gates.softmax(1)).sum(1), compression.weight, compression.eps)


def _keep(ring: torch.Tensor, rows: torch.Tensor, row: _Row) -> None:
    """Writes the last of the row's tokens to their places in its ring."""
    count = min(len(rows), len(ring))
    places = torch.arange(row.end_position - count, row.end_position, device=ring.device) % len(ring)
    ring[places] = rows[len(rows) - count :].to(ring.dtype)


def _normed(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight


def _turned(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """x: [..., D], of which the last R elements are rotated as neighbouring pairs. cos_sin: [..., R]."""
    plain = x.shape[-1] - cos_sin.shape[-1]
    return torch.cat((x[..., :plain], rotated(x[..., plain:], cos_sin, is_interleaved=True)), dim=-1)


def _back(cos_sin: torch.Tensor) -> torch.Tensor:
    cosines, sines = cos_sin.chunk(2, dim=-1)
    return torch.cat((cosines, -sines), dim=-1)
