"""Metrics in Prometheus' text format. Times are in seconds, sizes in tokens.

The server counts its own events as they happen. Metrics of the engine are its latest snapshot, read at each scrape.
A metric that vLLM has too is exported a second time under vLLM's names, for dashboards, autoscalers and routers that
read those; the declaration of the metric lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric

from ...config.resolve.gpu import GpuUsage
from ...config.schema.observability import ObservabilityConfig, has_hidden_metrics
from .declared import Declared
from .engine_metrics import EngineCollector, Engines, gpu_families
from .request_histograms import RequestSizes, RequestTimes
from .vllm_names import VllmNames

TokenKind = Literal["prompt", "generated"]


class Metrics:
    """What one server counts, and what it reads of its engines and GPUs."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(
        self,
        model_name: str,
        engines: Engines,
        *,
        block_size: int = 16,
        max_model_len: int = 1 << 20,
        settings: ObservabilityConfig | None = None,
        gpus: Callable[[], Iterable[GpuUsage]] = tuple,
        max_loras: int = 0,
    ) -> None:
        """max_loras: adapters of a step; 0: none are served. gpus: GPUs of this machine that the engines use."""
        settings = settings or ObservabilityConfig()
        self._gpus, self._model = gpus, model_name
        self._vllm_names = VllmNames(
            is_exported="vllm" in settings.metric_dialects,
            has_hidden=has_hidden_metrics(settings.show_hidden_metrics_for_version),
            rank=min(engines()),
        )
        self._engine = EngineCollector(model_name, engines, block_size, max_model_len, self._vllm_names, max_loras)
        self._declared = declared = Declared(model_name, settings, self._vllm_names)
        self._num_generated = 0
        self.times = RequestTimes(declared)
        self.sizes = RequestSizes(declared, max_model_len)
        self.prompt_tokens = declared.counter(
            "prompt_tokens",
            "Tokens of prompts that were computed or found in the cache.",
            vllm=("prompt_tokens",),
        )
        self.cached_tokens = declared.counter(
            "cached_prompt_tokens",
            "Prompt tokens found in the prefix cache and not computed again.",
            vllm=("prompt_tokens_cached",),
        )
        self._generation_tokens = declared.counter(
            "generation_tokens", "Tokens generated.", vllm=("generation_tokens",)
        )
        self.admission_rejections = declared.counter(
            "admission_rejections",
            "Requests that were refused because the queue was full (429).",
            vllm=("admission_rejections",),
        )
        self._finished = declared.labelled(
            "requests_finished",
            "Sequences that ended, by reason: stop, length, abort (the client left or the server shut down), error.",
            *("model_name", "finish_reason"),
            vllm=("request_success",),
        )
        for reason in ("stop", "length", "abort", "error"):  # so that every reason is exported from the start
            self._finished.labels(model_name, reason)
        self._http = declared.labelled(
            "http_requests",
            "HTTP requests answered, by route and status. Status 499: the client left before the response.",
            *("route", "method", "status"),
        )
        self._key_requests = declared.labelled(
            "key_requests",
            "HTTP requests with a named key, by its name and status. Status 429: a limit, or the full queue.",
            *("key", "status"),
        )
        self._key_tokens = declared.labelled(
            "key_tokens",
            "Tokens of requests with a named key, by its name and kind: prompt or generated.",
            *("key", "kind"),
        )
        self._unknown = declared.labelled(
            "unknown_request_fields", "Unknown request fields that were ignored; their names are in the log.", "route"
        )
        self._normalised = declared.labelled(
            "normalised_messages",
            "Changes to messages of coding agents, by rule (`server.agents_normalise`, `second_system_message`).",
            "rule",
        )
        self._prefilled = declared.labelled(
            "prefill_requests",
            "Prompts sent to `kv_transfer.prefill_servers`: `computed` there, or `failed` and computed here.",
            "outcome",
        )
        self._prefill_unused = declared.counter(
            "prefill_unused",
            "Prompts that a prefill server has computed and none of whose blocks was read, so that they were computed "
            "here too.",
        )
        self._diverged = declared.counter(
            "session_prefix_divergences",
            "Requests of a session whose prompt does not begin with the previous prompt of that session.",
        )
        self._diverged_tokens = declared.counter(
            "session_prefix_diverged_tokens",
            "Tokens of previous prompts after the place where the next prompt of their session diverges.",
        )

    @property
    def num_generated(self) -> int:
        """Tokens generated so far, in all API processes."""
        total = self._declared.total("generation_tokens")
        return self._num_generated if total is None else int(total)

    def generated(self, num_tokens: int) -> None:
        self._num_generated += num_tokens
        self._generation_tokens.inc(num_tokens)

    def finished(self, reason: str, num: int = 1) -> None:
        self._finished.labels(self._model, reason).inc(num)

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
        yield from self._engine.hidden()

    def _families(self) -> Iterator[Metric]:
        yield from self._engine.collect()
        yield from gpu_families(self._model, list(self._gpus()))
        yield from self._declared.collect()

    def render(self) -> bytes:
        return generate_latest(self)

    def described(self) -> list[tuple[Metric, tuple[str, ...]]]:
        """Every metric family, with its name, type and help text; and its names in vLLM."""
        families = sorted(self._families(), key=lambda family: family.name)
        return [(family, self._vllm_names.of(family.name)) for family in families]
