from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.cli.plan_view.memory import memory_rows
from stoker.config import MachineSpec, read_model_files, resolve_deployment
from stoker.config.auto_values import PAST_OUTPUT_TOKENS, past_output_bytes
from stoker.config.plan.changes import cheapest_changes
from stoker.config.plan.devices import find_profile, machine_of, profiles, this_machine
from stoker.config.plan.estimate import Range, draft_logit_rows, estimate
from stoker.config.plan.model import read_model
from stoker.config.plan.plan import Plan, make_plan
from stoker.config.resolve.resolve import examine
from stoker.config.schema.types import format_about

from ..deployments import GIB, H200, MACHINE, WITH_GPU, load
from .shapes import write_config

WIDE = MACHINE.model_copy(update={"available_memory_bytes": 24 * GIB})


def planned(
    folder: Path,
    config: dict[str, Any] | str,
    *words: str,
    device: str = "this-machine",
    machine: MachineSpec = WIDE,
) -> Plan:
    model = write_config(folder / "model", config)
    words = ("--model", str(model), "--load-format", "dummy", "--skip-tokenizer-init", *words)
    deployment = load(folder, "{}", *words)
    planned_model = read_model(deployment)
    profile = find_profile(device, machine)
    decisions = examine(deployment, planned_model.files, machine_of(profile, machine)).decisions
    if device == "this-machine":
        profile = this_machine(machine, decisions.get("device.device"))
    return make_plan(planned_model, profile, decisions)


def test_on_this_machine_the_plan_is_what_will_run(tmp_path: Path) -> None:
    plan = planned(tmp_path, "qwen3-0.6b", "--max-model-len", "4096")
    deployment = load(
        tmp_path, "{}", "--model", str(tmp_path / "model"), "--load-format", "dummy", "--skip-tokenizer-init",
        "--max-model-len", "4096",
    )  # fmt: skip
    resolved = resolve_deployment(deployment, read_model_files(deployment), WIDE)
    assert plan.estimate.weights_bytes == resolved.memory.weights_bytes == 2 * 596_049_920
    assert plan.estimate.kv_cache_bytes == resolved.memory.kv_cache_bytes
    assert plan.estimate.kv.token_bytes == resolved.memory.kv_bytes_per_token
    assert plan.estimate.max_model_len == 4096
    assert (plan.estimate.status, plan.notes) == ("fits", ())


@pytest.mark.effect("model.quantization")
def test_quantised_weights_are_planned_in_their_bits(tmp_path: Path) -> None:
    """28 layers of 15 728 640 numbers and an output layer of 155 582 464, which is int8 in both; 65 536 are norms."""
    layers, head, others = 28 * 15_728_640, 151_936 * 1024, 596_049_920 - 28 * 15_728_640 - 151_936 * 1024
    scales = 28 * (4096 + 1024 + 6144 + 1024) * 4
    eight, four = (planned(tmp_path, "qwen3-0.6b", "--quantization", scheme) for scheme in ("int8", "int4"))
    both = planned(tmp_path, "qwen3-0.6b", "--quantization", "int8", "--activation-quantization", "int8")
    assert both.kernels["linear"].endswith("weights in int8, multiplied as integers by activations in int8")
    assert both.estimate.weights_bytes == eight.estimate.weights_bytes
    assert [note.split(",")[0] for note in both.notes] == ["accuracy"]
    assert both.speed is not None
    assert eight.speed is not None
    assert both.speed.prefill[0] == pytest.approx(1.9 * eight.speed.prefill[0])
    assert both.speed.decode_one == eight.speed.decode_one
    assert both.notes != eight.notes
    assert eight.estimate.weights_bytes == layers + scales + head + 151_936 * 4 + 2 * others
    assert four.estimate.weights_bytes == layers // 2 + layers // 64 * 2 + head + 151_936 * 4 + 2 * others
    assert "weights in int8" in eight.kernels["linear"]
    assert "weights in int4 by 64, the output layer in int8" in four.kernels["linear"]
    assert four.estimate.kv_cache_bytes == eight.estimate.kv_cache_bytes


