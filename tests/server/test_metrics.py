"""Metrics of requests, and their second names."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tools.monitoring import ALERTS, NAME, PANELS

from stoker.config.schema.observability import ObservabilityConfig
from stoker.engine.api import Distribution, EngineStats, Work
from stoker.engine.client.engine_client import EngineState
from stoker.server.observe.engine_metrics import EngineSnapshot
from stoker.server.observe.metrics import Metrics
from stoker.server.observe.request_histograms import one_two_five

from .. import virtual_time
from ..fakes import FakeEngine
from .deployment import MODEL, Served

LABEL = f'model_name="{MODEL}"'
# What routers, autoscalers and dashboards for vLLM read.
READ_BY_OTHERS = (
    "num_requests_waiting",
    "num_requests_running",
    "kv_cache_usage_perc",
    "gpu_cache_usage_perc",
    "cache_config_info",
    "gpu_prefix_cache_hits",
    "gpu_prefix_cache_queries",
    "prefix_cache_hits",
    "prefix_cache_queries",
    "num_preemptions",
    "request_success",
    "prompt_tokens",
    "generation_tokens",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_time_per_output_token_seconds",
    "iteration_tokens_total",
    "request_params_n",
    "request_params_max_tokens",
    "request_max_num_generation_tokens",
)


def rendered(**settings: object) -> str:
    observability = ObservabilityConfig.model_validate(settings)
    stats = EngineStats(
        num_steps=5,
        num_step_tokens=90,
        step_tokens=((1, 2), (64, 4)),
        iteration_tokens=Distribution(((1, 1), (64, 4)), 5, 97),
        prefix_queries=4,
        prefix_hits=1,
    )
    return Metrics("m", lambda: {0: EngineSnapshot(stats, EngineState.READY)}, settings=observability).render().decode()


def served_requests(folder: Path) -> Served:
    """Two requests in virtual time: each token takes 2 seconds, and each request was queued for 0.25 seconds."""

    async def run() -> Served:
        served = Served(folder, FakeEngine(pace=lambda: asyncio.sleep(2)))
        served.service.clock = virtual_time.now
        async with served.client() as client:
            for n in (1, 2):
                body = {"model": MODEL, "prompt": "x", "max_tokens": 3, "n": n, "ignore_eos": True}
                await client.post("/v1/completions", json=body, timeout=None)
        return served

    return virtual_time.run(run())


def test_the_time_of_a_sequence_is_reported_in_its_parts(folder: Path):
    served = served_requests(folder)
    for name, seconds in {"queue": 0.25, "prefill": 1.75, "decode": 4.0, "inference": 5.75}.items():
        assert served.metric(f"stoker_request_{name}_time_seconds_count{{{LABEL}}}") == 3
        assert abs(served.metric(f"stoker_request_{name}_time_seconds_sum{{{LABEL}}}") - 3 * seconds) < 1e-6
    assert served.metric(f"stoker_request_time_per_output_token_seconds_sum{{{LABEL}}}") == 6


def test_a_sequence_without_an_answer_has_no_times(folder: Path):
    engine = FakeEngine()
    engine.queued_s = None  # of an engine whose scheduler reports none
    served = Served(folder, engine)
    served.complete(max_tokens=2)
    assert served.metric(f"stoker_request_queue_time_seconds_count{{{LABEL}}}") == 0
    assert served.metric(f"stoker_generation_tokens_total{{{LABEL}}}") == 2


def test_a_prompt_that_is_only_scored_is_counted(folder: Path):
    """It was counted with its first token, and not charged to its key without one."""
    served = Served(folder, FakeEngine())
    usage = served.complete(prompt="one two three", max_tokens=0, echo=True, logprobs=1).json()["usage"]
    assert usage["completion_tokens"] == 0
    assert served.metric(f"stoker_prompt_tokens_total{{{LABEL}}}") == usage["prompt_tokens"] > 0
    assert served.metric(f"stoker_request_prompt_tokens_count{{{LABEL}}}") == 1


def test_metrics_are_exported_under_the_names_that_others_read(folder: Path):
    text = served_requests(folder).service.metrics.render().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert [name for name in READ_BY_OTHERS if f"vllm:{name}" not in families] == []
    for name, family in families.items():
        if name.startswith("vllm:"):
            assert {sample.labels["engine"] for sample in family.samples} == {"0"}, name
            assert {sample.labels["model_name"] for sample in family.samples} == {MODEL}, name
    success = {sample.labels["finished_reason"]: sample.value for sample in families["vllm:request_success"].samples}
    assert success == {"stop": 0, "length": 3, "abort": 0, "error": 0}
    (config,) = families["vllm:cache_config_info"].samples
    assert (config.labels["block_size"], config.labels["num_gpu_blocks"], config.value) == ("16", "64", 1)
    original, copy = (families[f"{prefix}time_to_first_token_seconds"] for prefix in ("stoker_", "vllm:"))
    assert copy.type == original.type == "histogram"
    values = {sample.labels.get("le", sample.name[-5:]): sample.value for sample in original.samples}
    for sample in copy.samples:
        assert values[sample.labels.get("le", sample.name[-5:])] == sample.value
    limits = [sample.labels["le"] for sample in copy.samples if "le" in sample.labels]
    assert limits[:4] == ["0.001", "0.005", "0.01", "0.02"]
    assert limits[-3:] == ["640.0", "2560.0", "+Inf"]
    assert len(limits) == 23


@pytest.mark.effect("observability.metric_dialects")
def test_the_names_of_others_can_be_left_out():
    exported = rendered(metric_dialects=())
    assert "stoker_num_requests_running" in exported
    assert "vllm:" not in exported


@pytest.mark.effect("observability.show_hidden_metrics_for_version")
def test_metrics_that_vllm_has_hidden_can_be_shown():
    def families_of(text: str) -> dict[str, Metric]:
        return {family.name: family for family in text_string_to_metric_families(text)}

    families = families_of(rendered(show_hidden_metrics_for_version="0.8"))
    assert families.keys() - families_of(rendered()).keys() == {
        "vllm:time_in_queue_requests",
        "vllm:time_in_queue_requests_created",
        "vllm:num_requests_swapped",
        "vllm:cpu_cache_usage_perc",
        "vllm:gpu_prefix_cache_hit_rate",
    }
    assert families["vllm:gpu_prefix_cache_hit_rate"].samples[0].value == 0.25
    assert families_of(rendered(show_hidden_metrics_for_version="0.9")).keys() == families_of(rendered()).keys()


@pytest.mark.effect("observability.custom_histogram_buckets")
def test_buckets_of_a_family_can_be_replaced():
    text = rendered(custom_histogram_buckets={"time_to_first_token": [5, 0.1]})
    for name in ("stoker_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"):
        (family,) = (each for each in text_string_to_metric_families(text) if each.name == name)
        limits = [sample.labels["le"] for sample in family.samples if "le" in sample.labels]
        assert limits == ["0.1", "5.0", "+Inf"], name
    assert 'stoker_inter_token_latency_seconds_bucket{le="0.0025",model_name="m"}' in text


def test_tokens_of_steps_are_a_histogram():
    found = {
        "stoker_engine_step_tokens": [2, 4, 5, 5, 90],
        "stoker_engine_iteration_tokens": [1, 4, 5, 5, 97],
        "vllm:iteration_tokens_total": [1, 4, 5, 5, 97],
    }
    for name, expected in found.items():
        lines = [line for line in rendered().splitlines() if line.startswith(name)]
        values = [float(line.split()[-1]) for line in lines]
        assert values == expected, lines


def test_metrics_with_vllms_names_have_its_labels():
    stats = EngineStats(
        num_waiting=5, num_deferred=2, num_blocks=8, request_preemptions=Distribution(((1, 3), (2, 4)), 4, 2.0)
    )
    snapshot = EngineSnapshot(stats, EngineState.SLEEPING, sleep_level=1)
    metrics = Metrics("m", lambda: {0: snapshot}, block_size=16, max_model_len=64)
    metrics.admission_rejections.inc()
    text = metrics.render().decode()
    for line in (
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 3.0',
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 2.0',
        'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 0.0',
        'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"} 1.0',
        'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="discard_all"} 0.0',
        'vllm:admission_rejections_total{engine="0",model_name="m"} 1.0',
        'vllm:request_num_preemptions_bucket{engine="0",le="2.0",model_name="m"} 4.0',
        'vllm:request_num_preemptions_sum{engine="0",model_name="m"} 2.0',
    ):
        assert line in text.splitlines(), line
    (info,) = (line for line in text.splitlines() if line.startswith("vllm:cache_config_info{"))
    assert 'kv_cache_size_tokens="128"' in info
    assert 'kv_cache_max_concurrency="2.00"' in info


def test_times_of_blocks_are_histograms_if_they_are_measured():
    stats = EngineStats(block_reuse_gaps=Distribution(((0.5, 1), (2.0, 3)), 4, 9.5))
    text = Metrics("m", lambda: {0: EngineSnapshot(stats, EngineState.READY)}).render().decode()
    for name in ("stoker_kv_block_reuse_gap_seconds", "vllm:kv_block_reuse_gap_seconds"):
        values = [float(line.split()[-1]) for line in text.splitlines() if line.startswith(name)]
        assert values == [1, 3, 4, 4, 9.5]
    assert "kv_block_lifetime" not in text


def test_the_work_of_steps_is_exported_if_it_is_counted():
    stats = EngineStats(work=Work(6.0, 5.0, 4.0))
    text = Metrics("m", lambda: {0: EngineSnapshot(stats, EngineState.READY)}).render().decode()
    assert 'vllm:estimated_flops_per_gpu_total{engine="0",model_name="m"} 6.0' in text
    assert 'stoker_estimated_written_bytes_total{engine="0",model_name="m"} 4.0' in text
    assert "estimated_flops" not in rendered()


def test_the_balance_of_experts_is_exported_once_it_is_measured():
    stats = EngineStats(expert_balance=0.75)
    text = Metrics("m", lambda: {0: EngineSnapshot(stats, EngineState.READY)}).render().decode()
    assert 'stoker_expert_balancedness{engine="0",model_name="m"} 0.75' in text
    assert "expert_balancedness" not in rendered()


def test_parameters_are_counted_once_per_prompt(folder: Path):
    served = served_requests(folder)  # n=1 and n=2, each with 3 tokens at most
    for name, count, total in (("params_n", 2, 3), ("params_max_tokens", 2, 6), ("max_generation_tokens", 2, 6)):
        assert served.metric(f"stoker_request_{name}_count{{{LABEL}}}") == count
        assert served.metric(f"stoker_request_{name}_sum{{{LABEL}}}") == total


def test_buckets_for_numbers_of_tokens_end_at_the_context():
    assert one_two_five(64) == [1, 2, 5, 10, 20, 50]


def test_each_declared_metric_is_exported_once():
    metrics = Metrics("m", lambda: {0: EngineSnapshot(EngineStats(), EngineState.READY)})
    names = [family.name for family in metrics.collect()]
    assert len(names) == len(set(names))
    described = metrics.described()
    assert set(names) == {name for family, others in described for name in (family.name, *others)}


def test_each_query_of_the_dashboard_and_the_alerts_reads_names_and_labels_of_a_running_server(
    folder: Path, tmp_path: Path
):
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: {alice: {secrets: [{key: sk-alice}]}}")
    served = Served(folder, api_keys_file=str(keys))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
    assert served.post("/v1/chat/completions", body, headers={"authorization": "Bearer sk-alice"}).status_code == 200
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(served.service.metrics.render().decode()):
        for sample in family.samples:
            labels.setdefault(sample.name, {"instance"}).update(sample.labels)  # Prometheus adds it
    for query in [query for _, _, parts in PANELS for query, _ in parts] + [alert[1] for alert in ALERTS]:
        read = {*re.findall(r"(\w+)=~?\"", query), *re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", query)))}
        for name in NAME.findall(query):
            assert read <= labels[name], query
