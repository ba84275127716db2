"""Rules about traces, metrics and events. The format of a rule: ../rule.py."""

from __future__ import annotations

from ...schema.deployment import DeploymentConfig
from ...schema.observability import has_hidden_metrics
from ..rule import Rule


def _has_overlap(config: DeploymentConfig) -> bool:
    addresses = [
        address for rank in config.parallel.topology.replicas for address in config.kv_events.at_rank(rank).addresses
    ]
    fixed = [address for address in addresses if not address.endswith("*")]
    return len(set(fixed)) < len(fixed)


RULES: tuple[Rule, ...] = (
    Rule(
        id="R184",
        title="detailed traces need a collector",
        fields=("observability.collect_detailed_traces", "observability.otlp_traces_endpoint"),
        is_broken=lambda v: (
            bool(v.observability.collect_detailed_traces) and v.observability.otlp_traces_endpoint is None
        ),
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
        is_broken=lambda v: (
            v.observability.enable_layerwise_nvtx_tracing and (v.device.device == "cpu" or not v.why_no_graphs)
        ),
        message="`observability.enable_layerwise_nvtx_tracing` has no effect: "
        "it marks steps on a CUDA device that are not captured as graphs",
        why="Nsight reads NVTX ranges of CUDA programs, and a graph that is replayed has none.",
        fixes=(
            "set `compilation.level: 0` on a CUDA device",
            "use `observability.profiler_config`, which records on CPUs and of graphs too",
        ),
    ),
    Rule(
        id="R186",
        title="events about blocks need the prefix cache",
        fields=("kv_events.enable_kv_cache_events", "cache.enable_prefix_caching"),
        is_broken=lambda v: v.kv_events.enable_kv_cache_events and not v.cache.enable_prefix_caching,
        message="`kv_events.enable_kv_cache_events` has no effect: without `cache.enable_prefix_caching` no block is "
        "stored for other requests",
        why="Events say which prefixes a request would find in the cache.",
        fixes=("set `cache.enable_prefix_caching: true`, or remove `enable_kv_cache_events`",),
        severity="warning",
    ),
    Rule(
        id="R390",
        title="each replica publishes its events on ports of its own",
        fields=(
            "kv_events.endpoint",
            "kv_events.replay_endpoint",
            "parallel.data_parallel_size",
            "kv_events.enable_kv_cache_events",
        ),
        is_broken=lambda v: v.kv_events.is_publishing and _has_overlap(v.config),
        message="`kv_events.endpoint` and `kv_events.replay_endpoint` overlap: a replica uses each port plus its rank, "
        "from 0 to `parallel.data_parallel_size` - 1",
        why="A port has one socket.",
        fixes=("write ports that are further apart than the number of replicas",),
    ),
    Rule(
        id="R185",
        title="hidden metrics are those of vLLM until 0.8",
        fields=("observability.show_hidden_metrics_for_version", "observability.metric_dialects"),
        is_broken=lambda v: (
            v.observability.show_hidden_metrics_for_version is not None
            and (
                "vllm" not in v.observability.metric_dialects
                or not has_hidden_metrics(v.observability.show_hidden_metrics_for_version)
            )
        ),
        message="`observability.show_hidden_metrics_for_version` has no effect: it adds metrics that vLLM has hidden "
        "since a release up to 0.8, where `observability.metric_dialects` has `vllm`",
        why="Metrics that later releases of vLLM hide are always exported under vLLM's names.",
        fixes=("remove `show_hidden_metrics_for_version`",),
        severity="warning",
    ),
)
