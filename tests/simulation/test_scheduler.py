"""Seeded runs of the whole scheduler in small worlds: pools that are too small, queues that fill, clients that leave.

About 100 000 steps in all. A world is told by its mode and its number, so a failure is run again by naming its test.
"""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from stoker.engine.api import SamplingParams
from stoker.engine.core import SchedulerSettings

from .simulator import EOS, VOCAB, Simulation

STEPS_PER_WORLD = 420
WORLDS_PER_MODE = 15

MODES = list(product(["fcfs", "priority"], [True, False], [True, False], [1, 2]))


def make_settings(random: Random, policy: str, prefix_caching: bool, chunked_prefill: bool) -> SchedulerSettings:
    block_size = random.choice([1, 2, 4, 7])
    max_num_seqs = random.choice([1, 2, 5, 8, 13])
    max_model_len = random.choice([9, 24, 60])
    least_budget = max_num_seqs if chunked_prefill else max(max_num_seqs, max_model_len)
    return SchedulerSettings(
        num_blocks=random.randint(2, 3 + 4 * 60 // block_size),
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=least_budget + random.choice([0, 1, 10, 50]),
        max_model_len=max_model_len,
        enable_prefix_caching=prefix_caching,
        prefix_caching_hash_algo=random.choice(["sha256", "sha256_cbor", "blake2b"]),  # type: ignore[arg-type]
        max_prefill_share=random.choice([1.0, 0.75, 0.1]),
        max_num_partial_prefills=random.choice([1, 2, 13]),
        max_long_partial_prefills=random.choice([1, 2, 13]),
        long_prefill_token_threshold=random.choice([0, 5, 20]),
        enable_chunked_prefill=chunked_prefill,
        scheduling_policy=policy,  # type: ignore[arg-type]
        max_queued_requests=random.choice([0, 3, 20]),
        max_queued_tokens=random.choice([30, 200, 10_000]),
        eos_token_ids=(EOS,),
    )


class Visitors:
    """Makes requests that have much in common: prompts that grow out of a few stems and out of each other."""

    def __init__(self, simulation: Simulation, random: Random) -> None:
        self._simulation = simulation
        self._random = random
        self._longest = simulation.settings.max_sequence_len - 1
        self._stems = [self._tokens(self._longest) for _ in range(3)]

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(1, VOCAB) for _ in range(count)]

    def arrive(self) -> None:
        random, simulation = self._random, self._simulation
        salt = random.randrange(2)
        stem = random.choice(self._stems)
        prompt = stem[: random.randint(1, len(stem))] + self._tokens(random.choice([0, 0, 1, 5]))
        if simulation.clients and random.random() < 0.3:  # the next turn of an earlier conversation
            client = random.choice(list(simulation.clients.values()))
            salt = int(client.request.cache_salt)
            prompt = client.request.prompt_token_ids + client.token_ids + self._tokens(random.randrange(3))
        sampling = SamplingParams(
            max_tokens=random.choice([1, 2, 8, 30, None]),
            min_tokens=random.choice([0, 0, 5]),
            ignore_eos=random.random() < 0.2,
            seed=salt,
        )
        simulation.add(prompt[: self._longest], salt, random.randrange(3), sampling)


def run_world(settings: SchedulerSettings, depth: int, random: Random, num_steps: int) -> Simulation:
    simulation = Simulation(settings, depth, random)
    visitors = Visitors(simulation, random)
    arrival_rate = random.choice([0.03, 0.2, 0.7])
    abort_rate = random.choice([0.0, 0.02, 0.2])
    failure_rate = random.choice([0.0, 0.0, 0.01])
    while simulation.num_steps < num_steps:
        if random.random() < arrival_rate or not simulation.scheduler.has_work:
            for _ in range(random.choice([1, 1, 2, 9])):
                visitors.arrive()
        if simulation.live and random.random() < abort_rate:
            simulation.abort(random.choice(list(simulation.live)))
        simulation.step(fails=random.random() < failure_rate)
    simulation.drain()
    return simulation


@pytest.mark.parametrize(("policy", "prefix_caching", "chunked_prefill", "depth"), MODES)
def test_every_token_is_right_and_all_memory_comes_back(
    policy: str, prefix_caching: bool, chunked_prefill: bool, depth: int
) -> None:
    num_preemptions = num_hits = num_refused = num_steps = 0
    for world in range(WORLDS_PER_MODE):
        random = Random(f"{policy} {prefix_caching} {chunked_prefill} {depth} {world}")
        settings = make_settings(random, policy, prefix_caching, chunked_prefill)
        simulation = run_world(settings, depth, random, STEPS_PER_WORLD)
        stats = simulation.scheduler.stats()
        num_preemptions += stats.num_preemptions
        num_hits += stats.prefix_hits
        num_refused += simulation.num_refused
        num_steps += simulation.num_steps
    # the worlds are such that all of it happened
    assert num_steps * len(MODES) >= 100_000
    assert num_preemptions > 0
    assert num_refused > 0
    assert (num_hits > 0) == prefix_caching
