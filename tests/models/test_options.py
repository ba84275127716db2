"""Options of `cache`, `scheduler`, `device` and `model` in a running engine: with each one it does something else."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.own_code import ShortestFirst
from torch.utils.flop_counter import FlopCounterMode

from stoker.config import ConfigError
from stoker.config.schema.observability import ObservabilityConfig
from stoker.engine.api import (
    EngineOutput,
    EngineRequest,
    FinishReason,
    InvalidRequest,
    ProcessorCall,
    ProfileError,
    QueueFull,
    RequestInputs,
    SamplingParams,
)
from stoker.engine.executor.build import build_core, profiler_of
from stoker.engine.kernels import spans
from stoker.engine.loop.engine_core import EngineCore
from stoker.engine.plugins import PluginError

from .conftest import Saved
from .engine import MACHINE, resolved

PROMPT = list(range(10, 29))
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
Start = Callable[..., EngineCore]


@pytest.fixture
def start(saved: Callable[[str], Saved], tmp_path: Path) -> Start:
    """An engine of a small Qwen3 with these options, by section."""
    _, folder = saved("qwen3")

    def build(**sections: dict[str, Any]) -> EngineCore:
        return build_core(resolved(folder, tmp_path, **sections))

    return build


def add(core: EngineCore, *prompts: list[int], sampling: SamplingParams = GREEDY) -> None:
    for index, prompt in enumerate(prompts):
        core.add(EngineRequest(request_id=str(index), inputs=RequestInputs(prompt, sampling)))


def finish(core: EngineCore) -> dict[str, list[EngineOutput]]:
    outputs: dict[str, list[EngineOutput]] = {}
    while core.has_work:
        for output in core.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def answer(core: EngineCore, prompt: list[int] = PROMPT, sampling: SamplingParams = GREEDY) -> list[int]:
    add(core, prompt, sampling=sampling)
    return [token for output in finish(core)["0"] for token in output.token_ids]


# ---- cache


@pytest.mark.effect("cache.block_size", "cache.num_gpu_blocks_override", "cache.enable_prefix_caching")
def test_a_prefix_is_shared_in_whole_blocks_and_only_where_that_is_on(start: Start):
    def num_cached(**cache: Any) -> int:
        core = start(cache=cache)
        assert core.info.block_size == cache.get("block_size", 8)
        assert core.info.num_blocks == core.stats.num_blocks == cache.get("num_gpu_blocks_override", 64)
        answer(core)
        add(core, [*PROMPT, 5])
        return finish(core)["0"][0].num_cached_tokens

    assert num_cached() == 16  # of 19
    assert num_cached(block_size=16) == 16
    assert num_cached(block_size=32, num_gpu_blocks_override=9) == 0
    assert num_cached(enable_prefix_caching=False) == 0


@pytest.mark.effect("cache.kv_cache_memory_bytes", "cache.gpu_memory_utilization")
def test_the_cache_is_as_large_as_memory_or_a_written_size_says(saved: Callable[[str], Saved], tmp_path: Path):
    _, folder = saved("qwen3")
    free, many = {"num_gpu_blocks_override": None}, {"max_num_seqs": 64, "max_num_batched_tokens": 64}
    written = build_core(resolved(folder, tmp_path, cache={**free, "kv_cache_memory_bytes": "1MiB"}))
    assert 0.9 * (1 << 20) < written.info.kv_cache_bytes <= 1 << 20
    small = MACHINE.model_copy(update={"available_memory_bytes": 2 << 20})
    sizes = []
    for share in (0.5, 0.9):
        settings = resolved(folder, tmp_path, small, scheduler=many, cache={**free, "gpu_memory_utilization": share})
        core = build_core(settings)
        assert core.info.weights_bytes + core.info.kv_cache_bytes <= share * small.available_memory_bytes
        sizes.append(core.info.kv_cache_bytes)
    assert sizes[0] < sizes[1]


@pytest.mark.effect("cache.prefix_caching_hash_algo")
def test_blocks_are_named_by_the_chosen_algorithm(start: Start):
    names = {}
    for algo in ("sha256", "sha256_cbor", "blake2b"):
        core = start(cache={"prefix_caching_hash_algo": algo})
        answer(core)
        names[algo] = set(core._scheduler.sequences.blocks.cache._blocks[0])  # type: ignore[attr-defined]
    content = struct.pack("<8i", *PROMPT[:8])
    assert hashlib.sha256(hashlib.sha256(b"stoker kv root ").digest() + content).digest() in names["sha256"]
    ids = b"".join(bytes([token]) if token < 24 else bytes([0x18, token]) for token in PROMPT[:8])
    cbor = b"\x83\x58\x20" + hashlib.sha256(b"\x60").digest() + b"\x88" + ids + b"\xf6"
    assert hashlib.sha256(cbor).digest() in names["sha256_cbor"]
    assert {len(name) for name in names["blake2b"]} == {16}


@pytest.mark.effect("cache.kv_cache_dtype")
def test_keys_and_values_can_be_kept_in_another_format_than_the_weights(start: Start):
    wide, narrow = start(), start(cache={"kv_cache_dtype": "bfloat16"})
    assert narrow.info.kv_cache_bytes * 2 == wide.info.kv_cache_bytes
    if wide.info.kernels["paged_attention"].startswith("c++"):
        assert narrow.info.kernels["paged_attention"] == "torch: keys and values in bfloat16, activations in float32"
    asking = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    found = []
    for core in (wide, narrow):
        add(core, PROMPT, sampling=asking)
        entries = finish(core)["0"][0].prompt_logprobs
        assert entries is not None
        found.append([entry.logprobs[0] for entry in entries[1:] if entry is not None])
    assert found[0] != found[1]  # it is really rounded
    assert found[0] == pytest.approx(found[1], abs=0.02)


def test_a_bfloat16_model_can_keep_its_cache_in_float32(start: Start):
    core = start(model={"dtype": "bfloat16"}, cache={"kv_cache_dtype": "float32"})
    assert len(answer(core)) == 8


@pytest.mark.effect("cache.kv_cache_dtype")
def test_keys_and_values_can_be_kept_in_8_bits(start: Start):
    """Answers of a prompt that is computed at once, and of one that continues from cached blocks, are the same."""
    wide, narrow = start(), start(cache={"kv_cache_dtype": "int8", "enable_prefix_caching": True})
    assert 2 < wide.info.kv_cache_bytes / narrow.info.kv_cache_bytes < 4
    if wide.info.kernels["paged_attention"].startswith("c++"):
        assert narrow.info.kernels["paged_attention"].startswith("c++")
    first = answer(narrow)
    assert answer(narrow) == first


@pytest.mark.parametrize(("name", "said"), [("fp8", "fp8 is for GPUs"), ("fp8_e5m2", "8-bit formats are int8")])
def test_8_bit_formats_are_refused_with_what_there_is(start: Start, name: str, said: str):
    with pytest.raises(ConfigError, match=said):
        start(cache={"kv_cache_dtype": name})


# ---- scheduler


@pytest.mark.effect("scheduler.max_num_seqs")
def test_no_more_sequences_run_than_allowed(start: Start):
    core = start(scheduler={"max_num_seqs": 3})
    add(core, *([token] for token in range(10, 17)))
    core.step()
    assert (core.stats.num_running, core.stats.num_waiting) == (3, 4)


@pytest.mark.effect("scheduler.max_num_batched_tokens", "scheduler.enable_chunked_prefill")
def test_a_step_has_a_maximum_of_tokens_and_a_longer_prompt_is_cut_or_waits(start: Start):
    def steps(**scheduler: Any) -> int:
        core = start(scheduler=scheduler)
        add(core, PROMPT)
        while not core.step():
            pass
        return core.num_steps

    assert steps(max_num_batched_tokens=8) == 3  # 19 tokens
    assert steps(max_num_batched_tokens=64) == 1
    assert steps(max_num_batched_tokens=64, enable_chunked_prefill=False) == 1
    with pytest.raises(ConfigError, match="without chunked prefill a step must hold the longest prompt"):
        start(scheduler={"max_num_batched_tokens": 63, "enable_chunked_prefill": False})


@pytest.mark.effect("scheduler.enable_chunked_prefill")
def test_without_chunked_prefill_a_prompt_waits_until_a_step_can_hold_it(start: Start):
    def num_first_tokens(*, is_chunked: bool) -> int:
        core = start(scheduler={"max_num_batched_tokens": 64, "enable_chunked_prefill": is_chunked})
        add(core, *([index + 10, *range(30, 65)] for index in range(2)))  # 36 tokens each
        core.step()
        return core.stats.num_running

    assert num_first_tokens(is_chunked=True) == 2
    assert num_first_tokens(is_chunked=False) == 1


@pytest.mark.effect("scheduler.scheduling_policy")
def test_requests_are_served_by_arrival_or_by_priority(start: Start):
    def order(policy: str) -> list[str]:
        core = start(scheduler={"scheduling_policy": policy, "max_num_seqs": 1})
        for name, priority in (("later", 5), ("soon", 1), ("now", -3)):
            request = EngineRequest(request_id=name, inputs=RequestInputs(PROMPT, GREEDY), priority=priority)
            core.add(request)
        return list(finish(core))

    assert order("fcfs") == ["later", "soon", "now"]
    assert order("priority") == ["now", "soon", "later"]


@pytest.mark.effect("scheduler.max_queued_requests", "scheduler.max_queued_tokens")
def test_the_queue_is_limited_in_requests_and_in_tokens(start: Start):
    def num_taken(**scheduler: Any) -> int:
        core = start(scheduler={"max_num_seqs": 1, **scheduler})
        for index in range(9):
            try:
                core.add(EngineRequest(request_id=str(index), inputs=RequestInputs(PROMPT, GREEDY)))
            except QueueFull:
                return index
        return 9

    assert num_taken() == 9
    assert num_taken(max_queued_requests=3) == 4  # one of them has a slot
    assert num_taken(max_queued_tokens=40) == 2


@pytest.mark.effect("scheduler.max_prefill_share")
def test_the_share_of_prompts_reaches_the_scheduler(start: Start):
    def steps_to_first_token(share: float) -> int:
        """Of a prompt of 40 tokens that comes while another is answered; 24 tokens a step."""
        core = start(scheduler={"max_num_batched_tokens": 24, "max_prefill_share": share})
        core.add(EngineRequest(request_id="answer", inputs=RequestInputs(PROMPT, replace(GREEDY, max_tokens=20))))
        core.step()
        add(core, [3, *range(20, 59)])
        return next(step for step in range(1, 20) if "0" in {output.request_id for output in core.step()})

    assert steps_to_first_token(1.0) == 3  # 16 tokens in whole blocks, 16, 8
    assert steps_to_first_token(0.34) == 5  # 8 tokens a step


@pytest.mark.effect(
    "scheduler.max_num_partial_prefills",
    "scheduler.max_long_partial_prefills",
    "scheduler.long_prefill_token_threshold",
)
def test_limits_of_prompts_computed_in_part_reach_the_scheduler(start: Start):
    def first_tokens(**scheduler: int) -> dict[str, int]:
        """The step in which each of two prompts of 40 tokens and one of 12 gets its first one; 24 tokens a step."""
        core = start(scheduler={"max_num_batched_tokens": 24, "max_prefill_share": 1.0, **scheduler})
        add(core, [3, *range(20, 59)], [4, *range(20, 59)], list(range(70, 82)))
        found: dict[str, int] = {}
        while core.has_work:
            for output in core.step():
                found.setdefault(output.request_id, core.num_steps)
        return found

    one_long = {"max_long_partial_prefills": 1}
    assert first_tokens() == {"2": 2, "0": 5, "1": 5}  # all three have shares of each step
    assert first_tokens(max_num_partial_prefills=1) == {"0": 2, "2": 3, "1": 5}
    assert first_tokens(**one_long, long_prefill_token_threshold=30) == {"2": 1, "0": 3, "1": 6}
    assert first_tokens(**one_long, long_prefill_token_threshold=50) == first_tokens()


@pytest.mark.effect("scheduler.async_scheduling")
@pytest.mark.parametrize("algo", ["sha256", "sha256_cbor"])
@pytest.mark.quick_cases(1)
def test_planning_ahead_changes_no_answer(start: Start, algo: str):
    few = {"num_gpu_blocks_override": 16, "prefix_caching_hash_algo": algo}
    prompts = [[10 + index % 3, *range(20, 30 + index)] for index in range(10)]
    found = []
    for ahead in (False, True):
        core = start(cache=few, scheduler={"async_scheduling": ahead})
        add(core, *prompts, sampling=SamplingParams(seed=3, max_tokens=24, top_k=9))
        found.append({name: [one.token_ids for one in parts] for name, parts in finish(core).items()})
        assert core.stats.num_preemptions > 0
        assert core.stats.num_free_blocks == 16
    assert found[0] == found[1]


@pytest.mark.effect("scheduler.scheduler_cls")
def test_a_class_of_ones_own_takes_the_place_of_the_scheduler(start: Start):
    def order(**scheduler: Any) -> list[str]:
        core = start(scheduler={"max_num_seqs": 1, "scheduling_policy": "priority", **scheduler})
        add(core, PROMPT[:9], PROMPT[:3], PROMPT[:6])
        return list(finish(core))

    assert order() == ["0", "1", "2"]
    assert order(scheduler_cls="tests.own_code:ShortestFirst") == ["1", "2", "0"]
    assert ShortestFirst.__module__ == "tests.own_code"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Missing", "tests.own_code has no Missing"),
        ("NotAScheduler", "the class has no has_work, add, abort, stats, finish_step, fail_step, forget_cached"),
        ("CannotBeMade", "cannot be made: RuntimeError: no licence"),
    ],
)
def test_a_scheduler_that_cannot_be_used_ends_the_start_before_the_model_is_loaded(
    saved: Callable[[str], Saved], tmp_path: Path, name: str, said: str
):
    settings = resolved(saved("qwen3")[1], tmp_path, scheduler={"scheduler_cls": f"tests.own_code:{name}"})
    phases: list[str] = []
    with pytest.raises(PluginError, match=f"^`scheduler.scheduler_cls`: tests.own_code:{name}: {said}$") as caught:
        build_core(settings, phases.append)
    assert caught.value.exit_code == 78
    assert phases == ["libraries"]


# ---- device


@pytest.mark.effect("device.device")
def test_the_engine_runs_where_the_deployment_says(start: Start):
    assert start(device={"device": "cpu"}).info.device == start().info.device == "cpu"
    with pytest.raises(ConfigError, match="is cuda, and this machine has no GPU"):
        start(device={"device": "cuda"})


@pytest.fixture
def as_many_threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.effect("device.num_threads")
@pytest.mark.usefixtures("as_many_threads_as_before")
def test_the_engine_computes_with_the_given_number_of_threads(start: Start):
    answers = []
    for count in (1, 2):
        core = start(device={"num_threads": count})
        assert torch.get_num_threads() == count
        answers.append(answer(core))
    assert answers[0] == answers[1]


# ---- model


@pytest.mark.effect("model.enforce_eager")
def test_eager_takes_plain_operations_and_says_so(start: Start):
    eager = start(model={"enforce_eager": True})
    assert set(eager.info.kernels.values()) == {"torch: model.enforce_eager"}
    assert answer(eager) == answer(start())


@pytest.mark.effect("model.logprobs_mode")
def test_scores_are_shown_before_or_after_what_changes_them(start: Start):
    def scores(mode: str) -> dict[int, float]:
        core = start(model={"logprobs_mode": mode, "max_logprobs": -1})
        banned = SamplingParams(seed=1, max_tokens=1, top_k=3, logit_bias={7: -100.0}, logprobs=core.info.vocab_size)
        add(core, PROMPT, sampling=banned)
        (entry,) = finish(core)["0"][0].logprobs or []
        return dict(zip(entry.token_ids, entry.logprobs, strict=True))

    raw, raw_logits = scores("raw_logprobs"), scores("raw_logits")
    assert sum(map(math.exp, raw.values())) == pytest.approx(1, abs=1e-4)
    normaliser = raw_logits[7] - raw[7]
    assert all(raw_logits[token] - raw[token] == pytest.approx(normaliser, abs=1e-4) for token in raw)
    processed = scores("processed_logprobs")
    assert sorted(map(math.exp, processed.values()))[:-3] == [0.0] * (len(raw) - 3)
    assert sum(map(math.exp, processed.values())) == pytest.approx(1, abs=1e-4)
    best = sorted(scores("processed_logits").values())[-3:]
    assert best == pytest.approx(sorted(value for token, value in raw_logits.items() if token != 7)[-3:], abs=1e-4)


@pytest.mark.effect("model.logits_processor_settings")
def test_settings_of_a_processor_are_its_arguments_and_are_checked_against_its_schema(start: Start):
    path = "tests.own_code:Only"
    model = {"logits_processors": [path], "logits_processor_settings": {path: {"token_id": 9}}}
    assert answer(start(model=model)) == [9] * 8
    model["logits_processor_settings"] = {path: {"token_id": -1, "token": 9}}
    with pytest.raises(PluginError) as caught:
        start(model=model)
    lines = sorted(str(caught.value).removeprefix("`model.logits_processors`: ").split("\n"))
    assert [re.sub(r"\(.*/deployment\.yaml:1:\d+\)", "(PLACE)", line) for line in lines] == [
        f"{path}.token: no such key; did you mean `token_id`? (PLACE)",
        f"{path}.token_id: not allowed; allowed: a whole number, at least 0 (PLACE)",
    ]


@pytest.mark.effect("model.logits_processors")
def test_installed_processors_change_the_answers_of_all_requests(start: Start):
    assert answer(start(model={"logits_processors": ["tests.own_code:Only"]})) == [7] * 8
    varied = answer(start(model={"logits_processors": ["tests.own_code.NoRepeats"]}))
    assert len(set(varied)) == 8
    with pytest.raises(PluginError, match=r"^`model\.logits_processors`: tests\.own_code:Ban: cannot be made"):
        start(model={"logits_processors": ["tests.own_code:Ban"]})
    with pytest.raises(
        PluginError, match=r"^`model\.logits_processors`: tests\.own_code:Breaks failed: Arithm"
    ) as caught:
        start(model={"logits_processors": ["tests.own_code:Breaks"]})
    assert caught.value.exit_code == 78


@pytest.mark.effect("model.logits_processor_pattern")
def test_requests_may_name_processors_that_the_pattern_allows(start: Start):
    core = start(model={"logits_processor_pattern": r"tests[.]own_code:\w+"})
    plain = answer(core)
    named = SamplingParams(
        temperature=0, max_tokens=8, ignore_eos=True, logits_processors=(ProcessorCall("tests.own_code:Only", (9,)),)
    )
    assert answer(core, sampling=named) == [9] * 8
    assert answer(core) == plain  # the slot remembers nothing
    with pytest.raises(InvalidRequest, match="not among those"):
        answer(core, sampling=SamplingParams(logits_processors=(ProcessorCall("os.system", ("true",)),)))


def test_a_named_processor_that_fails_ends_its_own_request(start: Start):
    core = start(model={"logits_processor_pattern": "tests[.].*"})
    core.add(EngineRequest(request_id="good", inputs=RequestInputs(PROMPT, GREEDY)))
    broken = SamplingParams(logits_processors=(ProcessorCall("tests.own_code:breaks"),))
    core.add(EngineRequest(request_id="bad", inputs=RequestInputs(PROMPT, broken)))
    outputs = finish(core)
    assert outputs["bad"][-1].finish_reason is FinishReason.ERROR
    assert "ArithmeticError: no such logits" in (outputs["bad"][-1].error or "")
    assert sum(len(output.token_ids) for output in outputs["good"]) == 8


@pytest.mark.effect("observability.kv_cache_metrics")
@pytest.mark.effect("observability.kv_cache_metrics_sample")
def test_the_times_of_blocks_are_measured(start: Start):
    """Of all of them, and of none. Three requests, each with 3 full blocks of 8 tokens and a part, in a cache of 4."""
    small = {"model": {"max_model_len": 32}, "scheduler": {"max_num_seqs": 1}, "cache": {"num_gpu_blocks_override": 4}}
    for sample, num_evicted in ((1, 6), (1e-9, 0)):
        metrics = {"kv_cache_metrics": True, "kv_cache_metrics_sample": sample}
        core = start(**small, observability=metrics)
        for first in (10, 40, 70):
            add(core, list(range(first, first + 19)))
            finish(core)
        stats = core.stats
        assert stats.block_lifetimes is not None
        assert stats.block_idle_times is not None
        assert stats.block_lifetimes.count == stats.block_idle_times.count == num_evicted
        assert stats.block_lifetimes.total >= stats.block_idle_times.total
    assert start().stats.block_lifetimes is None


@pytest.mark.effect("observability.enable_mfu_metrics")
def test_the_work_of_steps_is_counted(start: Start, saved: Callable[[str], Saved]):
    """Matrices as torch counts them in transformers' model; each query sees the tokens up to its own."""
    model, _ = saved("qwen3")
    core = start(observability={"enable_mfu_metrics": True}, cache={"enable_prefix_caching": False})
    add(core, PROMPT)
    finish(core)
    num_tokens, num_sampled = len(PROMPT) + GREEDY.max_tokens - 1, GREEDY.max_tokens
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(torch.tensor([PROMPT]))
    of_matrices = counter.get_flop_counts()["Global"][torch.ops.aten.mm] / len(PROMPT)
    config = model.config
    of_output = 2 * config.vocab_size * config.hidden_size
    of_pair = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    work = core.stats.work
    assert work is not None
    pairs = num_tokens * (num_tokens + 1) / 2
    expected = num_tokens * (of_matrices - of_output) + num_sampled * of_output + pairs * of_pair
    assert work.flops == pytest.approx(expected)
    per_token = 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    assert work.written_bytes == num_tokens * per_token
    assert work.read_bytes > core.info.weights_bytes * num_sampled
    assert start().stats.work is None


