"""The engine on a CUDA device: tokens of the CPU, and the same with graphs, without, and without early starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from stoker.engine.api import EngineOutput, SamplingParams
from stoker.engine.executor.build import build_core
from stoker.engine.kernels.gpu import launch
from stoker.engine.loop.engine_core import EngineCore

from .checkpoints import FAMILIES
from .conftest import Saved
from .engine import WITH_GPU, resolved
from .quantised import METHODS, write
from .test_device_runner import PLAIN, PROMPTS, RICH, run
from .test_generation import make_prompts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

PROBABLE = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
SEEDED = [*PLAIN, *RICH]
FEW_GRAPHS: dict[str, Any] = {"cuda_graph_sizes": [2, 8]}
KINDS = ("qwen3", "gemma3", "qwen3_moe", "qwen3_next", "mamba2", "falcon_mamba", "deepseek_v3", "gpt_oss")


def core(folder: Path, place: Path, **sections: dict[str, Any]) -> EngineCore:
    """On the GPU unless device.device is cpu."""
    sections["device"] = {"device": "cuda"} | sections.get("device", {})
    sections["scheduler"] = FEW_GRAPHS | sections.get("scheduler", {})
    return build_core(resolved(folder, place, WITH_GPU, **sections))


def on_cpu(folder: Path, place: Path, **sections: dict[str, Any]) -> EngineCore:
    return core(folder, place, device={"device": "cpu"}, model={"enforce_eager": True}, **sections)


def tokens(outputs: list[EngineOutput]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def logprobs(outputs: list[EngineOutput]) -> list[float]:
    return [entry.logprobs[0] for output in outputs for entry in output.logprobs or []]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_the_tokens_of_the_cpu(family: str, saved: Callable[[str], Saved], tmp_path: Path) -> None:
    folder, prompts = saved(family)[1], make_prompts(6)
    expected = run(on_cpu(folder, tmp_path), [PROBABLE] * len(prompts), prompts)
    engine = core(folder, tmp_path)
    found = run(engine, [PROBABLE] * len(prompts), prompts)
    assert logprobs(found)[:6] == pytest.approx(logprobs(expected)[:6], abs=1e-3)
    assert tokens(found) == tokens(expected)
    assert logprobs(found) == pytest.approx(logprobs(expected), abs=1e-3)
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


def test_everything_that_samples_gives_the_tokens_of_the_cpu(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    folder, prompts = saved("qwen3")[1], PROMPTS * 2
    expected = run(on_cpu(folder, tmp_path), SEEDED, prompts)
    assert tokens(run(core(folder, tmp_path), SEEDED, prompts)) == tokens(expected)


@pytest.mark.parametrize("name", METHODS)
def test_a_quantised_checkpoint_gives_the_tokens_of_the_cpu(
    name: str, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    folder = tmp_path / "quantised"
    write(saved("qwen3")[1], folder, METHODS[name])
    asked = [replace(PROBABLE, logprobs=None)] * len(PROMPTS)
    expected = run(on_cpu(folder, tmp_path), asked, PROMPTS)
    assert tokens(run(core(folder, tmp_path), asked, PROMPTS)) == tokens(expected)


@pytest.fixture
def ordinary_launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    def switch() -> None:
        monkeypatch.setenv("STOKER_EARLY_STARTS", "0")
        launch.dependent.cache_clear()

    yield switch
    monkeypatch.undo()
    launch.dependent.cache_clear()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", KINDS)
def test_graphs_change_no_token_and_early_starts_no_bit(
    family: str, dtype: str, saved: Callable[[str], Saved], tmp_path: Path, ordinary_launches: Callable[[], None]
) -> None:
    folder, prompts, model = saved(family)[1], make_prompts(6), {"dtype": dtype}
    asked = [PROBABLE] * len(prompts)

    def found(**sections: Any) -> tuple[list[list[int]], list[float]]:
        outputs = run(core(folder, tmp_path, **sections), asked, prompts)
        return tokens(outputs), logprobs(outputs)

    with_graphs = found(model=model)
    if dtype == "float32":  # steps are padded to the sizes of graphs, and a library's sums depend on the size
        eager = found(model=model | {"enforce_eager": True})
        assert eager[0] == with_graphs[0]
        assert eager[1] == pytest.approx(with_graphs[1], abs=1e-4)
    ordinary_launches()
    assert found(model=model) == with_graphs