@pytest.mark.parametrize("words", [(), ("--max-model-len", "2048"), ("--max-num-seqs", "3"), ("--dtype", "float32")])
def test_auto_is_filled_by_the_same_rule_as_at_start(tmp_path: Path, words: tuple[str, ...]) -> None:
    """The plan's own rule serves changes and models that the engine does not run."""
    plan = planned(tmp_path, "qwen3-0.6b", *words)
    again = estimate(plan.model, plan.device, plan.ask)
    assert again.kv_cache_bytes == plan.estimate.kv_cache_bytes
    assert again.max_model_len == plan.estimate.max_model_len


@pytest.mark.parametrize("words", [(), ("--enforce-eager",), ("--max-num-seqs", "3"), ("--max-model-len", "2048")])
def test_a_gpu_is_planned_as_it_is_shared_out_at_start(tmp_path: Path, words: tuple[str, ...]) -> None:
    """The same formulas: what a step, CUDA and its graphs take, and what is left for the KV cache."""
    plan = planned(tmp_path, "llama-3.1-8b", *words, machine=WITH_GPU)
    again = estimate(plan.model, plan.device, plan.ask)
    extra = again.process.likely + again.activations.likely + again.graphs.likely
    model = str(tmp_path / "model")
    deployment = load(
        tmp_path, "{}", "--model", model, "--load-format", "dummy", "--skip-tokenizer-init", *words
    )  # fmt: skip
    memory = resolve_deployment(deployment, read_model_files(deployment), WITH_GPU).memory
    assert extra == memory.activation_bytes
    assert again.weights_bytes == memory.weights_bytes
    assert again.kv_cache_bytes // plan.estimate.kv.block_bytes == memory.kv_cache_bytes // plan.estimate.kv.block_bytes


@pytest.mark.parametrize("machine", [MACHINE, WITH_GPU])
def test_graphs_are_planned_for_a_gpu_wherever_the_plan_is_made(tmp_path: Path, machine: MachineSpec) -> None:
    def graphs(*words: str) -> int:
        return planned(tmp_path, "qwen3-0.6b", *words, device="h200", machine=machine).estimate.graphs.likely

    assert graphs() == graphs("--compilation.level", "2") > 0
    assert graphs("--compilation.level", "0") == graphs("--enforce-eager") == 0


def test_an_8b_model_on_an_80_gb_card(tmp_path: Path) -> None:
    plan = planned(tmp_path, "llama-3.1-8b", device="h100-80gb")
    found = plan.estimate
    assert found.status == "fits"
    assert found.weights_bytes == pytest.approx(16.06e9, rel=0.001)
    assert 50 * GIB < found.kv_cache_bytes < 58 * GIB
    assert plan.capacity.sequences[131072] == 3
    assert plan.capacity.longest[1] == 131072
    assert plan.speed is not None
    low, high = plan.speed.decode_one
    assert 60 < low < 150 < high < 250  # what such a card does with such a model, by public benchmarks
    assert not any("does not run on" in note for note in plan.notes)
    assert plan.kernels == {}


def test_weights_in_host_memory_are_not_counted_on_the_gpu_and_limit_its_speed(tmp_path: Path) -> None:
    plain = planned(tmp_path, "llama-3.1-8b", device="l4")
    plan = planned(tmp_path, "llama-3.1-8b", "--cpu-offload-gb", "6", device="l4")
    offload, layer = plan.estimate.weight_offload, 218_112_000 * 2
    assert offload is not None
    assert (len(offload.layers), offload.num_places) == (15, 2)
    assert offload.layer_bytes == pytest.approx(layer, rel=1e-4)
    assert plain.estimate.weights_bytes - plan.estimate.weights_bytes == offload.saved_bytes == 13 * offload.layer_bytes
    assert plan.estimate.kv_cache_bytes > plain.estimate.kv_cache_bytes
    assert plan.speed is not None
    assert plan.speed.decode_one[1] <= 0.9 * 32e9 / offload.host_bytes
    assert planned(tmp_path, "llama-3.1-8b", "--cpu-offload-gb", "6").estimate.weight_offload is None  # a CPU


