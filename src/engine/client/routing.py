"""Routing: which of several replicas computes a request. Spreads the work, and finds cached prefixes again.

The cost of a replica is counted in prompt tokens that it would compute before the first token of the request: those
that wait there, those of the prompt that it has not cached, a share for each open sequence, and the space that others
must give back first. A replica that was given more work than others lately costs a little more, so that those with
popular prefixes do not have more to do in the long run. The replica with the lowest cost is chosen.

Rules and records only, no sockets and no clock: replicated.py sends the requests and reports their progress.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from ..api import CacheScope

CHUNK = 64  # tokens that are remembered together: hashing a prompt of 4000 tokens takes about 30 us
# An open sequence takes part in every step until it ends. More sends requests away from what they have cached, less
# lets replicas with popular prefixes have more to do than others: `python -m benchmarks.routing`.
SEQUENCE_TOKENS = 256
# Space comes back when a sequence ends, which takes longer than computing the same number of tokens.
MISSING_TOKENS = 4
# What a replica was given lately beyond the one that was given least counts a sixteenth, and nothing below what chance
# explains: between replicas that are as good as equal the prompt decides. An eighth loses prefixes of conversations.
UNEVEN_SHARE, UNEVEN_FROM = 16, 2048
SEQUENCE_WORK = 1024  # prompt tokens that take as long as generating an answer of usual length
HALVED_AFTER = 128  # placements for each replica, after which the work so far counts half

_64_BITS = (1 << 64) - 1


@dataclass(slots=True)
class Load:
    """Work of one replica that has not ended."""

    num_queued_tokens: int = 0  # to compute before the first tokens of requests that have none yet
    num_sequences: int = 0
    num_free_tokens: int = 1 << 62  # that its KV cache has space for
    num_given_tokens: int = 0  # of all work lately, also of requests that have ended


def choose(loads: Mapping[int, Load], num_tokens: int, num_cached: Mapping[int, int], key: int) -> int:
    """The rank of the replica that gets a prompt.

    Args:
        loads: of the replicas to choose from, by rank; at least one.
        num_tokens: of the prompt.
        num_cached: tokens at its beginning that a replica has cached, by rank; 0 for ranks that are missing.
        key: decides between equal costs. The same beginning of a prompt with the same key gets the same replica, in
            all processes, which share no state.
    """
    best, best_cost, best_tie = -1, 1 << 62, 0
    expected = min(load.num_given_tokens for load in loads.values()) + UNEVEN_FROM
    for rank, load in loads.items():
        missing = num_tokens - load.num_free_tokens
        cost = load.num_queued_tokens + SEQUENCE_TOKENS * load.num_sequences + num_tokens - num_cached.get(rank, 0)
        if missing > 0:
            cost += MISSING_TOKENS * missing
        if load.num_given_tokens > expected:
            cost += (load.num_given_tokens - expected) // UNEVEN_SHARE
        if cost < best_cost:
            best, best_cost, best_tie = rank, cost, _mixed(key, rank)
        elif cost == best_cost and (tie := _mixed(key, rank)) > best_tie:
            best, best_tie = rank, tie
    return best


def _mixed(key: int, rank: int) -> int:
    """64 bits that differ for each rank: the finalizer of SplitMix64 (Steele et al., OOPSLA 2014)."""
    bits = (key + (rank + 1) * 0x9E3779B97F4A7C15) & _64_BITS
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _64_BITS
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _64_BITS
    return bits ^ bits >> 31


class Prefixes:
    """What each replica has probably cached: the prompts that were sent to it, oldest forgotten first."""

    def __init__(self) -> None:
        self._max_chunks: dict[int, int] = {}
        self._chunks: dict[int, OrderedDict[int, None]] = {}
        self._holders: dict[int, int] = {}  # hash of a prefix -> its replicas, one bit for each rank

    def open(self, rank: int, max_tokens: int) -> None:
        """The replica has started, or started again, and has nothing cached. max_tokens: that its KV cache holds."""
        for each in self._chunks.get(rank, ()):
            self._forget(each, 1 << rank)
        self._chunks[rank] = OrderedDict()
        self._max_chunks[rank] = max_tokens // CHUNK

    def hashes(self, token_ids: Sequence[int], scope: CacheScope) -> list[int]:
        """Hashes of the prefixes of 1, 2, ... chunks, equal in every process: hashes of integers are not random."""
        found: list[int] = []
        last = crc32(scope.root_text.encode("utf-8", "surrogatepass"))
        for end in range(CHUNK, len(token_ids) + 1, CHUNK):
            last = hash((last, *token_ids[end - CHUNK : end]))
            if scope.spans and (keys := scope.extra_keys(end - CHUNK, end)):
                last = hash((last, crc32(repr(keys).encode())))
            found.append(last)
        return found

    def cached(self, hashes: Sequence[int]) -> dict[int, int]:
        """Tokens of the longest prefix that a replica has, by rank, without replicas that have none."""
        found: dict[int, int] = {}
        holders = -1
        for index, each in enumerate(hashes):
            left = holders & self._holders.get(each, 0)
            if index and left != holders:
                _note(found, holders & ~left, index * CHUNK)
            holders = left
            if not holders:
                return found
        if hashes:
            _note(found, holders, len(hashes) * CHUNK)
        return found

    def add(self, rank: int, hashes: Sequence[int]) -> None:
        chunks, bit = self._chunks[rank], 1 << rank
        for each in reversed(hashes):  # the beginning last, so that it is forgotten last
            if each in chunks:
                chunks.move_to_end(each)
            else:
                chunks[each] = None
                self._holders[each] = self._holders.get(each, 0) | bit
        while len(chunks) > self._max_chunks[rank]:
            self._forget(chunks.popitem(last=False)[0], bit)

    def _forget(self, chunk: int, bit: int) -> None:
        left = self._holders[chunk] & ~bit
        if left:
            self._holders[chunk] = left
        else:
            del self._holders[chunk]


def _note(found: dict[int, int], ranks: int, num_tokens: int) -> None:
    """num_tokens: of each of the ranks whose bits are set."""
    while ranks:
        lowest = ranks & -ranks
        found[lowest.bit_length() - 1] = num_tokens
        ranks ^= lowest


@dataclass(slots=True)
class Placement:
    """One request on one replica, until it has ended."""

    rank: int
    num_waiting_tokens: int  # counted in the replica's load until the first output


@dataclass(frozen=True, slots=True)
class Reported:
    """What a replica last said of itself. It counts requests of other processes too, and is up to a second old."""

    num_sequences: int = 0  # running and waiting
    num_free_tokens: int = 1 << 62


class Router:
    """Chooses replicas with `choose`, and keeps account of what it has sent to each."""

    def __init__(self) -> None:
        self._prefixes = Prefixes()
        self._loads: dict[int, Load] = {}
        self._num_placed = 0  # since the work so far was halved

    def open(self, rank: int, max_tokens: int) -> None:
        """The replica has started, or started again. max_tokens: that its KV cache holds.

        Placements on the one before still end as others do.
        """
        self._prefixes.open(rank, max_tokens)
        given = [load.num_given_tokens for other, load in self._loads.items() if other != rank]
        # not less than others: it would get all requests until it had caught up
        self._loads.setdefault(rank, Load()).num_given_tokens = max(given, default=0)

    def place(self, token_ids: Sequence[int], scope: CacheScope, reported: Mapping[int, Reported]) -> Placement:
        """Choose a replica among the ranks of `reported`: at least one, all of them opened."""
        loads = self._loads_of(reported)
        hashes = self._prefixes.hashes(token_ids, scope)
        cached = self._prefixes.cached(hashes)
        key = hashes[0] if hashes else hash(tuple(token_ids))
        rank = choose(loads, len(token_ids), cached, key)
        self._prefixes.add(rank, hashes)
        return self._placed(rank, len(token_ids) - cached.get(rank, 0))

    def place_pooled(self, token_ids: Sequence[int], reported: Mapping[int, Reported]) -> Placement:
        """Choose a replica for a prompt that is pooled, by the loads only.

        Most heads compute the whole prompt whatever is cached. The prompts of a call are many, and would displace the
        prefixes of conversations.
        """
        rank = choose(self._loads_of(reported), len(token_ids), {}, hash(tuple(token_ids[:CHUNK])))
        return self._placed(rank, len(token_ids))

    def _loads_of(self, reported: Mapping[int, Reported]) -> dict[int, Load]:
        loads = {}
        for rank, said in reported.items():
            own = self._loads[rank]
            num_sequences = max(own.num_sequences, said.num_sequences)
            loads[rank] = Load(own.num_queued_tokens, num_sequences, said.num_free_tokens, own.num_given_tokens)
        return loads

    def _placed(self, rank: int, num_waiting_tokens: int) -> Placement:
        placement = Placement(rank, num_waiting_tokens)
        load = self._loads[rank]
        load.num_queued_tokens += placement.num_waiting_tokens
        load.num_sequences += 1
        load.num_given_tokens += placement.num_waiting_tokens + SEQUENCE_WORK
        self._count()
        return placement

    def _count(self) -> None:
        """Work fades, by the number of placements: a router has no clock."""
        self._num_placed += 1
        if self._num_placed >= HALVED_AFTER * len(self._loads):
            self._num_placed = 0
            for load in self._loads.values():
                load.num_given_tokens //= 2

    def started(self, placement: Placement) -> None:
        """Note that the first output of a placement has arrived. May be called again."""
        self._loads[placement.rank].num_queued_tokens -= placement.num_waiting_tokens
        placement.num_waiting_tokens = 0

    def ended(self, placement: Placement) -> None:
        """Note that a placement is finished, refused or aborted. Called once for each placement."""
        self.started(placement)
        self._loads[placement.rank].num_sequences -= 1
