"""Section `kv_events`: events about KV blocks for routers outside."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from .section import Section, about
from .types import Flag

NO_EVENTS = "this build publishes no events; /metrics tells how the prefix cache does"


class KVEventsConfig(Section):
    """Events about KV blocks."""

    json_flags: ClassVar[tuple[str, ...]] = ("--kv-events-config",)

    enable_kv_cache_events: Flag = Field(
        False,
        description="Publish an event for each block that is stored or removed.",
        examples=[True],
        json_schema_extra=about(reload="process", devices=(), refused=NO_EVENTS),
    )
    publisher: Literal["null", "zmq"] = Field(
        "null",
        description="What carries the events.",
        examples=["null"],
        json_schema_extra=about(reload="process", devices=(), refused=NO_EVENTS),
    )
    endpoint: str | None = Field(
        None,
        min_length=1,
        description="Address of the publisher.",
        examples=["tcp://*:5557"],
        json_schema_extra=about(reload="process", devices=(), refused=NO_EVENTS),
    )
    topic: str = Field(
        "",
        description="Name under which events are published.",
        examples=[""],
        json_schema_extra=about(reload="process", devices=(), refused=NO_EVENTS),
    )
