"""Metrics in Prometheus' text format, in a separate registry. Times are in seconds, sizes in tokens.

The server counts its own events as they happen. Metrics of the engine are its latest snapshot, read at each scrape.
A metric that vLLM has too is exported a second time under vLLM's names, for dashboards, autoscalers and routers that
read those; the declaration of the metric lists them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.samples import Sample

from ...config.schema.observability import BucketFamily, ObservabilityConfig, has_hidden_metrics
from ...engine.api import Distribution, EngineStats, StepLaunches, Work
from ...engine.client.engine_client import EngineState

# Buckets: ours, and those of vLLM, with which its dashboards and autoscalers compute. A histogram has both; its copy
# under vLLM's name has vLLM's alone.
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)
_WHOLE = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0)
_PART = (0.001, 0.01, *_WHOLE)
_PARAMS_N = (1, 2, 5, 10, 20)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # variable of the library, set before the process starts
_VLLM_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
_VLLM_BETWEEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_VLLM_WHOLE = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
_VLLM_LABELS = {"finish_reason": "finished_reason", "num_blocks": "num_gpu_blocks"}
TokenKind = Literal["prompt", "generated"]
_NOTHING = Distribution((), 0, 0.0)
# A snapshot with everything that options add, for descriptions of all metrics.
ALL_STATS = EngineStats(
    block_lifetimes=_NOTHING,
    block_idle_times=_NOTHING,
    block_reuse_gaps=_NOTHING,
    work=Work(),
    launches=StepLaunches(),
    expert_balance=1.0,
)


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """One engine at a scrape."""

    stats: EngineStats
    state: EngineState


_LABELS = ("model_name", "engine")  # of an engine's metrics
Engines = Callable[[], Mapping[int, EngineSnapshot]]  # the engines of the server, by the rank of the replica


class VllmNames:
    """Metric family -> its names in vLLM, as declared with the family; and families under those names."""

    def __init__(self, *, is_exported: bool = True, has_hidden: bool = False, rank: int = 0) -> None:
        """
        has_hidden: include names that vLLM has hidden.
        rank: of the first replica, under which vLLM's metrics have what the server counts.
        """
        self._rank = str(rank)
        self._is_exported = is_exported
        self._has_hidden = has_hidden
        self._names: dict[str, tuple[str, ...]] = {}
        self._buckets: dict[str, frozenset[float]] = {}

    def declare(
        self,
        family: str,
        names: tuple[str, ...],
        buckets: Iterable[float] | None = None,
        hidden: tuple[str, ...] = (),
    ) -> None:
        """buckets: upper limits of those that a histogram has in vLLM. hidden: names that vLLM has hidden."""
        self._names[family] = names + hidden * self._has_hidden
        if buckets is not None:
            self._buckets[family] = frozenset((*buckets, math.inf))

    def of(self, family: str) -> tuple[str, ...]:
        """Without the ending of the samples, such as `_total`."""
        return tuple(f"vllm:{name}" for name in self._names.get(family, ()))

    def copies(self, family: Metric) -> Iterator[Metric]:
        """The family under each of its names in vLLM."""
        if not self._is_exported:
            return
        buckets = self._buckets.get(family.name)
        for name in self.of(family.name):
            copy = Metric(name, f"{family.documentation} As {family.name}.", family.type)
            for sample in family.samples:
                if buckets is not None and "le" in sample.labels and float(sample.labels["le"]) not in buckets:
                    continue
                labels = {_VLLM_LABELS.get(label, label): value for label, value in sample.labels.items()}
                full = name + sample.name.removeprefix(family.name)
                copy.samples.append(Sample(full, {"engine": self._rank, **labels}, sample.value))
            yield copy

    def hidden(self, engines: Mapping[int, EngineSnapshot], model: str) -> Iterator[Metric]:
        """Metrics that vLLM has hidden, and that no other metric replaces."""
        if not (self._is_exported and self._has_hidden):
            return
        for name, help_text, value in (
            ("num_requests_swapped", "Sequences swapped to the CPU: always 0.", lambda stats: 0.0),
            (
                "cpu_cache_usage_perc",
                "Share of a KV cache in CPU memory beside the device's: always 0.",
                lambda stats: 0.0,
            ),
            (
                "gpu_prefix_cache_hit_rate",
                "Share of the prompt tokens looked up in the prefix cache that were found, since the start.",
                lambda stats: stats.prefix_hits / max(1, stats.prefix_queries),
            ),
        ):
            family = GaugeMetricFamily(f"vllm:{name}", help_text, labels=("model_name", "engine"))
            for rank, engine in engines.items():
                family.add_metric((model, str(rank)), value(engine.stats))
            yield family


def one_two_five(highest: int) -> list[int]:
    """1, 2, 5, 10, 20, ... up to `highest`: vLLM's buckets for numbers of tokens."""
    found: list[int] = []
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power > highest:
                return found
            found.append(factor * power)
        power *= 10