@pytest.mark.effect("observability.cudagraph_metrics")
def test_steps_are_counted_by_how_they_are_launched(start: Start):
    core = start(observability={"cudagraph_metrics": True})
    before = core.stats.launches
    assert before is not None
    answer(core)
    after = core.stats.launches
    assert after is not None
    assert after.captured - before.captured == GREEDY.max_tokens - 1  # the prompt takes two steps
    assert (after.kernels - before.kernels, after.host, after.padding_rows, after.padding_tokens) == (2, 0, 0, 0)
    assert start().stats.launches is None


@pytest.mark.effect("observability.profiler_config")
def test_a_profile_has_the_steps_with_their_layers_and_kernels(start: Start, tmp_path: Path):
    folder = tmp_path / "profiles"
    given = {"profiler": "torch", "torch_profiler_dir": str(folder), "torch_profiler_use_gzip": False}
    core = start(observability={"profiler_config": given})
    expected, profiler = answer(core), core.profiler
    assert profiler is not None
    with pytest.raises(ProfileError, match="no profile is being recorded"):
        profiler.stop()
    profiler.start()
    with pytest.raises(ProfileError, match="already"):
        profiler.start()
    assert answer(core) == expected
    trace = profiler.stop()
    assert list(folder.iterdir()) == [trace]
    assert folder.stat().st_mode & 0o077 == 0
    names = [event.get("name", "") for event in json.loads(trace.read_text("utf-8"))["traceEvents"]]
    assert sum(name.startswith("step ") for name in names) == GREEDY.max_tokens
    assert names.count("layers.1") == GREEDY.max_tokens
    assert any(name.startswith("paged_attention") for name in names), set(names)
    assert answer(core) == expected
    assert start().profiler is None


