"""Section `observability`: names of metrics, and traces."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from .refused import with_refused
from .section import Section, about
from .types import parse_one_or_more

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
        examples=[[]],
        json_schema_extra=about(reload="process", notation="commas"),
    )