class Metrics:
    """Counters and histograms, labelled with the served model's name."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(
        self,
        model_name: str,
        engines: Engines,
        *,
        block_size: int = 16,
        max_model_len: int = 1 << 20,
        settings: ObservabilityConfig | None = None,
    ) -> None:
        settings = settings or ObservabilityConfig()
        self._settings = settings
        self._registry = CollectorRegistry()
        self._model = model_name
        self._engines = engines
        self._num_generated = 0
        self._vllm_names = VllmNames(
            is_exported="vllm" in settings.metric_dialects,
            has_hidden=has_hidden_metrics(settings.show_hidden_metrics_for_version),
            rank=min(engines()),
        )
        self._engine = _EngineCollector(model_name, engines, block_size, self._vllm_names)
        # In several API processes the library stores values in files, and this collector adds them up.
        self._summed = MultiProcessCollector(None) if SHARED_FOLDER in os.environ else None  # type: ignore[no-untyped-call]
        self.prompt_tokens = self._counter(
            "prompt_tokens",
            "Prompt tokens of requests that generated at least one token.",
            vllm=("prompt_tokens",),
        )
        self.cached_tokens = self._counter(
            "cached_prompt_tokens",
            "Prompt tokens found in the prefix cache and not computed again.",
            vllm=("prompt_tokens_cached",),
        )
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.", vllm=("generation_tokens",))
        self._vllm_names.declare("stoker_requests_finished", ("request_success",))
        self._finished = Counter(
            "stoker_requests_finished",
            "Sequences that ended, by reason: stop, length, abort (the client left or the server shut down), error.",
            ("model_name", "finish_reason"),
            registry=self._registry,
        )
        self.time_to_first_token = self._histogram(
            "time_to_first_token",
            "time_to_first_token_seconds",
            "Time from the arrival of a request to its first generated token.",
            _FIRST_TOKEN,
            _VLLM_FIRST_TOKEN,
            vllm=("time_to_first_token_seconds",),
        )
        self.inter_token_latency = self._histogram(
            "inter_token_latency",
            "inter_token_latency_seconds",
            "Time between two generated tokens of a sequence.",
            _BETWEEN,
            _VLLM_BETWEEN,
            vllm=("inter_token_latency_seconds", "time_per_output_token_seconds"),
        )
        self.time_per_output_token = self._histogram(
            "inter_token_latency",
            "request_time_per_output_token_seconds",
            "Mean time between two generated tokens, per sequence.",
            _BETWEEN,
            _VLLM_BETWEEN,
            vllm=("request_time_per_output_token_seconds",),
        )
        self.request_latency = self._histogram(
            "request_latency",
            "e2e_request_latency_seconds",
            "Time from the arrival of a request to its last generated token.",
            _WHOLE,
            _VLLM_WHOLE,
            vllm=("e2e_request_latency_seconds",),
        )
        self.request_queue_time = self._histogram(
            "request_latency",
            "request_queue_time_seconds",
            "Time of a sequence in the queue of the engine, until a step first computes it.",
            _PART,
            _VLLM_WHOLE,
            vllm=("request_queue_time_seconds",),
            hidden=("time_in_queue_requests",),
        )
        self.request_prefill_time = self._histogram(
            "request_latency",
            "request_prefill_time_seconds",
            "Time of a sequence from the end of the queue to its first generated token.",
            _PART,
            _VLLM_WHOLE,
            vllm=("request_prefill_time_seconds",),
        )
        self.request_decode_time = self._histogram(
            "request_latency",
            "request_decode_time_seconds",
            "Time of a sequence from its first to its last generated token.",
            _PART,
            _VLLM_WHOLE,
            vllm=("request_decode_time_seconds",),
        )
        self.request_inference_time = self._histogram(
            "request_latency",
            "request_inference_time_seconds",
            "Time of a sequence from the end of the queue to its last generated token: prefill and decode.",
            _PART,
            _VLLM_WHOLE,
            vllm=("request_inference_time_seconds",),
        )
        tokens = one_two_five(max_model_len)
        self.request_prompt_tokens = self._histogram(
            "request_tokens",
            "request_prompt_tokens",
            "Prompt tokens per request.",
            _TOKENS,
            tokens,
            vllm=("request_prompt_tokens",),
        )
        self.request_generation_tokens = self._histogram(
            "request_tokens",
            "request_generation_tokens",
            "Tokens generated per sequence.",
            _TOKENS,
            tokens,
            vllm=("request_generation_tokens",),
        )
        self.request_max_generation_tokens = self._histogram(
            "request_tokens",
            "request_max_generation_tokens",
            "Tokens of the longest of the `n` sequences generated for a prompt.",
            _TOKENS,
            tokens,
            vllm=("request_max_num_generation_tokens",),
        )
        self.request_params_max_tokens = self._histogram(
            "request_tokens",
            "request_params_max_tokens",
            "Maximum number of tokens to generate per prompt, as requested or limited by the context.",
            _TOKENS,
            tokens,
            vllm=("request_params_max_tokens",),
        )
        self.request_params_n = self._histogram(
            "request_params_n",
            "request_params_n",
            "Sequences to generate per prompt, the parameter `n`.",
            _PARAMS_N,
            _PARAMS_N,
            vllm=("request_params_n",),
        )
        self._http = Counter(
            "stoker_http_requests",
            "HTTP requests answered, by route and status. Status 499: the client left before the response.",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self._key_requests = Counter(
            "stoker_key_requests",
            "HTTP requests with a named key, by its name and status. Status 429: a limit, or the full queue.",
            ("key", "status"),
            registry=self._registry,
        )
        self._key_tokens = Counter(
            "stoker_key_tokens",
            "Tokens of requests with a named key, by its name and kind: prompt or generated.",
            ("key", "kind"),
            registry=self._registry,
        )
        self._unknown = Counter(
            "stoker_unknown_request_fields",
            "Unknown request fields that were ignored; their names are in the log.",
            ("route",),
            registry=self._registry,
        )
        self._normalised = Counter(
            "stoker_normalised_messages",
            "Changes to messages of coding agents, by rule (`server.agents_normalise`, `second_system_message`).",
            ("rule",),
            registry=self._registry,
        )
        self._prefilled = Counter(
            "stoker_prefill_requests",
            "Prompts sent to `kv_transfer.prefill_servers`: `computed` there, or `failed` and computed here.",
            ("outcome",),
            registry=self._registry,
        )
        self._prefill_unused = self._counter(
            "prefill_unused",
            "Prompts that a prefill server has computed and none of whose blocks was read, so that they were computed "
            "here too.",
        )
        self._diverged = self._counter(
            "session_prefix_divergences",
            "Requests of a session whose prompt does not begin with the previous prompt of that session.",
        )
        self._diverged_tokens = self._counter(
            "session_prefix_diverged_tokens",
            "Tokens of previous prompts after the place where the next prompt of their session diverges.",
        )
        for reason in ("stop", "length", "abort", "error"):  # so that every reason is exported from the start
            self._finished.labels(model_name, reason)

    def _counter(self, name: str, help_text: str, *, vllm: tuple[str, ...] = ()) -> Counter:
        self._vllm_names.declare(f"stoker_{name}", vllm)
        return Counter(f"stoker_{name}", help_text, ("model_name",), registry=self._registry).labels(self._model)

    def _histogram(
        self,
        buckets_of: BucketFamily,
        name: str,
        help_text: str,
        buckets: Iterable[float],
        vllm_buckets: Iterable[float],
        *,
        vllm: tuple[str, ...] = (),
        hidden: tuple[str, ...] = (),
    ) -> Histogram:
        vllm_buckets = self._settings.buckets(buckets_of, vllm_buckets)
        both = sorted({*self._settings.buckets(buckets_of, buckets), *vllm_buckets})
        self._vllm_names.declare(f"stoker_{name}", vllm, vllm_buckets, hidden)
        return Histogram(f"stoker_{name}", help_text, ("model_name",), registry=self._registry, buckets=both).labels(
            self._model
        )

    @property
    def num_generated(self) -> int:
        """Tokens generated so far, in all API processes."""
        if self._summed is None:
            return self._num_generated
        family = next((each for each in self._own_families() if each.name == "stoker_generation_tokens"), None)
        return 0 if family is None else int(sum(sample.value for sample in family.samples))

    def generated(self, num_tokens: int) -> None:
        self._num_generated += num_tokens
        self.generation_tokens.inc(num_tokens)

    def finished(self, reason: str) -> None:
        self._finished.labels(self._model, reason).inc()

    def http_request(self, route: str, method: str, status: int) -> None:
        self._http.labels(route, method, str(status)).inc()

    def normalised(self, removed: Mapping[str, int]) -> None:
        for rule, count in removed.items():
            self._normalised.labels(rule).inc(count)

    def prefilled(self, *, is_computed: bool) -> None:
        self._prefilled.labels("computed" if is_computed else "failed").inc()

    def prefill_unused(self) -> None:
        self._prefill_unused.inc()

    def prefix_diverged(self, num_tokens: int) -> None:
        self._diverged.inc()
        self._diverged_tokens.inc(num_tokens)

    def key_request(self, key: str, status: int) -> None:
        """key: its name. Names come from the operator's file, which has a limited number of them."""
        self._key_requests.labels(key, str(status)).inc()

    def key_tokens(self, key: str, kind: TokenKind, num_tokens: int) -> None:
        self._key_tokens.labels(key, kind).inc(num_tokens)

    def unknown_fields(self, route: str, count: int) -> None:
        self._unknown.labels(route).inc(count)

    def collect(self) -> Iterator[Metric]:
        """Every metric family, followed by itself under its names in vLLM."""
        for family in self._families():
            yield family
            yield from self._vllm_names.copies(family)
        yield from self._vllm_names.hidden(self._engines(), self._model)

    def _families(self) -> Iterator[Metric]:
        yield from self._engine.collect()
        yield from self._own_families()

    def _own_families(self) -> Iterator[Metric]:
        """What the server counts, in all API processes."""
        if self._summed is None:
            return iter(self._registry.collect())
        families: Iterable[Metric] = self._summed.collect()  # type: ignore[no-untyped-call]
        return iter(families)

    def render(self) -> bytes:
        return generate_latest(self)

    def described(self) -> list[tuple[Metric, tuple[str, ...]]]:
        """Every metric family, with its name, type and help text; and its names in vLLM."""
        families = sorted(self._families(), key=lambda family: family.name)
        return [(family, self._vllm_names.of(family.name)) for family in families]


