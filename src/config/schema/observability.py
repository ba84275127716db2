"""Section `observability`: traces, and metrics of older releases."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from .section import Section, about
from .types import parse_one_or_more

NO_TRACES = "this build exports no traces; the log has one line of timings per request, /metrics the histograms"

TraceModules = Annotated[tuple[Literal["model", "worker", "all"], ...], BeforeValidator(parse_one_or_more)]


class ObservabilityConfig(Section):
    """Traces and metrics beyond /metrics."""

    show_hidden_metrics_for_version: str | None = Field(
        None,
        min_length=1,
        description="Publish metrics that were hidden since this release.",
        examples=["0.1"],
        json_schema_extra=about(reload="process", devices=(), refused="no release has hidden a metric yet"),
    )
    otlp_traces_endpoint: str | None = Field(
        None,
        min_length=1,
        description="Collector of OpenTelemetry that traces are sent to.",
        examples=["http://localhost:4317"],
        json_schema_extra=about(reload="process", devices=(), refused=NO_TRACES),
    )
    collect_detailed_traces: TraceModules = Field(
        (),
        description="Modules that are timed in detail.",
        examples=[["model"]],
        json_schema_extra=about(notation="commas", reload="process", devices=(), refused=NO_TRACES),
    )