def test_a_profile_begins_after_a_delay_and_ends_by_itself(start: Start, tmp_path: Path):
    folder = tmp_path / "profiles"
    given = {"torch_profiler_dir": str(folder), "delay_iterations": 3, "max_iterations": 2}
    profiler = start(observability={"profiler_config": {"profiler": "torch", **given}}).profiler
    assert profiler is not None
    profiler.start()
    profiler.step_finished()
    with pytest.raises(ProfileError, match="1 of 3 steps to wait for"):
        profiler.stop()
    profiler.start()
    for _ in range(3 + 2):
        assert not list(folder.iterdir())
        profiler.step_finished()
    (trace,) = folder.iterdir()
    profiler.step_finished()
    assert profiler.stop() == trace
    assert gzip.decompress(trace.read_bytes())


def test_a_folder_that_cannot_be_used_is_an_error_of_the_profile(start: Start, tmp_path: Path):
    (tmp_path / "file").touch()
    given = {"profiler": "torch", "torch_profiler_dir": str(tmp_path / "file" / "profiles")}
    profiler = start(observability={"profiler_config": given}).profiler
    assert profiler is not None
    with pytest.raises(ProfileError, match="cannot be made"):
        profiler.start()


@pytest.mark.effect("observability.enable_layerwise_nvtx_tracing")
def test_steps_and_layers_are_marked_for_nsight(start: Start, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="it marks steps on a CUDA device"):
        start(observability={"enable_layerwise_nvtx_tracing": True})
    core = start(model={"enforce_eager": True})  # the model's code is the same on a CUDA device
    marked: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", marked.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: marked.append("end"))
    monkeypatch.setattr(spans, "is_marking", False)
    profiler_of(ObservabilityConfig(enable_layerwise_nvtx_tracing=True))
    answer(core, prompt=PROMPT[:3], sampling=SamplingParams(max_tokens=1))
    assert re.sub(r"step \d+", "step", " ".join(marked)) == "step layers.0 end layers.1 end end"
