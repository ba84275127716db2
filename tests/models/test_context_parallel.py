"""Ranks that keep different tokens of each sequence compute what one process does. Here they are threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stoker.engine.api import EngineOutput, SamplingParams
from stoker.engine.kernels import select_kernels
from stoker.engine.runner.kv_cache import KVCache

from .checkpoints import build, save
from .conftest import Saved
from .engine import Engine, resolved
from .ranks import Threads, divided
from .test_generation import FEW_BLOCKS, make_prompts
from .test_tensor_parallel import PROBABLE

ONE_KEY_HEAD = "llama with one key head"
IN_PARTS = {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}
Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(saved: Callable[[str], Saved], tmp_path_factory: pytest.TempPathFactory) -> Folder:
    one = save(build("llama", num_key_value_heads=1), tmp_path_factory.mktemp("one-key-head"))
    return lambda family: one if family == ONE_KEY_HEAD else saved(family)[1]


def outputs(engine: Engine, sampling: SamplingParams = PROBABLE) -> list[EngineOutput]:
    return engine.outputs(make_prompts(12), sampling)


def assert_same(found: list[EngineOutput], expected: list[EngineOutput], tolerance: float = 1e-4) -> None:
    for mine, its in zip(found, expected, strict=True):
        assert mine.token_ids == its.token_ids
        assert mine.num_cached_tokens == its.num_cached_tokens
        logprobs, theirs = ([entry.logprobs[0] for entry in each.logprobs or []] for each in (mine, its))
        assert logprobs == pytest.approx(theirs, abs=tolerance)


@pytest.mark.effect("parallel.decode_context_parallel_size")
@pytest.mark.effect("parallel.cp_kv_cache_interleave_size")
@pytest.mark.parametrize("family", ["deepseek_v3", ONE_KEY_HEAD])
@pytest.mark.parametrize("run", [1, 4])
@pytest.mark.quick_cases(1)
def test_ranks_that_share_tokens_compute_what_one_process_does(family: str, run: int, folder: Folder, tmp_path: Path):
    """Prompts in chunks, prefixes from the cache, preempted sequences; then again, with all prompts in the cache."""
    alone = Engine(resolved(folder(family), tmp_path, cache=FEW_BLOCKS))
    parallel = {**IN_PARTS, "cp_kv_cache_interleave_size": run}
    with divided(resolved(folder(family), tmp_path, cache=FEW_BLOCKS, parallel=parallel)) as engine:
        for _ in range(2):
            found = outputs(engine)
            assert_same(found, outputs(alone))
        assert engine.scheduler.stats().num_preemptions >= 1
        assert any(each.num_cached_tokens for each in found)
        cache: KVCache = engine.own.loaded.cache  # type: ignore[attr-defined]
        assert 2 * cache.num_bytes == alone.runner.loaded.cache.num_bytes
        if select_kernels("cpu", torch.float32, 16).capture is not None:
            assert engine.own.launches().captured > 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", ["qwen3"])
@pytest.mark.slow
def test_groups_of_ranks_have_the_key_heads_of_others(family: str, folder: Folder, tmp_path: Path):
    """Four ranks, two key heads: the first two ranks have the first one."""
    parallel = {**IN_PARTS, "tensor_parallel_size": 4}
    expected = outputs(Engine(resolved(folder(family), tmp_path)))
    with divided(resolved(folder(family), tmp_path, parallel=parallel)) as engine:
        assert_same(outputs(engine), expected)


@pytest.mark.parametrize("family", ["deepseek_v3", ONE_KEY_HEAD])
@pytest.mark.slow
def test_stages_of_ranks_that_share_tokens(family: str, folder: Folder, tmp_path: Path):
    expected = outputs(Engine(resolved(folder(family), tmp_path)))
    with divided(resolved(folder(family), tmp_path, parallel={**IN_PARTS, "pipeline_parallel_size": 2})) as engine:
        found = outputs(engine)
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]


@pytest.mark.slow
def test_gloo_gives_the_same(folder: Folder, tmp_path: Path):
    """Four ranks: of those that exchange, two are in another group."""
    parallel = {**IN_PARTS, "tensor_parallel_size": 4, "disable_custom_all_reduce": True}
    settings = resolved(folder("deepseek_v3"), tmp_path, parallel=parallel)
    prompts, sampling = make_prompts(4), SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=1)
    expected = Engine(resolved(folder("deepseek_v3"), tmp_path)).outputs(prompts, sampling)
    with divided(settings) as engine:
        assert_same(engine.outputs(prompts, sampling), expected)


@pytest.mark.parametrize("cache", [{"kv_cache_dtype": "int8"}])
@pytest.mark.slow
def test_keys_in_8_bits(cache: dict[str, str], folder: Folder, tmp_path: Path):
    expected = outputs(Engine(resolved(folder(ONE_KEY_HEAD), tmp_path, cache=cache)))
    with divided(resolved(folder(ONE_KEY_HEAD), tmp_path, cache=cache, parallel=IN_PARTS)) as engine:
        found = outputs(engine)
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]


@pytest.mark.parametrize("family", ["deepseek_v3", ONE_KEY_HEAD])
@pytest.mark.slow
def test_a_request_has_one_result_in_any_batch(family: str, folder: Folder, tmp_path: Path):
    model = {"batch_invariant": True}
    settings = resolved(folder(family), tmp_path, model=model, cache=FEW_BLOCKS, parallel=IN_PARTS)
    sampling = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)
    with divided(settings) as engine:
        together = outputs(engine, sampling)
        for prompt, expected in zip(make_prompts(12), together, strict=True):
            (found,) = engine.outputs([prompt], sampling)
            assert found.token_ids == expected.token_ids
            assert found.logprobs == expected.logprobs


def test_the_table_says_which_tokens_a_rank_keeps(folder: Folder, tmp_path: Path):
    parallel = {**IN_PARTS, "cp_kv_cache_interleave_size": 2}
    others = Threads(resolved(folder("deepseek_v3"), tmp_path, parallel=parallel))
    try:
        assert "2 of 4 consecutive" in others.leading()[0].info().kernels["kv_cache"]
    finally:
        others.close()
