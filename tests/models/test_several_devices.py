"""Two processes with the CUDA runner compute what one does. Triton's interpreter runs their kernels.

The processes are those of a deployment; they exchange through shared memory, where GPUs do through NCCL.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")


from stoker.engine.api import EngineOutput, EngineRequest, RequestInputs, SamplingParams
from stoker.engine.loop.engine_core import EngineCore
from stoker.engine.ranks.followers import RankLost
from stoker.model.expert_placement import with_placed_experts
from stoker.model.tensor_parallel import tensor_parallel_problem

from .checkpoints import build, save
from .conftest import Saved
from .engine import resolved
from .test_device_runner import GREEDY, HOSTED, MIXED, PLAIN, PROMPTS, RICH, SHARED, SMALL, core, run
from .test_structured import DIGITS, FREE, compile_grammars, core_of
from .test_structured import run as run_guided

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter"),
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
]
TWO = {"tensor_parallel_size": 2}
ASKED = [replace(sampling, logprobs=1) for sampling in MIXED]
# Windows in groups of their own, experts and sinks, latents, and layers that keep a state.
KINDS = ("gpt_oss", "deepseek_v3", "qwen3_next")


@contextmanager
def on_two(folder: Path, place: Path, **sections: dict[str, Any]) -> Iterator[EngineCore]:
    sections["parallel"] = sections.get("parallel", TWO)
    engine = core(folder, place, "cuda", **sections)
    try:
        yield engine
    finally:
        engine.close()


def tokens(outputs: list[EngineOutput]) -> list[tuple[list[int], int]]:
    return [(each.token_ids, each.num_cached_tokens) for each in outputs]


def logprobs(outputs: list[EngineOutput]) -> list[float]:
    """Of the tokens that were sampled, and those of prompts."""
    entries = (entry for each in outputs for entry in [*(each.logprobs or []), *(each.prompt_logprobs or [])])
    return [entry.logprobs[0] for entry in entries if entry is not None]


def compare(folder: Path, place: Path, **sections: dict[str, Any]) -> None:
    expected = run(core(folder, place, "cuda", **SMALL), ASKED, SHARED)
    with on_two(folder, place, **SMALL, **sections) as engine:
        found = run(engine, ASKED, SHARED)
        assert engine.stats.num_free_blocks == engine.stats.num_blocks
    assert tokens(found) == tokens(expected)
    assert logprobs(found) == pytest.approx(logprobs(expected), abs=1e-4)


@pytest.mark.effect("parallel.tensor_parallel_size")
@pytest.mark.parametrize("family", KINDS)
@pytest.mark.slow
def test_two_processes_compute_what_one_does(family: str, saved: Callable[[str], Saved], tmp_path: Path) -> None:
    """Some steps are on the devices, some on the hosts, and prompts continue from cached blocks and kept states."""
    folder = saved(family)[1]
    if reason := tensor_parallel_problem(resolved(folder, tmp_path).model_spec, 2):
        pytest.skip(reason)
    compare(folder, tmp_path)


@pytest.mark.slow
@pytest.mark.effect("parallel.enable_expert_parallel")
@pytest.mark.parametrize("family", ["deepseek_v3"])
def test_each_process_has_whole_experts(family: str, saved: Callable[[str], Saved], tmp_path: Path) -> None:
    folder = saved(family)[1]
    assert not tensor_parallel_problem(with_placed_experts(resolved(folder, tmp_path).model_spec, "linear"), 2)
    compare(folder, tmp_path, parallel=TWO | {"enable_expert_parallel": True})


@pytest.mark.slow
@pytest.mark.effect("parallel.pipeline_parallel_size")
@pytest.mark.parametrize("family", ["lfm2"])
def test_two_stages_compute_what_one_process_does(family: str, saved: Callable[[str], Saved], tmp_path: Path) -> None:
    compare(saved(family)[1], tmp_path, parallel={"pipeline_parallel_size": 2})


@pytest.mark.slow
def test_two_processes_in_each_of_two_stages(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    compare(saved("qwen3")[1], tmp_path, parallel=TWO | {"pipeline_parallel_size": 2})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("samplings", "is_ahead"),
    [([*PLAIN, *RICH], False), ([*HOSTED, RICH[0]], True)],
    ids=["device", "host, ahead"],
)
def test_other_processes_go_on_with_the_tokens_that_the_first_one_samples(
    samplings: list[SamplingParams], is_ahead: bool, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    """With parameters that the others do not have."""
    folder, prompts = saved("qwen3")[1], (PROMPTS * 2)[: len(samplings)]
    scheduler = {"async_scheduling": is_ahead}
    expected = run(core(folder, tmp_path, "cuda"), samplings, prompts)
    with on_two(folder, tmp_path, scheduler=scheduler) as engine:
        assert engine.info.kernels["exchange"] == "2 processes of this machine, through shared memory"
        found = run(engine, samplings, prompts)
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]


@pytest.mark.slow
def test_other_processes_receive_tokens_that_obey_grammars(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory):
    """They are sampled a second time, and some follow without being sampled."""
    from tests.tiny_checkpoint import write_checkpoint

    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    hot: dict[str, Any] = {"temperature": 1.0, "max_tokens": 12, "constraint": DIGITS}
    samplings = [SamplingParams(**hot, seed=1), replace(FREE, max_tokens=6), SamplingParams(**hot, seed=2, top_k=3)]
    results = []
    for parallel in ({}, TWO):
        engine = core_of(folder, tmp_path, "cuda", parallel=parallel, scheduler={"max_num_seqs": 4})
        try:
            compile_grammars(engine, samplings)
            results.append([each.token_ids for each in run_guided(engine, samplings)])
        finally:
            engine.close()
    assert results[0] == results[1]


@pytest.mark.slow
def test_layers_in_host_memory(tmp_path: Path) -> None:
    """With torch's kernels, which are fast here."""
    folder = save(build("qwen3", num_hidden_layers=5, layer_types=...), tmp_path / "model")
    model = {"batch_invariant": True}
    expected = run(core(folder, tmp_path, "cuda", model=model), [GREEDY], PROMPTS[:1])
    with on_two(folder, tmp_path, model=model, cache={"cpu_offload_gb": 1}) as engine:
        assert run(engine, [GREEDY], PROMPTS[:1])[0].token_ids == expected[0].token_ids


@pytest.mark.slow
@pytest.mark.effect("parallel.disable_custom_all_reduce")
def test_over_gloo(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    folder = saved("qwen3")[1]
    expected = run(core(folder, tmp_path, "cuda"), PLAIN)
    with on_two(folder, tmp_path, parallel=TWO | {"disable_custom_all_reduce": True}) as engine:
        assert "Gloo" in engine.info.kernels["exchange"]
        assert [each.token_ids for each in run(engine, PLAIN)] == [each.token_ids for each in expected]


@pytest.mark.slow
def test_a_process_that_ends_or_stops_ends_the_engine(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    folder = saved("qwen3")[1]
    for number, reason in ((signal.SIGKILL, "was ended by SIGKILL"), (signal.SIGSTOP, "is stopped")):
        with on_two(folder, tmp_path) as engine:
            engine.add(EngineRequest(request_id="1", inputs=RequestInputs([5, 6, 7], replace(GREEDY, max_tokens=50))))
            engine.step()
            os.kill(engine._executor._others._children[0].process.pid, number)  # type: ignore[union-attr]
            with pytest.raises(RankLost, match=reason):
                finish(engine)


def finish(engine: EngineCore) -> None:
    while engine.has_work:
        engine.step()