def test_a_machine_with_a_gpu_is_planned_as_that_gpu(tmp_path: Path) -> None:
    plan = planned(tmp_path, "llama-3.1-8b", machine=WITH_GPU)
    assert (plan.device.kind, plan.device.shown) == ("cuda", "NVIDIA H200")
    assert plan.device.bandwidth_gb_per_s == profiles()["h200"].bandwidth_gb_per_s
    found = plan.estimate
    assert found.status == "fits"
    assert found.budget_bytes == int(0.9 * 139 * GIB)
    assert found.budget_bytes - 3 * GIB < found.weights_bytes + found.kv_cache_bytes < found.budget_bytes
    assert plan.as_dict()["device"]["is_in_build"]
    assert planned(tmp_path, "llama-3.1-8b", "--device", "cpu", machine=WITH_GPU).device.kind == "cpu"


def test_a_gpu_that_nobody_profiled_is_guessed_at() -> None:
    gpu = H200.model_copy(update={"name": "NVIDIA RTX PRO 9999"})
    profile = this_machine(MACHINE.model_copy(update={"gpu": gpu}), "cuda")
    assert (profile.memory, profile.uncertainty) == (139 * GIB, 3.0)
    smaller = gpu.model_copy(update={"name": "NVIDIA A100-SXM4-40GB", "total_memory_bytes": 39 * GIB})
    profile = this_machine(MACHINE.model_copy(update={"gpu": smaller}), "cuda")
    assert profile.bandwidth_gb_per_s == profiles()["a100-40gb"].bandwidth_gb_per_s


def test_what_this_build_does_not_run_on_is_said(tmp_path: Path) -> None:
    plan = planned(tmp_path, "llama-3.1-8b", device="mi300x")
    assert "this build does not run on AMD Instinct MI300X 192GB; this is what the model would need there" in plan.notes
    plan = planned(tmp_path, "llama-3.1-8b", "--kv-cache-dtype", "fp8", device="a100-40gb")
    assert any(note.startswith("this build keeps no keys and values in fp8 on NVIDIA A100") for note in plan.notes)


def test_a_70b_model_that_does_not_fit_says_what_would_help(tmp_path: Path) -> None:
    plan = planned(tmp_path, "llama-3.1-70b", device="h100-80gb")
    assert plan.estimate.is_blocked
    assert plan.estimate.reason.startswith("the weights alone need 131.42 GiB of the 71.19 GiB")
    assert [change.what for change in plan.changes] == [
        "weights in FP8",
        "weights in 4 bits (AWQ or GPTQ)",
        "parallel.tensor_parallel_size: 2",
    ]
    assert all(change.is_in_build for change in plan.changes)  # it was said of none of them
    assert "weights 66." in plan.changes[0].outcome or "weights 67." in plan.changes[0].outcome


@pytest.mark.parametrize(
    ("words", "memory", "first"),
    [
        (("--max-model-len", "32768"), 4 * GIB, "model.max_model_len"),
        (("--max-model-len", "4096", "--kv-cache-memory-bytes", "20GiB"), 8 * GIB, "cache.kv_cache_memory_bytes"),
        (("--max-model-len", "4096", "--dtype", "float32"), 3 * GIB, "model.dtype"),
        ((), 16 * GIB, "model.max_model_len"),
        (("--max-model-len", "1024"), 2 * GIB, "cache.gpu_memory_utilization"),
    ],
)
def test_the_cheapest_change_does_make_it_fit(tmp_path: Path, words: tuple[str, ...], memory: int, first: str) -> None:
    """Written as it is offered, the deployment fits: planning again says so."""
    machine = MACHINE.model_copy(update={"available_memory_bytes": memory})
    before = planned(tmp_path, "qwen3-0.6b", *words, machine=machine)
    assert before.estimate.status != "fits"
    change = before.changes[0]
    assert change.option == first
    assert change.value is not None
    flag = f"--{first.partition('.')[2].replace('_', '-')}"
    after = planned(tmp_path, "qwen3-0.6b", *words, f"{flag}!", flag, change.value, machine=machine)
    assert not after.estimate.is_blocked
    assert change.outcome.startswith(after.estimate.status)