class _EngineCollector:
    """The engine's snapshot as metrics. Its counters restart at zero with the engine."""

    def __init__(self, model: str, engines: Engines, block_size: int, vllm_names: VllmNames) -> None:
        self._model = model
        self._engines = engines
        self._block_size = block_size
        self._vllm_names = vllm_names

    def collect(self) -> Iterator[Metric]:
        """Each family once, with samples of all engines."""
        found: dict[str, Metric] = {}
        for rank, engine in self._engines().items():
            for family in _EngineFamilies((self._model, str(rank)), self._block_size, self._vllm_names).of(engine):
                if family.name in found:
                    found[family.name].samples += family.samples
                else:
                    found[family.name] = family
        yield from found.values()


class _EngineFamilies:
    """The metrics of one engine."""

    def __init__(self, labels: tuple[str, str], block_size: int, vllm_names: VllmNames) -> None:
        """labels: values of _LABELS."""
        self._labels = labels
        self._block_size = block_size
        self._vllm_names = vllm_names

    def of(self, engine: EngineSnapshot) -> Iterator[Metric]:
        stats = engine.stats
        used = stats.num_blocks - stats.num_free_blocks
        yield self._gauge(
            "num_requests_running",
            "Sequences in the running batch.",
            stats.num_running,
            vllm=("num_requests_running",),
        )
        yield self._gauge(
            "num_requests_waiting",
            "Sequences waiting in the queue.",
            stats.num_waiting,
            vllm=("num_requests_waiting",),
        )
        yield self._gauge(
            "kv_cache_usage_ratio",
            "Share of KV cache blocks in use, 0 to 1.",
            used / max(1, stats.num_blocks),
            vllm=("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        )
        yield self._cache_config(stats.num_blocks)
        yield self._gauge("kv_cache_blocks", "Number of KV cache blocks.", stats.num_blocks)
        yield self._count(
            "prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache.",
            stats.prefix_queries,
            vllm=("prefix_cache_queries", "gpu_prefix_cache_queries"),
        )
        yield self._count(
            "prefix_cache_hits",
            "Prompt tokens found in the prefix cache.",
            stats.prefix_hits,
            vllm=("prefix_cache_hits", "gpu_prefix_cache_hits"),
        )
        yield self._count(
            "external_prefix_cache_queries",
            "Prompt tokens looked up in host memory, files and other engines, after those in the prefix cache.",
            stats.store_queries,
            vllm=("external_prefix_cache_queries",),
        )
        yield self._count(
            "external_prefix_cache_hits",
            "Prompt tokens whose KV blocks were read from there: a part of prefix_cache_hits.",
            stats.store_hits,
            vllm=("external_prefix_cache_hits",),
        )
        yield self._count(
            "kv_store_failures",
            "Reads and writes of KV blocks there that have failed. The tokens are computed.",
            stats.store_failures,
        )
        yield self._count(
            "preemptions",
            "Preemptions: a sequence gave its blocks back to make room and was run again later.",
            stats.num_preemptions,
            vllm=("num_preemptions",),
        )
        yield self._count("engine_steps", "Steps the engine has executed.", stats.num_steps)
        yield self._count("engine_step_seconds", "Time the engine has spent in steps.", stats.step_time_s)
        yield self._step_tokens(stats)
        yield from self._block_times(stats)
        yield from self._work(stats)
        yield from self._launches(stats)
        if stats.expert_balance is not None:
            yield self._gauge(
                "expert_balancedness",
                "Mean load of the processes that share the experts, divided by the largest, in the last window before "
                "experts moved; of a pipeline, of the stage where it is smallest.",
                stats.expert_balance,
            )
        state = GaugeMetricFamily(
            "stoker_engine_state",
            "1 for the current state of the engine, 0 for the others.",
            labels=(*_LABELS, "state"),
        )
        for one in EngineState:
            state.add_metric((*self._labels, one.value), float(one is engine.state))
        yield state

    def _step_tokens(self, stats: EngineStats) -> Metric:
        self._vllm_names.declare("stoker_engine_step_tokens", ("iteration_tokens_total",))
        help_text = "Tokens that a step computes: of prompts, and one per sequence that generates."
        family = HistogramMetricFamily("stoker_engine_step_tokens", help_text, labels=_LABELS)
        buckets = [*((str(float(limit)), count) for limit, count in stats.step_tokens), ("+Inf", stats.num_steps)]
        family.add_metric(self._labels, buckets, stats.num_step_tokens)
        return family

    def _work(self, stats: EngineStats) -> Iterator[Metric]:
        if (work := stats.work) is None:
            return
        for name, what, value, vllm in (
            ("flops", "Operations of the steps", work.flops, "estimated_flops_per_gpu"),
            ("read_bytes", "Bytes that the steps read", work.read_bytes, "estimated_read_bytes_per_gpu"),
            ("written_bytes", "Bytes that the steps wrote", work.written_bytes, "estimated_write_bytes_per_gpu"),
        ):
            help_text = f"{what}, estimated from the description of the model."
            yield self._count(f"estimated_{name}", help_text, value, vllm=(vllm,))

    def _launches(self, stats: EngineStats) -> Iterator[Metric]:
        if (launches := stats.launches) is None:
            return
        help_text = "Steps by how they were launched: captured, kernel by kernel, or with the host's sampler."
        family = CounterMetricFamily("stoker_step_launches", help_text, labels=(*_LABELS, "mode"))
        for mode in ("captured", "kernels", "host"):
            family.add_metric((*self._labels, mode), getattr(launches, mode))
        yield family
        yield self._count("step_padding_rows", "Rows computed to fill captured steps.", launches.padding_rows)
        yield self._count("step_padding_tokens", "Tokens computed to fill captured steps.", launches.padding_tokens)

    def _block_times(self, stats: EngineStats) -> Iterator[Metric]:
        for name, times, help_text in (
            ("lifetime", stats.block_lifetimes, "Time from the allocation of a KV cache block to its eviction."),
            ("idle_before_evict", stats.block_idle_times, "Time from the last use of a block to its eviction."),
            ("reuse_gap", stats.block_reuse_gaps, "Time from the end of a block's use to its next one."),
        ):
            if times is None:
                continue
            full = f"stoker_kv_block_{name}_seconds"
            self._vllm_names.declare(full, (f"kv_block_{name}_seconds",))
            family = HistogramMetricFamily(full, f"{help_text} Of a sample of the blocks.", labels=_LABELS)
            buckets = [*((str(limit), count) for limit, count in times.buckets), ("+Inf", times.count)]
            family.add_metric(self._labels, buckets, times.total)
            yield family

    def _cache_config(self, num_blocks: int) -> Metric:
        labels = {
            **dict(zip(_LABELS, self._labels, strict=True)),
            "block_size": str(self._block_size),
            "num_blocks": str(num_blocks),
        }
        self._vllm_names.declare("stoker_cache_config_info", ("cache_config_info",))
        help_text = "Always 1; the labels are the tokens of a KV cache block and the number of blocks."
        family = GaugeMetricFamily("stoker_cache_config_info", help_text, labels=tuple(labels))
        family.add_metric(tuple(labels.values()), 1)
        return family

    def _gauge(self, name: str, help_text: str, value: float, *, vllm: tuple[str, ...] = ()) -> Metric:
        self._vllm_names.declare(f"stoker_{name}", vllm)
        family = GaugeMetricFamily(f"stoker_{name}", help_text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _count(self, name: str, help_text: str, value: float, *, vllm: tuple[str, ...] = ()) -> Metric:
        self._vllm_names.declare(f"stoker_{name}", vllm)
        family = CounterMetricFamily(f"stoker_{name}", help_text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family
