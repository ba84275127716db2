"""Section `observability`: metrics, and traces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from .refused import with_refused
from .section import Section, about
from .types import Flag, Share, parse_one_or_more

TraceModules = Annotated[tuple[Literal["model", "worker", "all"], ...], BeforeValidator(parse_one_or_more)]
MetricDialect = Literal["vllm"]
BucketFamily = Literal[
    "request_latency",
    "time_to_first_token",
    "inter_token_latency",
    "request_tokens",
    "request_params_n",
    "iteration_tokens",
]
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # buckets; as in vLLM
_BUCKETS = {  # JSON Schema of `custom_histogram_buckets`
    "type": "object",
    "properties": {
        family: {
            "type": "array",
            "items": {"type": "number", "exclusiveMinimum": 0, "maximum": 1e12},
            "minItems": 1,
            "maxItems": 100,
        }
        for family in get_args(BucketFamily)
    },
    "additionalProperties": False,
}
_PROFILER = {  # JSON Schema of `profiler_config`
    "type": "object",
    "properties": {
        "profiler": {"const": "torch"},
        "torch_profiler_dir": {"type": "string", "pattern": "^/"},
        "torch_profiler_with_stack": {"type": "boolean"},
        "torch_profiler_record_shapes": {"type": "boolean"},
        "torch_profiler_with_memory": {"type": "boolean"},
        "torch_profiler_with_flops": {"type": "boolean"},
        "torch_profiler_use_gzip": {"type": "boolean"},
        "delay_iterations": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
        "max_iterations": {"type": "integer", "minimum": 1, "maximum": 10_000},
        "ignore_frontend": {"const": True},  # the API process is never profiled
    },
    "dependentRequired": {"profiler": ["torch_profiler_dir"]},
    "if": {"minProperties": 1},
    "then": {"required": ["profiler"]},
    "additionalProperties": False,
}
MetricDialects = Annotated[tuple[MetricDialect, ...], BeforeValidator(parse_one_or_more)]

_HIDDEN_UNTIL = (0, 8)  # the release of vLLM since which the metrics of `show_hidden_metrics_for_version` are hidden


def has_hidden_metrics(release: str | None) -> bool:
    """Whether `show_hidden_metrics_for_version` with this value exports more metrics."""
    return release is not None and tuple(map(int, release.split(".")))[:2] <= _HIDDEN_UNTIL


@with_refused("observability")
class ObservabilityConfig(Section):
    """Metrics, and traces."""

    metric_dialects: MetricDialects = Field(
        ("vllm",),
        description=(
            "Other servers under whose names /metrics exports what they have too, with their labels and buckets, for "
            "routers, autoscalers and dashboards made for them. An empty list exports the own names only, which is "
            "about half of the output."
        ),
        examples=[["vllm"], []],
        json_schema_extra=about(reload="process", notation="commas"),
    )
    show_hidden_metrics_for_version: str | None = Field(
        None,
        pattern=r"^\d+\.\d+(\.\d+)*$",
        description=(
            "A release of vLLM, such as 0.8: /metrics also exports the metrics that vLLM has hidden since that "
            "release, for dashboards that still read them: `vllm:time_in_queue_requests`, `vllm:num_requests_swapped`, "
            "`vllm:cpu_cache_usage_perc` and `vllm:gpu_prefix_cache_hit_rate`. Those that later releases hide are "
            "always exported."
        ),
        examples=["0.8", "0.7"],
        json_schema_extra=about(reload="process"),
    )
    custom_histogram_buckets: dict[str, Any] = Field(
        {},
        description=(
            "Upper limits of the buckets of histograms, for the families `request_latency` (seconds of a request and "
            "of its parts), `time_to_first_token`, `inter_token_latency`, `request_tokens` (prompt and generated "
            "tokens, `max_tokens`), `request_params_n` and `iteration_tokens` (of a step). They replace the family's "
            "buckets, under all names. Narrow buckets give exact quantiles; each bucket is one line of /metrics."
        ),
        examples=[{"time_to_first_token": [0.1, 0.5, 1, 5], "request_latency": [1, 10, 60]}],
        json_schema_extra=about(json_schema=_BUCKETS),
    )
    enable_logging_iteration_details: Flag = Field(
        False,
        description=(
            "Log a line for each step: rows, computed and sampled tokens, time, running and waiting sequences. For "
            "short investigations: a busy server executes hundreds of steps per second."
        ),
    )
    enable_mfu_metrics: Flag = Field(
        False,
        description=(
            "/metrics also has the operations of the steps and the bytes that they read and write "
            "(`stoker_estimated_flops_total`, `stoker_estimated_read_bytes_total`, "
            "`stoker_estimated_written_bytes_total`), estimated from the description of the model. Their rate divided "
            "by what the device can do is its used share, MFU and MBU."
        ),
    )
    kv_cache_metrics: Flag = Field(
        False,
        description=(
            "/metrics also has how long blocks of the KV cache are kept (`stoker_kv_block_lifetime_seconds`), how long "
            "they wait in vain before they are overwritten (`stoker_kv_block_idle_before_evict_seconds`), and how long "
            "until the prefix cache finds them again (`stoker_kv_block_reuse_gap_seconds`). If blocks are overwritten "
            "soon after their last use, a larger cache would help."
        ),
    )
    kv_cache_metrics_sample: Share = Field(
        0.01,
        description="Share of the allocated blocks that `kv_cache_metrics` measures; all of them with 1.",
        examples=[0.1],
    )
    cudagraph_metrics: Flag = Field(
        False,
        description=(
            "/metrics also has how steps were launched (`stoker_step_launches_total`: captured, as single kernels, or "
            "by the host's sampler) and how many rows and tokens they computed for padding only "
            "(`stoker_step_padding_rows_total`, `stoker_step_padding_tokens_total`), because a captured step has a "
            "size of `scheduler.cuda_graph_sizes`. On a CPU captured steps are not padded."
        ),
    )
    enable_layerwise_nvtx_tracing: Flag = Field(
        False,
        description=(
            "Mark every step and every layer with an NVTX range, for Nsight Systems. CUDA only, and only of steps that "
            "are not captured: a graph has no ranges."
        ),
        json_schema_extra=about(devices=("cuda",)),
    )
    profiler_config: dict[str, Any] = Field(
        {},
        description=(
            "Serve POST /start_profile and /stop_profile, which record a trace of the engine's steps with torch's "
            "profiler, under the names of vLLM: `profiler` is `torch`, `torch_profiler_dir` an absolute folder on the "
            "engine's machine. A recording ends by itself after `max_iterations` steps (100), and begins "
            "`delay_iterations` after its start. Requests are slower meanwhile: on a CPU captured steps are computed "
            "call by call. A trace has names and times, no text. With keys the routes need the scope `admin`."
        ),
        examples=[{"profiler": "torch", "torch_profiler_dir": "/var/tmp/profiles"}],
        json_schema_extra=about(json_schema=_PROFILER),
    )
    otlp_traces_endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s/?#]+([/][^\s]*)?$",
        description=(
            "Address of an OpenTelemetry collector that gets one span for each generating request, by OTLP over HTTP "
            "with protobuf; without a path, `/v1/traces`. Spans continue the trace of the client's `traceparent`. They "
            "contain counts, times and sampling parameters, never text. Needs the extra `otel`."
        ),
        examples=["http://localhost:4318", "https://collector:4318/v1/traces"],
        json_schema_extra=about(reload="process"),
    )
    collect_detailed_traces: TraceModules = Field(
        (),
        description=(
            "What spans show in addition: `worker` has child spans for queue, prefill and decode; `model` has "
            "attributes with the times of prefill, decode and both; `all` has everything. More spans are more data "
            "for the collector."
        ),
        examples=[["all"], ["model", "worker"]],
        json_schema_extra=about(reload="process", notation="commas"),
    )

    @property
    def block_metrics_sample(self) -> float:
        """Share of the allocated blocks that are measured; 0 without `kv_cache_metrics`."""
        return self.kv_cache_metrics_sample if self.kv_cache_metrics else 0.0

    def buckets(self, family: BucketFamily, default: Iterable[float]) -> tuple[float, ...]:
        """Upper limits of the family's buckets, ascending: the configured ones, else `default`."""
        return tuple(sorted({float(limit) for limit in self.custom_histogram_buckets.get(family, default)}))