@pytest.mark.parametrize(
    ("device", "length", "what"),
    [("l4", "40960", "cache.kv_cache_dtype: fp8"), ("a100-40gb", "180000", "an 8-bit KV cache")],
)
def test_a_cache_in_fp8_is_offered_where_this_build_has_it(tmp_path: Path, device: str, length: str, what: str) -> None:
    plan = planned(tmp_path, "llama-3.1-8b", "--max-model-len", length, device=device)
    change = plan.changes[-1]
    assert (change.what, change.is_in_build) == (what, device == "l4")
    if change.is_in_build:
        again = planned(tmp_path, "llama-3.1-8b", "--max-model-len", length, "--kv-cache-dtype", "fp8", device=device)
        assert change.outcome.startswith(again.estimate.status)
        assert again.estimate.kv.token_bytes * 2 == plan.estimate.kv.token_bytes
        assert not any("fp8" in note for note in again.notes)


def test_changes_come_cheapest_first_and_at_most_three(tmp_path: Path) -> None:
    machine = MACHINE.model_copy(update={"available_memory_bytes": 2 * GIB})
    plan = planned(tmp_path, "qwen3-0.6b", "--dtype", "float32", "--max-model-len", "16384", machine=machine)
    assert plan.estimate.is_blocked
    assert 1 <= len(plan.changes) <= 3
    assert plan.changes[0].is_in_build or not any(change.is_in_build for change in plan.changes)


def test_a_plan_that_only_an_estimate_speaks_against_may_not_fit(tmp_path: Path) -> None:
    """Weights and KV cache are within the share; libraries and activations are what goes beyond the memory."""
    machine = MACHINE.model_copy(update={"available_memory_bytes": 2 * GIB})
    plan = planned(tmp_path, "qwen3-0.6b", "--max-model-len", "1024", machine=machine)
    assert plan.estimate.status == "may not fit"
    assert not plan.estimate.is_blocked
    assert "is estimated at" in plan.estimate.reason


def test_more_memory_never_makes_a_plan_worse(tmp_path: Path) -> None:
    plan = planned(tmp_path, "llama-3.1-8b", device="t4")
    order = ["does not fit", "may not fit", "fits with less context", "fits"]
    ranks = [
        order.index(estimate(plan.model, plan.device.model_copy(update={"memory": size * GIB}), plan.ask).status)
        for size in (8, 16, 18, 20, 24, 40, 80, 160)
    ]
    assert ranks == sorted(ranks)
    assert (ranks[0], ranks[-1]) == (0, 3)


def test_a_model_that_this_build_cannot_run_is_planned_all_the_same(tmp_path: Path) -> None:
    config = {
        "architectures": ["UnknownForCausalLM"], "model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 32768,
    }  # fmt: skip
    model = write_config(tmp_path / "mixtral", config)
    deployment = load(tmp_path, "{}", "--model", str(model))
    planned_model = read_model(deployment)
    assert planned_model.files is None
    decisions = examine(deployment, None, WIDE).decisions
    plan = make_plan(planned_model, profiles()["h200"], decisions)
    assert plan.verdict == "fits, but this build cannot run the model"
    assert any(note.startswith("this build cannot run the model, but this is what it needs") for note in plan.notes)


