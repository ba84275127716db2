"""Metrics in Prometheus' text format, in a separate registry. Times are in seconds, sizes in tokens.

The server counts its own events as they happen. Metrics of the engine are its latest snapshot, read at each scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..engine.api import EngineStats
from ..engine.client import EngineState

_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)
_WHOLE = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)


class Metrics:
    """Counters and histograms, labelled with the served model's name."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self, model_name: str, stats: Callable[[], EngineStats], state: Callable[[], EngineState]) -> None:
        self._registry = CollectorRegistry()
        self._model = model_name
        self._num_generated = 0
        self._registry.register(_EngineCollector(model_name, stats, state))
        self.prompt_tokens = self._counter(
            "prompt_tokens", "Prompt tokens of requests that generated at least one token."
        )
        self.cached_tokens = self._counter(
            "cached_prompt_tokens", "Prompt tokens found in the prefix cache and not computed again."
        )
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self._finished = Counter(
            "stoker_requests_finished",
            "Sequences that ended, by reason: stop, length, abort (the client left or the server shut down), error.",
            ("model_name", "finish_reason"),
            registry=self._registry,
        )
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds",
            "Time from the arrival of a request to its first generated token.",
            _FIRST_TOKEN,
        )
        self.inter_token_latency = self._histogram(
            "inter_token_latency_seconds", "Time between two generated tokens of a sequence.", _BETWEEN
        )
        self.request_latency = self._histogram(
            "e2e_request_latency_seconds", "Time from the arrival of a request to its last generated token.", _WHOLE
        )
        self.request_prompt_tokens = self._histogram("request_prompt_tokens", "Prompt tokens per request.", _TOKENS)
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "Tokens generated per sequence.", _TOKENS
        )
        self._http = Counter(
            "stoker_http_requests",
            "HTTP requests answered, by route and status. Status 499: the client left before the response.",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self._unknown = Counter(
            "stoker_unknown_request_fields",
            "Unknown request fields that were ignored; their names are in the log.",
            ("route",),
            registry=self._registry,
        )
        for reason in ("stop", "length", "abort", "error"):  # so that every reason is exported from the start
            self._finished.labels(model_name, reason)

    def _counter(self, name: str, help_text: str) -> Counter:
        return Counter(f"stoker_{name}", help_text, ("model_name",), registry=self._registry).labels(self._model)

    def _histogram(self, name: str, help_text: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(
            f"stoker_{name}", help_text, ("model_name",), registry=self._registry, buckets=tuple(buckets)
        ).labels(self._model)

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return self._num_generated

    def generated(self, num_tokens: int) -> None:
        self._num_generated += num_tokens
        self.generation_tokens.inc(num_tokens)

    def finished(self, reason: str) -> None:
        self._finished.labels(self._model, reason).inc()

    def http_request(self, route: str, method: str, status: int) -> None:
        self._http.labels(route, method, str(status)).inc()

    def unknown_fields(self, route: str, count: int) -> None:
        self._unknown.labels(route).inc(count)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def described(self) -> list[Metric]:
        """Every metric family, with its name, type and help text."""
        return sorted(self._registry.collect(), key=lambda family: family.name)


class _EngineCollector(Collector):
    """The engine's snapshot as metrics. Its counters restart at zero with the engine."""

    def __init__(self, model: str, stats: Callable[[], EngineStats], state: Callable[[], EngineState]) -> None:
        self._model = model
        self._stats = stats
        self._state = state

    def describe(self) -> Iterator[Metric]:
        return self.collect()  # called at registration, for the names

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        used = stats.num_blocks - stats.num_free_blocks
        yield self._gauge("num_requests_running", "Sequences in the running batch.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Sequences waiting in the queue.", stats.num_waiting)
        yield self._gauge(
            "kv_cache_usage_ratio", "Share of KV cache blocks in use, 0 to 1.", used / max(1, stats.num_blocks)
        )
        yield self._gauge("kv_cache_blocks", "Number of KV cache blocks.", stats.num_blocks)
        yield self._count("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_queries)
        yield self._count("prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_hits)
        yield self._count(
            "preemptions", "Preemptions: a sequence gave its blocks back to make room and was run again later.",
            stats.num_preemptions,
        )  # fmt: skip
        yield self._count("engine_steps", "Steps the engine has executed.", stats.num_steps)
        yield self._count("engine_step_seconds", "Time the engine has spent in steps.", stats.step_time_s)
        state = GaugeMetricFamily(
            "stoker_engine_state",
            "1 for the current state of the engine, 0 for the others.",
            labels=("model_name", "state"),
        )
        now = self._state()
        for one in EngineState:
            state.add_metric((self._model, one.value), float(one is now))
        yield state

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"stoker_{name}", help_text, labels=("model_name",))
        family.add_metric((self._model,), value)
        return family

    def _count(self, name: str, help_text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"stoker_{name}", help_text, labels=("model_name",))
        family.add_metric((self._model,), value)
        return family
