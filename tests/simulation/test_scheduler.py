"""Seeded runs of the whole scheduler in small worlds: pools that are too small, queues that fill, clients that leave.

About 700 steps in the normal run and 10,000 in the slow one; `python -m tests.simulation.run` runs any number. The
name of a world determines all of it, so running a failed test again repeats the failure.
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from tests.slow_cases import slow

from .shrink import report
from .worlds import Broken, World, run_story

WITH_STATES = {"full attention": (None,), "windows": (None, 9, 4)}  # beside layers with a recurrent state
MODES = list(product(["fcfs", "priority"], [True, False], [True, False], [1, 2]))
each_mode = pytest.mark.parametrize(("policy", "prefix_caching", "chunked_prefill", "depth"), MODES)


def run(
    policy: str, prefix_caching: bool, chunked_prefill: bool, depth: int, *, num_worlds: int, num_steps: int
) -> Counter[str]:
    """What happened in these worlds. Fails the test with a shortened story where something did not hold."""
    events: Counter[str] = Counter()
    for number in range(num_worlds):
        world = World.of(
            f"{policy} {prefix_caching} {chunked_prefill} {depth} {number}",
            depth,
            scheduling_policy=policy,
            enable_prefix_caching=prefix_caching,
            enable_chunked_prefill=chunked_prefill,
        )
        try:
            events += run_story(world, num_steps).events
        except Broken as broken:
            pytest.fail(report(broken))
    return events


@each_mode
@pytest.mark.quick_cases(3)
def test_every_token_is_right_and_all_memory_comes_back(
    policy: str, prefix_caching: bool, chunked_prefill: bool, depth: int
) -> None:
    events = run(policy, prefix_caching, chunked_prefill, depth, num_worlds=1, num_steps=125)
    assert events["steps"] >= 125
    assert events["ended by length"] + events["ended by stop"] > 0


def run_with_states(kind: str, numbers: range, num_steps: int) -> Counter[str]:
    events: Counter[str] = Counter()
    for number in numbers:
        fixed = {"windows": WITH_STATES[kind], "num_kept_states": (2, 7, 60)[number % 3], "enable_prefix_caching": True}
        world = World.of(f"states {kind} {number}", retention_interval=(1, 12)[number % 2], **fixed)
        try:
            events += run_story(world, num_steps).events
        except Broken as broken:
            pytest.fail(report(broken))
    return events


@pytest.mark.parametrize("numbers", [range(1), slow(range(1, 10))], ids=str)
def test_prompts_share_the_blocks_that_windows_give_back(numbers: range) -> None:
    for number in numbers:
        try:
            run_story(World.short_of_window_blocks(number), 200)
        except Broken as broken:
            pytest.fail(report(broken))


@pytest.mark.parametrize("numbers", [range(4), slow(range(4, 60))], ids=str)
def test_rows_have_the_adapters_of_their_requests(numbers: range) -> None:
    events: Counter[str] = Counter()
    for number in numbers:
        try:
            events += run_story(World.with_adapters(str(number)), 150).events
        except Broken as broken:
            pytest.fail(report(broken))
    assert events["ended by length"] + events["ended by stop"] > 0


@pytest.mark.parametrize("numbers", [range(6), slow(range(6, 80))], ids=str)
def test_prompts_are_pooled_beside_answers(numbers: range) -> None:
    events: Counter[str] = Counter()
    for number in numbers:
        try:
            events += run_story(
                World.with_pooling(str(number), depth=1 + number % 3, num_stages=(1, 1, 1, 2)[number % 4]), 150
            ).events
        except Broken as broken:
            pytest.fail(report(broken))
    for event in ("pooled", "preemptions", "ended by length", "ended by stop", "tokens from the cache"):
        assert events[event] > 0, event


@pytest.mark.parametrize("kind", WITH_STATES)
def test_recurrent_states_are_those_of_their_prefixes(kind: str) -> None:
    assert run_with_states(kind, range(3, 4), num_steps=100)["tokens from the cache"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", WITH_STATES)
def test_recurrent_states_are_those_of_their_prefixes_in_many_worlds(kind: str) -> None:
    events = run_with_states(kind, range(6), num_steps=350)
    for event in ("preemptions", "aborts", "failed steps", "request errors", "tokens from the cache"):
        assert events[event] > 0, event


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_every_token_is_right_in_many_worlds(policy: str, depth: int) -> None:
    events: Counter[str] = Counter()
    for prefix_caching, chunked_prefill in product([True, False], repeat=2):
        found = run(policy, prefix_caching, chunked_prefill, depth, num_worlds=3, num_steps=420)
        assert (found["tokens from the cache"] > 0) == prefix_caching
        events += found
    assert events["steps"] >= 5_000
    for event in ("preemptions", "refused", "invalid", "aborts", "failed steps", "request errors", "ended by stop"):
        assert events[event] > 0, event


@pytest.mark.parametrize("numbers", [range(2), slow(range(2, 14))], ids=str)
def test_steps_of_a_pipeline_are_of_different_sequences(numbers: range) -> None:
    for number in numbers:
        num_stages = 2 + number % 3
        world = World.of(f"stages {number}", depth=1 + number % (num_stages + 1), num_stages=num_stages)
        try:
            run_story(world, 150)
        except Broken as broken:
            pytest.fail(report(broken))


@pytest.mark.parametrize("numbers", [range(3), slow(range(3, 30))], ids=str)
def test_rows_with_drafts_get_the_tokens_that_they_get_without(numbers: range) -> None:
    events: Counter[str] = Counter()
    for number in numbers:
        try:
            events += run_story(World.with_drafts(str(number)), 150).events
        except Broken as broken:
            pytest.fail(report(broken))
    assert events["ended by length"] > 0
    assert events["forced tokens"] > 0


@pytest.mark.parametrize("numbers", [range(2), slow(range(2, 24))], ids=str)
def test_states_after_drafts_are_those_of_the_accepted_tokens(numbers: range) -> None:
    events: Counter[str] = Counter()
    for number in numbers:
        fixed = {"num_kept_states": (3, 40)[number % 2], "retention_interval": (1, 9, 30)[number % 3]}
        try:
            events += run_story(World.with_drafts(f"states {number}", **fixed, enable_prefix_caching=True), 150).events
        except Broken as broken:
            pytest.fail(report(broken))
    assert events["tokens from the cache"] > 0
