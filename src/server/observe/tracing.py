"""Traces: one span for each generating request, for an OpenTelemetry collector (`observability.otlp_traces_endpoint`).

A span is made when its request has ended, from times that were taken for the log and the metrics anyway. It continues
the trace of the header `traceparent`. Names of attributes: OpenTelemetry's conventions for generative AI, and
attributes that dashboards for vLLM read. The packages of the extra `otel` are imported only if there is a collector.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from ...config.schema.observability import ObservabilityConfig
from ...engine.api import SamplingParams

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

SPAN_NAME = "llm_request"  # as vLLM's
DEFAULT_PATH = "/v1/traces"
FLUSH_LIMIT_S = 2.0  # at a shutdown
_CARRIED = ("traceparent", "tracestate")
_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/responses": "chat", "/v1/messages": "chat"}


class TracingProblem(Exception):
    """Traces cannot be exported."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Times of a request's first sequence, by the service's clock: sent to the engine, in its queue, its tokens."""

    submitted_at: float
    queued_s: float
    first_token_at: float
    last_token_at: float


@dataclass(slots=True)
class TracedRequest:
    """What a span shows. Filled as the request is served.

    log_fields: of its access log line.
    """

    headers: Sequence[tuple[bytes, bytes]]
    route: str
    arrived_at: float
    log_fields: Mapping[str, Any]
    status: int = 0
    sampling: SamplingParams | None = None
    phases: Phases | None = None


class Tracing:
    def __init__(self, settings: ObservabilityConfig, model: str, exporter: SpanExporter | None = None) -> None:
        """exporter: else OTLP over HTTP. Raises TracingProblem."""
        details = set(settings.collect_detailed_traces)
        self._has_spans = bool(details & {"worker", "all"})
        self._has_model_times = bool(details & {"model", "all"})
        self._model = model
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            if exporter is None:
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

                exporter = OTLPSpanExporter(endpoint=with_path(settings.otlp_traces_endpoint or ""))
        except ImportError as error:
            message = f"`observability.otlp_traces_endpoint` needs the packages of the extra `otel`: {error}"
            raise TracingProblem(message) from None
        name = os.environ.get("OTEL_SERVICE_NAME", "stoker")
        self._provider = TracerProvider(resource=Resource.create({"service.name": name}), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer: Tracer = self._provider.get_tracer("stoker")
        self._propagator = TraceContextTextMapPropagator()

    def record(self, request: TracedRequest, now: float) -> None:
        """Send the span of a request that has ended. now: by the service's clock."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        offset = time.time() - now

        def nanoseconds(moment: float) -> int:
            return int((moment + offset) * 1e9)

        attributes = self._attributes(request, now)
        span = self._tracer.start_span(
            SPAN_NAME,
            self._parent(request.headers),
            SpanKind.SERVER,
            attributes,
            start_time=nanoseconds(request.arrived_at),
        )
        if request.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        if self._has_spans and (phases := request.phases) is not None:
            begins = (phases.submitted_at, phases.submitted_at + phases.queued_s, phases.first_token_at)
            ends = (*begins[1:], phases.last_token_at)
            for name, begin, end in zip(("queue", "prefill", "decode"), begins, ends, strict=True):
                inner = self._tracer.start_span(name, set_span_in_context(span), start_time=nanoseconds(begin))
                inner.end(nanoseconds(end))
        span.end(nanoseconds(now))

    def close(self) -> None:
        """Send what is left. Blocks for at most FLUSH_LIMIT_S if the collector does not answer."""
        self._provider.force_flush(int(FLUSH_LIMIT_S * 1000))

    def _parent(self, headers: Sequence[tuple[bytes, bytes]]) -> Context:
        sent = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        return self._propagator.extract({name: sent[name] for name in _CARRIED if name in sent})

    def _attributes(self, request: TracedRequest, now: float) -> dict[str, Any]:
        fields = request.log_fields
        found: dict[str, Any] = {
            "gen_ai.operation.name": _OPERATIONS.get(request.route, "text_completion"),
            "gen_ai.provider.name": "stoker",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
            "gen_ai.request.id": fields.get("id"),
            "gen_ai.response.id": fields.get("id"),
            "gen_ai.usage.input_tokens": fields.get("prompt_tokens"),
            "gen_ai.usage.prompt_tokens": fields.get("prompt_tokens"),
            "gen_ai.usage.cache_read.input_tokens": fields.get("cached_tokens"),
            "gen_ai.usage.output_tokens": fields.get("generated_tokens"),
            "gen_ai.usage.completion_tokens": fields.get("generated_tokens"),
            "gen_ai.latency.time_to_first_token": fields.get("first_token_s"),
            "gen_ai.latency.e2e": now - request.arrived_at,
            "http.route": request.route,
            "http.response.status_code": request.status,
            "error.type": fields.get("code") or fields.get("error"),
            "stoker.key": fields.get("key"),
        }
        if finish := fields.get("finish"):
            found["gen_ai.response.finish_reasons"] = finish.split(",")
        if (sampling := request.sampling) is not None:
            found["gen_ai.request.max_tokens"] = sampling.max_tokens
            found["gen_ai.request.temperature"] = sampling.temperature
            found["gen_ai.request.top_p"] = sampling.top_p
            found["gen_ai.request.n"] = sampling.n
        if (phases := request.phases) is not None:
            found["gen_ai.latency.time_in_queue"] = phases.queued_s
            if self._has_model_times:
                prefill_s = max(0.0, phases.first_token_at - phases.submitted_at - phases.queued_s)
                decode_s = phases.last_token_at - phases.first_token_at
                found["gen_ai.latency.time_in_model_prefill"] = prefill_s
                found["gen_ai.latency.time_in_model_decode"] = decode_s
                found["gen_ai.latency.time_in_model_inference"] = prefill_s + decode_s
        return {name: value for name, value in found.items() if value is not None}


def with_path(endpoint: str) -> str:
    """The address that spans are sent to: a collector's address without a path has the usual one."""
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(path=DEFAULT_PATH)) if parts.path in ("", "/") else endpoint
