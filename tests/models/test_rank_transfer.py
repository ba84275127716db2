"""Stored blocks of models that several ranks compute: engines of any number of ranks read each other's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.slow_cases import slow

from stoker.engine.api import EngineOutput
from stoker.engine.kv_stores.fingerprint import fingerprint
from stoker.engine.kv_stores.tiered_store import TieredStore
from stoker.engine.runner import shared_step

from .conftest import Saved
from .engine import Engine, resolved
from .ranks import divided
from .test_context_parallel import outputs

WAYS: dict[str, dict[str, Any]] = {
    "one": {},
    "tensor": {"tensor_parallel_size": 2},
    "network": {"tensor_parallel_size": 2, "disable_custom_all_reduce": True},
    "more ranks than heads": {"tensor_parallel_size": 4},
    "prompts": {"prefill_context_parallel_size": 2},
    "both": {"tensor_parallel_size": 2, "prefill_context_parallel_size": 2},
}
STORED = {"num_gpu_blocks_override": 24, "kv_offloading_size": 0.01}
pytestmark = pytest.mark.usefixtures("few_tokens_are_shared")


@pytest.fixture
def few_tokens_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_step, "MIN_TOKENS_EACH", 2)


@contextmanager
def engine(folder: Path, place: Path, way: str, store: TieredStore) -> Iterator[Engine]:
    with divided(resolved(folder, place, cache=STORED, parallel=WAYS[way]), store) as built:
        yield built


def assert_same(found: list[EngineOutput], expected: list[EngineOutput]) -> None:
    """The number of cached tokens differs."""
    for mine, its in zip(found, expected, strict=True):
        assert mine.token_ids == its.token_ids
        logprobs, theirs = ([entry.logprobs[0] for entry in each.logprobs or []] for each in (mine, its))
        assert logprobs == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize(
    ("family", "writes", "reads"),
    [
        ("llama", "one", "both"),
        *(slow("llama", "one", each) for each in WAYS if each != "both"),
        *(slow("llama", each, "one") for each in WAYS if each != "one"),
        *(slow(family, "both", "one") for family in ("deepseek_v3", "gemma3")),
        *(slow(family, "one", "tensor") for family in ("deepseek_v3", "gemma3")),
    ],
)
def test_blocks_that_one_engine_stores_are_read_by_another(
    family: str, writes: str, reads: str, saved: Callable[[str], Saved], tmp_path: Path
):
    _, folder = saved(family)
    expected = outputs(Engine(resolved(folder, tmp_path)))
    store = TieredStore(10 << 20)
    with engine(folder, tmp_path, writes, store) as first:
        assert_same(outputs(first), expected)
    with engine(folder, tmp_path, reads, store) as second:
        assert_same(outputs(second), expected)
        assert second.scheduler.stats().prefix_hits > first.scheduler.stats().prefix_hits


@pytest.mark.slow
def test_layers_with_other_heads_are_stored_by_rank(saved: Callable[[str], Saved], tmp_path: Path):
    """Their blocks are read by engines of as many ranks alone."""
    _, folder = saved("gemma4")
    expected = outputs(Engine(resolved(folder, tmp_path)))
    store = TieredStore(10 << 20)
    hits: list[int] = []
    for _ in range(2):
        with engine(folder, tmp_path, "tensor", store) as built:
            assert_same(outputs(built), expected)
            hits.append(built.scheduler.stats().prefix_hits)
    assert hits[1] > hits[0]


@pytest.mark.parametrize(("family", "is_one"), [("llama", True), ("deepseek_v3", True), ("gemma4", False)])
def test_fingerprints_say_who_reads_whose_blocks(
    family: str, is_one: bool, saved: Callable[[str], Saved], tmp_path: Path
):
    _, folder = saved(family)
    prints = {fingerprint(resolved(folder, tmp_path, cache=STORED, parallel=WAYS[way])) for way in ("one", "tensor")}
    assert (len(prints) == 1) == is_one
