"""Section `observability`: names of metrics, and traces."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from .refused import with_refused
from .section import Section, about
from .types import parse_one_or_more

TraceModules = Annotated[tuple[Literal["model", "worker", "all"], ...], BeforeValidator(parse_one_or_more)]
MetricDialect = Literal["vllm"]
MetricDialects = Annotated[tuple[MetricDialect, ...], BeforeValidator(parse_one_or_more)]


@with_refused("observability")
class ObservabilityConfig(Section):
    """Names of metrics, and traces."""

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
