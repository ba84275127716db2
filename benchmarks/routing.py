"""Routing over replicas, simulated: prefixes found again, spread of the work, and decisions per second.

Requests of several kinds arrive at replicas that compute prompts at a fixed speed and generate tokens at another. Each
replica remembers whole chunks of prompts, as much as its KV cache holds. The hit rate is compared with that of one
replica that never forgets.

Usage: python -m benchmarks.routing [--replicas 2 8 64] [--requests 20000] [--seed 0]
"""

from __future__ import annotations

import argparse
import heapq
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stoker.engine.api import CacheScope
from stoker.engine.client.routing import CHUNK, Placement, Reported, Router

PREFILL_TOKENS_PER_S = 10_000
DECODE_S = 0.02  # for one token of a sequence
KV_TOKENS = 1_000_000  # of each replica
UTILISATION = 0.7  # share of the time that replicas compute prompts or generate


@dataclass(frozen=True)
class Arrival:
    at: float
    token_ids: list[int]
    num_generated: int


class Cache:
    """The prefix cache of one replica: chunks of prompts, the least recently used one is replaced first."""

    def __init__(self, max_tokens: int) -> None:
        self._max = max_tokens // CHUNK
        self._chunks: OrderedDict[int, None] = OrderedDict()

    def take(self, token_ids: list[int]) -> int:
        """Tokens found; the whole prompt is cached afterwards."""
        hashes, last = [], 0
        for end in range(CHUNK, len(token_ids) + 1, CHUNK):
            last = hash((last, *token_ids[end - CHUNK : end]))
            hashes.append(last)
        found = 0
        while found < len(hashes) and hashes[found] in self._chunks:
            found += 1
        for each in reversed(hashes):
            self._chunks[each] = None
            self._chunks.move_to_end(each)
        while len(self._chunks) > self._max:
            self._chunks.popitem(last=False)
        return found * CHUNK


def prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(150_000) for _ in range(length)]


def one_system_prompt(rng: random.Random, num: int) -> Iterator[list[int]]:
    """All requests begin with the same 2000 tokens."""
    system = prompt(rng, 2000)
    for _ in range(num):
        yield system + prompt(rng, rng.randrange(50, 400))


def tenants(rng: random.Random, num: int) -> Iterator[list[int]]:
    """200 system prompts of 1000 to 3000 tokens; few of them get most of the requests."""
    systems = [prompt(rng, rng.randrange(1000, 3000)) for _ in range(200)]
    weights = [1 / (1 + index) for index in range(len(systems))]
    for system in rng.choices(systems, weights, k=num):
        yield system + prompt(rng, rng.randrange(50, 300))


def conversations(rng: random.Random, num: int) -> Iterator[list[int]]:
    """400 conversations at a time; each turn begins with all turns before it."""
    open_ones = [prompt(rng, 500) for _ in range(400)]
    for _ in range(num):
        index = rng.randrange(len(open_ones))
        open_ones[index] = open_ones[index] + prompt(rng, rng.randrange(100, 400))
        yield open_ones[index]
        if len(open_ones[index]) > 6000:
            open_ones[index] = prompt(rng, 500)


def nothing_shared(rng: random.Random, num: int) -> Iterator[list[int]]:
    for _ in range(num):
        yield prompt(rng, rng.randrange(100, 2000))


WORKLOADS: dict[str, Callable[[random.Random, int], Iterator[list[int]]]] = {
    "one system prompt": one_system_prompt,
    "200 tenants": tenants,
    "conversations": conversations,
    "nothing shared": nothing_shared,
}


@dataclass(frozen=True)
class Result:
    hit_rate: float  # of all prompt tokens
    best_hit_rate: float  # of one replica that never forgets
    spread: float  # seconds of work of the busiest replica, less those of the least busy one, by the mean


def arrivals(make: Callable[[random.Random, int], Iterator[list[int]]], rng: random.Random, num: int) -> list[Arrival]:
    """All at time 0; `simulate` spaces them out."""
    return [Arrival(0.0, each, rng.randrange(16, 200)) for each in make(rng, num)]


def new_router(num_replicas: int) -> Router:
    router = Router()
    for rank in range(num_replicas):
        router.open(rank, KV_TOKENS)
    return router


def simulate(found: list[Arrival], num_replicas: int, rng: random.Random) -> Result:
    """Poisson arrivals at a rate for which the replicas are busy for `UTILISATION` of the time."""
    unbounded = Cache(1 << 40)
    total = sum(len(each.token_ids) for each in found)
    best_hits = sum(unbounded.take(each.token_ids) for each in found)
    generated = sum(each.num_generated for each in found)
    work = (total - best_hits) / PREFILL_TOKENS_PER_S + generated * DECODE_S / 16  # 16 sequences share a step
    interval = work / len(found) / num_replicas / UTILISATION
    router = new_router(num_replicas)
    caches = [Cache(KV_TOKENS) for _ in range(num_replicas)]
    free_at = [0.0] * num_replicas  # when the last prompt is computed
    busy = [0.0] * num_replicas
    reported = dict.fromkeys(range(num_replicas), Reported())
    events: list[tuple[float, int, bool, Placement]] = []
    now, hits = 0.0, 0
    for number, each in enumerate(found):
        now += rng.expovariate(1 / interval)
        while events and events[0][0] <= now:
            _, _, is_end, placement = heapq.heappop(events)
            (router.ended if is_end else router.started)(placement)
        placement = router.place(each.token_ids, CacheScope(), reported)
        rank = placement.rank
        cached = caches[rank].take(each.token_ids)
        hits += cached
        prefill_s = (len(each.token_ids) - cached) / PREFILL_TOKENS_PER_S
        free_at[rank] = max(free_at[rank], now) + prefill_s
        busy[rank] += prefill_s + each.num_generated * DECODE_S / 16
        heapq.heappush(events, (free_at[rank], 2 * number, False, placement))
        ended_at = free_at[rank] + each.num_generated * DECODE_S
        heapq.heappush(events, (ended_at, 2 * number + 1, True, placement))
    mean = sum(busy) / num_replicas
    return Result(hits / total, best_hits / total, (max(busy) - min(busy)) / mean)


def decisions_per_second(num_replicas: int, num: int, rng: random.Random) -> float:
    """Decisions per second of one process, with prompts of 200 tenants."""
    router = new_router(num_replicas)
    reported = dict.fromkeys(range(num_replicas), Reported())
    prompts = list(tenants(rng, num))
    open_ones: list[Placement] = []
    started = time.perf_counter()
    for each in prompts:
        open_ones.append(router.place(each, CacheScope(), reported))
        if len(open_ones) > 20 * num_replicas:
            router.ended(open_ones.pop(0))
    return num / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 8, 64])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for name, make in WORKLOADS.items():
        found = arrivals(make, random.Random(given.seed), given.requests)
        for num in given.replicas:
            result = simulate(found, num, random.Random(given.seed))
            share = result.hit_rate / result.best_hit_rate if result.best_hit_rate else 1.0
            print(
                f"{name:<18} {num:>3} replicas: {result.hit_rate:6.1%} of the prompt tokens found, {share:6.1%} of one "
                f"unbounded replica; spread {result.spread:5.1%}"
            )
    for num in given.replicas:
        print(f"{num:>3} replicas: {decisions_per_second(num, 10_000, random.Random(given.seed)):,.0f} decisions/s")


if __name__ == "__main__":
    main()
