"""Replicas that share experts compute what one process does, whatever the others do at the same time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.slow_cases import slow_but

from stoker.config import Resolved
from stoker.engine.api import EngineOutput, EngineRequest, FinishReason, RequestInputs, SamplingParams
from stoker.engine.kernels.cpu import captured_graph
from stoker.engine.kernels.cpu.arena import Arena

from .checkpoints import build, save
from .conftest import Saved
from .engine import Engine, resolved
from .quantised import METHODS, write, write_gpt_oss
from .replicas import sharing
from .test_generation import make_prompts

PROBABLE = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
FAMILIES = ["deepseek_v3", "qwen3_moe", "gpt_oss", "llama4", "qwen3_next", "nemotron_h"]
CODES = ["gpt_oss", "gptq ordered", "packed asymmetric", "fp8 blocks", "nf4"]


def shared(folder: Path, place: Path, num_replicas: int = 2, **sections: dict[str, Any]) -> Resolved:
    parallel = {"data_parallel_size": num_replicas, "enable_expert_parallel": True, **sections.pop("parallel", {})}
    return resolved(folder, place, parallel=parallel, **sections)


def requests(prompts: list[list[int]], sampling: SamplingParams = PROBABLE) -> list[EngineRequest]:
    return [
        EngineRequest(request_id=str(index), inputs=RequestInputs(prompt, sampling))
        for index, prompt in enumerate(prompts)
    ]


def assert_alike(found: list[EngineOutput], expected: list[EngineOutput]) -> None:
    for mine, its in zip(found, expected, strict=True):
        assert mine.token_ids == its.token_ids
        mine_logprobs, its_logprobs = ([entry.logprobs[0] for entry in each.logprobs or []] for each in (mine, its))
        assert mine_logprobs == pytest.approx(its_logprobs, abs=1e-4)


@pytest.mark.effect("parallel.enable_expert_parallel")
@pytest.mark.parametrize("family", slow_but(FAMILIES, "deepseek_v3"))
def test_replicas_at_the_same_time_and_one_after_the_other(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    """Steps of 11 tokens: prompts are in chunks. At first both compute, then each alone."""
    _, folder = saved(family)
    alone = resolved(folder, tmp_path)
    settings = shared(folder, tmp_path)
    if not settings.shares_experts:
        pytest.skip("no experts")
    assert settings.memory.weights_bytes < alone.memory.weights_bytes
    prompts = make_prompts(6)
    expected = Engine(alone).outputs(prompts, PROBABLE)
    with sharing(settings) as (first, second):
        each = requests(prompts)
        first.submit(each[::2])
        second.submit(each[1::2])
        found = first.outputs(3) | second.outputs(3)
        assert_alike([found[request.request_id] for request in each], expected)
        first.submit(each[1::2])
        assert_alike([first.outputs(6)[request.request_id] for request in each], expected)
        second.submit(each[::2])
        assert_alike([second.outputs(6)[request.request_id] for request in each], expected)
        assert max(first.sizes) == max(second.sizes) == 11
        assert 0 in first.sizes
        assert 0 in second.sizes  # it has taken part without tokens
        assert "shared by 2 replicas" in first.runner.info().kernels["experts"]
        assert first.runner.info().weights_bytes == settings.memory.weights_bytes < alone.memory.weights_bytes
        assert (first.runner.launches().captured > 0) == (not alone.model_spec.is_sparse)


@pytest.mark.parametrize("strategy", ["linear", "round_robin"])
@pytest.mark.quick_cases(1)
def test_three_replicas_need_not_have_equally_many_experts(strategy: str, tmp_path: Path):
    folder = save(build("qwen3_moe", num_experts=5, moe_intermediate_size=33), tmp_path / "model")
    prompts = make_prompts(6)
    expected = Engine(resolved(folder, tmp_path)).outputs(prompts, PROBABLE)
    parallel = {"expert_placement_strategy": strategy}
    with sharing(shared(folder, tmp_path, 3, parallel=parallel)) as replicas:
        for replica, own in zip(replicas, (slice(0, 1), slice(1, 3), slice(3, 6)), strict=True):
            replica.submit(requests(prompts)[own])
        found: dict[str, EngineOutput] = {}
        for replica, count in zip(replicas, (1, 2, 3), strict=True):
            found |= replica.outputs(count)
    assert_alike([found[str(index)] for index in range(6)], expected)


def test_preempted_sequences_and_an_idle_neighbour(saved: Callable[[str], Saved], tmp_path: Path):
    _, folder = saved("qwen3_moe")
    prompts = make_prompts(6)
    expected = Engine(resolved(folder, tmp_path)).outputs(prompts, PROBABLE)
    with sharing(shared(folder, tmp_path, cache={"num_gpu_blocks_override": 8})) as (first, second):
        first.submit(requests(prompts))
        found = first.outputs(6)
        assert first.num_preemptions > 0
        assert set(second.sizes) == {0}
    assert_alike([found[str(index)] for index in range(6)], expected)


@pytest.mark.parametrize("method", slow_but(CODES, "gpt_oss"))
def test_experts_of_a_quantised_checkpoint_stay_in_their_codes(method: str, tmp_path: Path):
    """The plan counts the codes of those that a replica has."""
    is_gpt_oss = method == "gpt_oss"
    width = {"intermediate_size" if is_gpt_oss else "moe_intermediate_size": 64}
    source = save(build("gpt_oss" if is_gpt_oss else "qwen3_moe", **width), tmp_path / "source")
    folder = tmp_path / "quantised"
    write_gpt_oss(source, folder) if is_gpt_oss else write(source, folder, METHODS[method])
    alone, settings = resolved(folder, tmp_path), shared(folder, tmp_path)
    prompts = make_prompts(4)
    expected = Engine(alone).outputs(prompts, PROBABLE)
    with sharing(settings) as (first, second):
        first.submit(requests(prompts)[:2])
        second.submit(requests(prompts)[2:])
        found = first.outputs(2) | second.outputs(2)
        held = first.runner.info().weights_bytes
    assert [found[str(index)].token_ids for index in range(4)] == [each.token_ids for each in expected]
    assert held == settings.memory.weights_bytes < alone.memory.weights_bytes


def test_a_step_that_fails_ends_all_replicas(saved: Callable[[str], Saved], tmp_path: Path):
    _, folder = saved("qwen3_moe")
    with sharing(shared(folder, tmp_path)) as (first, second):

        def fail(*_: object) -> None:
            raise MemoryError

        first.runner.parts.body.compute = fail  # type: ignore[method-assign, assignment]
        first.submit(requests(make_prompts(1)))
        for replica in (first, second):
            replica.thread.join()
        assert "a step failed, which other replicas have begun: out of memory" in str(first.failure)
        assert "another replica" in str(second.failure)


def test_a_last_layer_of_experts_takes_part_in_steps_without_logits(tmp_path: Path):
    """It was left out of a chunk of a prompt, as layers after the last one that keeps something of each token are, and
    the other replica, which computes its experts in every step, waited for it."""
    types = ["linear_attention", "full_attention", "mlp", "moe"]
    folder = save(build("nemotron_h", layers_block_type=types), tmp_path / "model")
    prompts = make_prompts(6)
    expected = Engine(resolved(folder, tmp_path)).outputs(prompts, PROBABLE)
    with sharing(shared(folder, tmp_path)) as (first, second):
        each = requests(prompts)
        first.submit(each[::2])
        second.submit(each[1::2])
        found = first.outputs(3) | second.outputs(3)
    assert_alike([found[request.request_id] for request in each], expected)


@pytest.mark.slow
def test_steps_that_are_too_large_to_be_captured_leave_the_others_captured(
    saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first of them ended the capture of all."""
    _, folder = saved("qwen3_moe")
    prompts = make_prompts(6)
    expected = Engine(resolved(folder, tmp_path)).outputs(prompts, PROBABLE)
    with sharing(shared(folder, tmp_path)) as (first, second):
        first.submit(requests(prompts))
        first.outputs(6)
        whole = [set(first.runner.parts.body.decode_steps._graphs), set(second.runner.parts.body.assistance._graphs)]
    monkeypatch.setattr(captured_graph, "Arena", partial(Arena, 6000))
    with sharing(shared(folder, tmp_path)) as (first, second):
        first.submit(requests(prompts))
        found = first.outputs(6)
        assert first.runner.launches().captured > 0
        small = [set(first.runner.parts.body.decode_steps._graphs), set(second.runner.parts.body.assistance._graphs)]
        assert "decode_step" not in first.runner.parts.body.decode_steps.table
    assert_alike([found[str(index)] for index in range(6)], expected)
    for few, all_of_them in zip(small, whole, strict=True):
        assert few
        assert few < all_of_them