def test_the_vocabulary_of_structured_outputs_is_planned_where_there_is_a_tokenizer(tmp_path: Path) -> None:
    """160 MB at 152,000 tokens, which no row of the plan had."""
    plan = planned(tmp_path, "qwen3-0.6b")
    assert plan.estimate.grammars.high == 0  # --skip-tokenizer-init
    found = estimate(plan.model, plan.device, plan.ask.model_copy(update={"has_grammars": True}))
    assert found.grammars.low < 151936 * 1060 < found.grammars.high  # measured
    assert found.peak.likely - plan.estimate.peak.likely == found.grammars.likely
    on_gpu = planned(tmp_path, "qwen3-0.6b", device="l4")
    ask = on_gpu.ask.model_copy(update={"has_grammars": True})
    assert estimate(on_gpu.model, on_gpu.device, ask).grammars.high == 0  # in the host's memory


def test_drafts_are_planned_with_what_they_need_beside_a_deployment_without(tmp_path: Path) -> None:
    words = ("--max-num-seqs", "4", "--max-model-len", "4096")
    plain = planned(tmp_path, "qwen3-0.6b", *words)
    assert plain.estimate.drafts.high == 0
    found = planned(tmp_path, "qwen3-0.6b", *words, "--spec-method", "ngram").estimate
    logits, graphs = (4 * 17 - 4) * 151936 * 6, 70 * 28 * 4096
    texts, past = 4 * 4096 * 4, past_output_bytes(PAST_OUTPUT_TOKENS)
    assert found.drafts.low == past
    assert found.drafts.likely == logits + graphs // 2 + texts // 4 + past
    assert found.drafts.high == 2 * logits + graphs + 2 * texts + past
    assert found.peak.likely - plain.estimate.peak.likely == found.drafts.likely
    none_past = planned(
        tmp_path, "qwen3-0.6b", *words, "--spec-method", "ngram", "-sc.past_output_tokens", "0"
    ).estimate
    assert none_past.drafts.likely == found.drafts.likely - past
    # A step that has as many sequences as a pass has rows of logits has no more for drafts.
    many = planned(tmp_path, "qwen3-0.6b", "--max-num-seqs", "256", "--spec-method", "ngram")
    assert draft_logit_rows(many.ask) == 0
    assert planned(tmp_path, "qwen3-0.6b", "--spec-method", "auto", device="l4").estimate.drafts.high == 0
    rows = dict(memory_rows(many))
    assert rows["drafts"].endswith(": captured steps, tokens of sequences, 768 KiB of earlier answers (estimate)")
    assert "drafts" not in dict(memory_rows(plain))


def test_what_states_keep_of_tokens_with_drafts_is_planned(tmp_path: Path) -> None:
    words = ("--max-num-seqs", "64", "--max-num-batched-tokens", "2048", "--spec-method", "ngram")
    plan = planned(tmp_path, "qwen3.5-0.8b", *words)
    # 16 heads of 128 for queries, keys, values and gates, and two elements for each head, in 18 layers.
    one = 18 * 2 * (4 * 16 * 128 + 2 * 16)
    assert plan.estimate.drafted_bytes == one * 62 * (1 + 16)  # with 63 rows each has 15 drafts
    assert f"{format_about(plan.estimate.drafted_bytes)} at most, from which rejected drafts are taken back" in [
        text for _, text in memory_rows(plan)
    ]
    one_draft = planned(tmp_path, "qwen3.5-0.8b", *words, "--num-speculative-tokens", "1")
    assert one_draft.estimate.drafted_bytes == one * 64 * 2
    assert one_draft.estimate.fixed_bytes < plan.estimate.fixed_bytes
    assert planned(tmp_path, "qwen3.5-0.8b").estimate.drafted_bytes == 0
    assert planned(tmp_path, "qwen3-0.6b", *words).estimate.drafted_bytes == 0


def test_ranges_hold_their_likely_value(tmp_path: Path) -> None:
    for device in ("this-machine", "l4", "h100-80gb"):
        found = planned(tmp_path, "qwen3-0.6b", device=device).estimate
        for size in (found.process, found.activations, found.graphs, found.peak):
            assert isinstance(size, Range)
            assert 0 <= size.low <= size.likely <= size.high


