"""An engine on a device that sleeps at level 1: the same tokens afterwards, with steps that were captured before.

In Triton's interpreter where there is no device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from stoker.engine.api import SamplingParams
from stoker.engine.executor.build import build_core
from stoker.engine.loop.engine_core import EngineCore

from .conftest import Saved
from .engine import WITH_GPU, resolved
from .quantised import METHODS, write
from .test_device_runner import run
from .test_several_devices import on_two

HAS_GPU = torch.cuda.is_available()
SLEEPS: dict[str, Any] = {"model": {"enable_sleep_mode": True}}
ASKED = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)
PROMPTS = [[5, 6, 7], list(range(20, 38))]
# Windows, experts and sinks, latents, states. Tied weights are those of the tests below.
KINDS = ("gpt_oss", "deepseek_v3", "qwen3_next")
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")


def answers(core: EngineCore) -> list[tuple[list[int], int]]:
    return [(each.token_ids, each.num_cached_tokens) for each in run(core, [ASKED, replace(ASKED)], PROMPTS)]


def on_device(folder: Path, place: Path, **sections: dict[str, Any]) -> EngineCore:
    small = {"max_num_seqs": 4, "max_num_batched_tokens": 24, "cuda_graph_sizes": [2, 4]}
    return build_core(resolved(folder, place, WITH_GPU, device={"device": "cuda"}, scheduler=small, **sections))


def weights_of(core: EngineCore) -> list[torch.Tensor]:
    loaded = core._executor._steps._runner.loaded  # type: ignore[attr-defined]
    return [weights.content for weights in loaded.sleeping._weights]


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.effect("model.enable_sleep_mode")
@pytest.mark.slow
def test_tokens_are_the_same_before_and_after(family: str, saved: Callable[[str], Saved], tmp_path: Path) -> None:
    folder = saved(family)[1]
    expected = answers(on_device(folder, tmp_path))
    core = on_device(folder, tmp_path, **SLEEPS)
    assert answers(core) == expected
    for _ in range(2):
        core.free_memory()
        assert not core.idle()  # nothing is captured meanwhile
        core.free_memory()  # it sleeps already
        if not HAS_GPU:
            assert not any(content.any() for content in weights_of(core))
        core.take_memory()
        assert answers(core) == expected  # and nothing of the prompts was in the cache
    assert core.stats.num_free_blocks == core.stats.num_blocks


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS if HAS_GPU else ["gptq ordered"])  # the interpreter takes a minute for each
def test_codes_of_a_quantised_checkpoint(name: str, saved: Callable[[str], Saved], tmp_path: Path) -> None:
    folder = tmp_path / "quantised"
    write(saved("qwen3")[1], folder, METHODS[name])
    core = on_device(folder, tmp_path, **SLEEPS)
    expected = answers(core)
    core.free_memory()
    core.take_memory()
    assert answers(core) == expected


@pytest.mark.slow
def test_a_request_wakes_an_engine_that_was_not_woken(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    """A client that did not wait for the end of a request to sleep."""
    core = on_device(saved("qwen3")[1], tmp_path, **SLEEPS)
    expected = answers(core)
    core.free_memory()
    assert answers(core) == expected


@pytest.mark.slow
@pytest.mark.skipif(HAS_GPU, reason="needs two devices, or Triton's interpreter")
@pytest.mark.parametrize("parallel", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_processes_that_compute_together(
    parallel: dict[str, Any], saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    with on_two(saved("qwen3")[1], tmp_path, parallel=parallel, **SLEEPS) as core:
        expected = answers(core)
        core.free_memory()
        core.take_memory()
        assert answers(core) == expected