@pytest.mark.slow
def test_layers_that_read_the_keys_of_others_take_part_in_steps_without_logits(tmp_path: Path):
    """The two were refused together: layers without keys of their own compute only the tokens whose logits are needed,
    but the last layer with shared experts, and all before it, compute every token."""
    experts = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
    folder = save(build("gemma4 shared", use_double_wide_mlp=False, **experts), tmp_path / "model")
    prompts = make_prompts(6)
    expected = Engine(resolved(folder, tmp_path)).outputs(prompts, PROBABLE)
    settings = shared(folder, tmp_path)
    assert settings.cache.kv_sharing_fast_prefill
    assert settings.model_spec.keys_of[-1] is not None
    with sharing(settings) as (first, second):
        each = requests(prompts)
        first.submit(each[:5])
        second.submit(each[5:])
        found = first.outputs(5) | second.outputs(1)
    assert_alike([found[request.request_id] for request in each], expected)


@pytest.mark.parametrize("method", ["sample", "prompt_logprobs"])
def test_a_failure_after_the_last_exchange_is_of_one_replica(
    method: str, saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Log probabilities of a prompt need as much memory as logits: without it all replicas were ended."""
    _, folder = saved("qwen3_moe")
    first_request, later = requests(make_prompts(2), replace(PROBABLE, prompt_logprobs=1))
    with sharing(shared(folder, tmp_path)) as (first, second):

        def fail(*_: object) -> None:
            raise MemoryError

        with monkeypatch.context() as failing:
            failing.setattr(first.runner.parts.body._head.sampler, method, fail)
            first.submit([first_request])
            assert first.outputs(1)["0"].finish_reason is FinishReason.ERROR
        for replica in (first, second):
            replica.submit([later])
        assert first.outputs(2)["1"].token_ids == second.outputs(1)["1"].token_ids