@pytest.mark.effect("cache.gpu_memory_utilization")
def test_the_share_of_memory_bounds_what_is_planned(tmp_path: Path) -> None:
    half = planned(tmp_path, "llama-3.1-8b", "--gpu-memory-utilization", "0.5", device="h100-80gb")
    whole = planned(tmp_path, "llama-3.1-8b", "--gpu-memory-utilization", "0.9", device="h100-80gb")
    difference = whole.estimate.kv_cache_bytes - half.estimate.kv_cache_bytes
    assert difference == pytest.approx(0.4 * profiles()["h100-80gb"].memory, rel=0.001)


def test_nothing_is_offered_where_nothing_is_missing(tmp_path: Path) -> None:
    plan = planned(tmp_path, "llama-3.1-8b", device="h100-80gb")
    assert cheapest_changes(plan.model, plan.device, plan.ask, plan.estimate) == []


def test_a_card_is_not_faster_than_its_launches(tmp_path: Path) -> None:
    """A model of a few megabytes would be read in microseconds; 28 layers of it are some hundred launches."""
    plan = planned(tmp_path, "qwen3-0.6b", device="h100-80gb")
    assert plan.speed is not None
    slow, fast = plan.speed.decode_one
    assert 300 < slow < fast < 1 / (28 * 15e-6)


def test_states_are_counted_for_every_running_sequence(tmp_path: Path) -> None:
    """Qwen3.5-0.8B: 18 layers, each with 16 states of 128 x 128 in float32 and the last 3 inputs of 6144 channels."""
    one = 18 * (16 * 128 * 128 * 4 + 3 * 6144 * 2)
    few, many = (planned(tmp_path, "qwen3.5-0.8b", "--max-num-seqs", str(count)) for count in (4, 64))
    # and up to 8 times as many kept ones, or as many as fit into 1 GiB
    assert (few.estimate.num_states, many.estimate.num_states) == (4 + 8 * 4, 64 + (1 << 30) // one)
    assert few.estimate.state_bytes == few.estimate.num_states * one
    assert max(few.capacity.sequences.values()) == 4  # of the shortest context many more would fit into the KV cache
    assert any("32 more are kept for prefixes" in note for note in few.notes)
    assert few.speed is not None
    assert many.estimate.peak.likely - few.estimate.peak.likely >= 79 * one


def test_states_take_at_most_a_quarter_of_what_the_weights_leave(tmp_path: Path) -> None:
    """A sequence of Qwen3.5-27B has 146.8 MiB of states: 256 of them would leave no memory for a KV cache."""
    plan = planned(tmp_path, "qwen3.5-27b", device="h100-80gb")
    assert plan.estimate.status != "does not fit"
    estimate, one = plan.estimate, plan.estimate.state_bytes // plan.estimate.num_states
    room = estimate.budget_bytes - estimate.weights_bytes
    assert plan.ask.max_num_seqs == room // 4 // one
    assert planned(tmp_path, "qwen3.5-27b", "--max-num-seqs", "256", device="h100-80gb").ask.max_num_seqs == 256


def test_here_a_small_machine_runs_fewer_sequences_with_states(tmp_path: Path) -> None:
    small = WIDE.model_copy(update={"available_memory_bytes": 4 * GIB})
    plan = planned(tmp_path, "qwen3.5-0.8b", machine=small)
    deployment = load(
        tmp_path, "{}", "--model", str(tmp_path / "model"), "--load-format", "dummy", "--skip-tokenizer-init"
    )
    resolved = resolve_deployment(deployment, read_model_files(deployment), small)
    assert plan.ask.max_num_seqs == resolved.scheduler.max_num_seqs < 64
    assert "recurrent states" in resolved.origins["scheduler.max_num_seqs"].reason
