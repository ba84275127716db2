"""Rules about traces, metrics and events. The format of a rule: ../rule.py."""

from __future__ import annotations

from ...schema.observability import has_hidden_metrics
from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = (
    Rule(
        id="R184",
        title="detailed traces need a collector",
        fields=("observability.collect_detailed_traces", "observability.otlp_traces_endpoint"),
        is_broken=lambda v: bool(v.collect_detailed_traces) and v.otlp_traces_endpoint is None,
        message="`observability.collect_detailed_traces` has no effect: there is no "
        "`observability.otlp_traces_endpoint`",
        why="Traces are sent to a collector and stored nowhere else.",
        fixes=("set `otlp_traces_endpoint`, or remove `collect_detailed_traces`",),
    ),
    Rule(
        id="R354",
        title="ranges for Nsight are of steps that are not captured",
        fields=(
            "observability.enable_layerwise_nvtx_tracing",
            "device.device",
            "model.enforce_eager",
            "compilation.level",
            "model.batch_invariant",
        ),
        is_broken=lambda v: v.enable_layerwise_nvtx_tracing and (v.device == "cpu" or not v.no_graphs),
        message="`observability.enable_layerwise_nvtx_tracing` has no effect: "
        "it marks steps on a CUDA device that are not captured as graphs",
        why="Nsight reads NVTX ranges of CUDA programs, and a graph that is replayed has none.",
        fixes=(
            "set `compilation.level: 0` on a CUDA device",
            "use `observability.profiler_config`, which records on CPUs and of graphs too",
        ),
    ),
    Rule(
        id="R185",
        title="hidden metrics are those of vLLM until 0.8",
        fields=("observability.show_hidden_metrics_for_version", "observability.metric_dialects"),
        is_broken=lambda v: (
            v.show_hidden_metrics_for_version is not None
            and ("vllm" not in v.metric_dialects or not has_hidden_metrics(v.show_hidden_metrics_for_version))
        ),
        message="`observability.show_hidden_metrics_for_version` has no effect: it adds metrics that vLLM has hidden "
        "since a release up to 0.8, where `observability.metric_dialects` has `vllm`",
        why="Metrics that later releases of vLLM hide are always exported under vLLM's names.",
        fixes=("remove `show_hidden_metrics_for_version`",),
        severity="warning",
    ),
)

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R010",
        "modules are separated by commas",
        ("observability.collect_detailed_traces",),
        "`model,worker` on the command line or in a variable, a list in a file; other values are an error.",
    ),
    StatedRule(
        "R011",
        "model measures the forward pass, worker the whole step",
        ("observability.collect_detailed_traces",),
        "`model` adds the times of prefill and decode to a span, `worker` child spans for queue, prefill and decode.",
    ),
    StatedRule(
        "R186",
        "events about blocks need the prefix cache",
        ("kv_events.enable_kv_cache_events", "cache.enable_prefix_caching"),
        "Cannot occur: events are refused.",
    ),
)
