"""Routing: the cost of a replica, what its cache is expected to hold, and the balance over many requests."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.routing import WORKLOADS, arrivals, simulate

from stoker.engine.api import CacheScope, KeyedSpan
from stoker.engine.client.routing import (
    CHUNK,
    HALVED_AFTER,
    MISSING_TOKENS,
    SEQUENCE_TOKENS,
    SEQUENCE_WORK,
    UNEVEN_FROM,
    UNEVEN_SHARE,
    Load,
    Prefixes,
    Reported,
    Router,
    choose,
)

ROOT = Path(__file__).parents[4]
ANY = CacheScope()
LONG = list(range(10 * CHUNK))


def idle(*ranks: int) -> dict[int, Load]:
    return {rank: Load() for rank in ranks}


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (Load(100, 0), Load(101, 0)),
        (Load(0, 1), Load(0, 2)),
        (Load(SEQUENCE_TOKENS, 0), Load(1, 1)),
        (Load(0, 0, 1000), Load(0, 0, 999)),
        (Load(MISSING_TOKENS - 1, 0, 1000), Load(0, 0, 999)),
    ],
)
def test_the_replica_with_less_to_do_first_is_chosen(better: Load, worse: Load) -> None:
    for key in range(20):
        assert choose({4: better, 7: worse}, 1000, {}, key) == 4
        assert choose({4: worse, 7: better}, 1000, {}, key) == 7


def test_a_cached_prefix_is_worth_its_tokens_and_no_more() -> None:
    assert choose({0: Load(599), 1: Load()}, 1000, {0: 600}, 0) == 0
    assert choose({0: Load(601), 1: Load()}, 1000, {0: 600}, 0) == 1


def test_equal_replicas_share_prompts_and_a_prompt_keeps_its_replica() -> None:
    rng = random.Random(0)
    keys = [rng.getrandbits(60) for _ in range(4000)]
    chosen = [choose(idle(0, 1, 2, 3), 10, {}, key) for key in keys]
    assert chosen == [choose(idle(3, 2, 1, 0), 10, {}, key) for key in keys]
    assert all(900 < chosen.count(rank) < 1100 for rank in range(4))
    without = [choose(idle(0, 1, 3), 10, {}, key) for key in keys]
    assert all(after == before for before, after in zip(chosen, without, strict=True) if before != 2)


def test_prefixes_are_found_by_replica_and_forgotten_oldest_first() -> None:
    prefixes = Prefixes()
    prefixes.open(0, 12 * CHUNK)
    prefixes.open(5, 12 * CHUNK)
    whole = prefixes.hashes(LONG, ANY)
    assert len(whole) == 10
    prefixes.add(0, whole)
    prefixes.add(5, whole[:4])
    assert prefixes.cached(whole) == {0: 10 * CHUNK, 5: 4 * CHUNK}
    assert prefixes.cached(prefixes.hashes([*LONG[:-1], 0], ANY)) == {0: 9 * CHUNK, 5: 4 * CHUNK}
    assert prefixes.cached(prefixes.hashes(LONG, CacheScope("salt"))) == {}
    assert prefixes.cached(prefixes.hashes(LONG, CacheScope(spans=(KeyedSpan(70, 80, "image"),)))) == {
        0: CHUNK,
        5: CHUNK,
    }
    assert prefixes.cached(prefixes.hashes(LONG[: CHUNK - 1], ANY)) == {}
    prefixes.add(0, prefixes.hashes(LONG[1:], ANY))  # 9 chunks in 12 places: 7 of the first ones are forgotten
    assert prefixes.cached(whole) == {0: 3 * CHUNK, 5: 4 * CHUNK}
    prefixes.open(0, 12 * CHUNK)  # started again
    assert prefixes.cached(whole) == {5: 4 * CHUNK}


def test_hashes_are_the_same_in_every_process() -> None:
    """So that API processes, which share no state, send equal prefixes to the same replica."""
    code = (
        "from stoker.engine.client.routing import CacheScope, Prefixes;"
        "print(Prefixes().hashes(list(range(640)), CacheScope('a'))[-1])"
    )
    environment = {"PYTHONPATH": str(ROOT / ".dev"), "PYTHONHASHSEED": "7"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(found.stdout) == Prefixes().hashes(LONG, CacheScope("a"))[-1]


def test_the_account_of_a_replica_is_empty_once_all_has_ended() -> None:
    router = Router()
    for rank in (0, 1):
        router.open(rank, 1 << 20)
    reported = {0: Reported(), 1: Reported()}
    placed = [router.place([*LONG, index], ANY, reported) for index in range(8)]
    assert {placement.rank for placement in placed} == {0, 1}
    for placement in placed[::2]:
        router.started(placement)
        router.started(placement)
    router.open(placed[0].rank, 1 << 20)  # started again: what was sent to it before ends too
    for placement in placed:
        router.ended(placement)
    given = {rank: load.num_given_tokens for rank, load in router._loads.items()}
    assert router._loads == {rank: Load(num_given_tokens=given[rank]) for rank in (0, 1)}


def test_work_that_has_ended_counts_a_little() -> None:
    """Between equal replicas the prompt decides, until one was given clearly more than the other."""
    for key in range(20):
        slightly = {0: Load(num_given_tokens=UNEVEN_FROM + UNEVEN_SHARE - 1), 1: Load()}
        assert choose(slightly, 100, {}, key) == choose(idle(0, 1), 100, {}, key)
        assert choose({0: Load(num_given_tokens=UNEVEN_FROM + UNEVEN_SHARE), 1: Load()}, 100, {}, key) == 1
    busy = Load(num_given_tokens=UNEVEN_FROM + 600 * UNEVEN_SHARE)
    assert choose({0: busy, 1: Load()}, 1000, {0: 600 + 1}, 0) == 0
    assert choose({0: busy, 1: Load()}, 1000, {0: 600 - 1}, 0) == 1


def test_work_fades_and_a_replica_that_starts_again_is_not_flooded() -> None:
    router = Router()
    reported = {rank: Reported() for rank in range(3)}
    for rank in reported:
        router.open(rank, 1 << 20)
    for index in range(3 * HALVED_AFTER - 1):
        router.ended(router.place([index] * 10, ANY, reported))
    before = [load.num_given_tokens for load in router._loads.values()]
    assert sum(before) == (3 * HALVED_AFTER - 1) * (10 + SEQUENCE_WORK)
    router.ended(router.place([-1] * 10, ANY, reported))
    after = [load.num_given_tokens for load in router._loads.values()]
    assert sum(after) == pytest.approx(sum(before) / 2, rel=0.01)
    router.open(1, 1 << 20)
    assert router._loads[1].num_given_tokens == max(after[0], after[2])


def test_what_others_have_sent_counts_as_reported() -> None:
    router = Router()
    for rank in (0, 1):
        router.open(rank, 1 << 20)
    assert router.place(LONG, ANY, {0: Reported(9), 1: Reported()}).rank == 1
    assert router.place([1, *LONG], ANY, {0: Reported(), 1: Reported(0, 5)}).rank == 0
    assert router.place([2, *LONG], ANY, {1: Reported(99, 0)}).rank == 1  # the only one


@pytest.mark.parametrize(("workload", "num_requests"), [("200 tenants", 2500), ("conversations", 5000)])
@pytest.mark.quick_cases(1)
def test_prefixes_are_found_again_and_work_is_spread(workload: str, num_requests: int) -> None:
    found = arrivals(WORKLOADS[workload], random.Random(1), num_requests)
    result = simulate(found, 4, random.Random(1))
    assert result.hit_rate >= 0.95 * result.best_hit_rate
    assert result.spread <= 0.10


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["conversations", "one system prompt"])
def test_many_replicas_have_equal_work(workload: str) -> None:
    found = arrivals(WORKLOADS[workload], random.Random(1), 20_000)
    result = simulate(found, 64, random.Random(1))
    assert result.hit_rate >= 0.95 * result.best_hit_rate
    assert result.spread <= 0.12  # 0.06 to 0.10 for other seeds
