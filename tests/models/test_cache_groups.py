"""Models with windows in some layers: each kind of layer has blocks of its own in the KV cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.slow_cases import slow

from stoker.engine.executor.build import build_core

from .checkpoints import build, references, save
from .conftest import Saved
from .engine import Engine, resolved
from .test_generation import make_prompts

PATTERN = ["sliding_attention", "sliding_attention", "full_attention"] * 2 + ["sliding_attention"]  # 5 of 7
SCHEDULER = {"max_num_seqs": 8, "max_num_batched_tokens": 11}


WITH_WINDOWS = (
    "qwen2",
    "phi3",
    "starcoder2",
    "olmo3",
    "exaone4",
    "cohere2",
    "gemma3",
    "gpt_oss",
    "llama4",
    "granite_swa",
    "mellum",
    "dots3",
    "gemma4 narrow",
    "gemma4 shared",
)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    model = build("qwen2", num_hidden_layers=len(PATTERN), layer_types=PATTERN, sliding_window=9)
    return model, save(model, tmp_path_factory.mktemp("mixed"))


def engine(mixed: Saved, place: Path, blocks: int, scheduler: dict[str, Any] | None = None, **model: Any) -> Engine:
    return Engine(
        resolved(
            mixed[1],
            place,
            model=model,
            cache={"num_gpu_blocks_override": blocks},
            scheduler=SCHEDULER | (scheduler or {}),
        )
    )


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.quick_cases(1)
def test_greedy_output_equals_transformers_generate(mixed: Saved, tmp_path: Path, is_ahead: bool):
    """In chunks, with prefixes from the cache and preempted; then again, with whole prompts in the cache."""
    tried = engine(mixed, tmp_path, 8, {"async_scheduling": is_ahead})
    assert tried.runner.slots.block_ids.shape[0] == 4  # two planes: three groups with a window, one without
    prompts = make_prompts(20)
    found = tried.generate(prompts)
    expected = references(mixed[0], prompts, found)
    assert found == expected
    assert tried.generate(prompts[::-1]) == expected[::-1]
    stats = tried.scheduler.stats()
    assert stats.num_preemptions >= 1
    assert stats.prefix_hits > 0
    assert stats.num_free_blocks == stats.num_blocks


@pytest.mark.parametrize(
    "family",  # all layers with a window; one of two; layers of two widths, of which several share a place
    ["mistral", "gemma2", "gemma4", *map(slow, WITH_WINDOWS)],
)
def test_families_with_windows_equal_transformers_generate(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    model, folder = saved(family)
    tried = engine((model, folder), tmp_path, 14)
    prompts = make_prompts(20)
    found = tried.generate(prompts)
    assert found == references(model, prompts, found)
    assert tried.scheduler.stats().prefix_hits > 0


@pytest.mark.parametrize("model", [{"dtype": "bfloat16"}, {"dtype": "float32", "enforce_eager": True}])
@pytest.mark.quick_cases(1)
def test_the_tokens_are_those_of_one_group(mixed: Saved, tmp_path: Path, model: dict[str, Any]):
    prompts = make_prompts(12)
    alone = engine(mixed, tmp_path, 64, {"disable_hybrid_kv_cache_manager": True}, **model)
    assert engine(mixed, tmp_path, 64, **model).generate(prompts) == alone.generate(prompts)


def test_a_served_model_has_the_blocks_of_all_groups(mixed: Saved, tmp_path: Path):
    """The scheduler of a server had as many as one group."""
    core = build_core(resolved(mixed[1], tmp_path, cache={"num_gpu_blocks_override": 16}))
    assert core.info.num_blocks == 16
    assert core.stats.num_blocks == 4 * 16


@pytest.mark.effect("scheduler.disable_hybrid_kv_cache_manager")
def test_more_sequences_fit(mixed: Saved, tmp_path: Path):
    """The cache has the same bytes for each token. Eight sequences of 60 tokens need 64 blocks, or as many bytes less
    what is before the windows of 9 tokens in three groups of four."""

    def num_preemptions(is_single: bool) -> int:
        tried = engine(mixed, tmp_path, 32, {"disable_hybrid_kv_cache_manager": is_single})
        prompts = [[3 + index, *range(5, 40)] for index in range(8)]
        tried.generate(prompts)
        return tried.scheduler.stats().num_preemptions

    assert num_preemptions(is_single=True) > 0
    assert num_preemptions(is_single=False) == 0
