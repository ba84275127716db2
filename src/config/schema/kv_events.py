"""Section `kv_events`: events about KV blocks for external routers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from .section import Section, about
from .types import Count, Flag

_ADDRESS = r"^(tcp://\S+:([0-9]+|\*)|ipc://\S+)$"
Address = Annotated[str, Field(pattern=_ADDRESS)]


class KVEventsConfig(Section):
    """Events about KV blocks."""

    json_flags: ClassVar[tuple[str, ...]] = ("--kv-events-config",)

    enable_kv_cache_events: Flag = Field(
        False,
        description=(
            "Publish an event over ZMQ for each block that the prefix cache stores or removes, so that a router can "
            "send a prompt to the server that has most of it. Events contain the token ids of prompts, and every "
            "program that reaches the port can read them."
        ),
    )
    publisher: Literal["zmq"] = Field(  # not "null" too: on a command line that means the default
        "zmq",
        description="Transport of the events: ZMQ, the one that routers read.",
        examples=["zmq"],
        json_schema_extra=about(refused={"null": "without `enable_kv_cache_events: true` no events are published"}),
    )
    endpoint: Address = Field(
        "tcp://*:5557",
        description=(
            "Address of the publisher (PUB). Subscribers connect to it if it is `ipc://` or has `*`, `::` or "
            "`0.0.0.0` as its host; otherwise the publisher connects to a subscriber that listens there. The port "
            "grows by the rank of the replica, as that of `replay_endpoint` does."
        ),
        examples=["tcp://*:5557", "tcp://router:5557", "ipc:///run/stoker/events"],
    )
    replay_endpoint: Address | None = Field(
        None,
        description=(
            "Address of a second socket (ROUTER), which sends events again from a sequence number, or a snapshot of "
            "what is cached. Without it, a subscriber that connects late does not learn of blocks stored before."
        ),
        examples=["tcp://*:5558", "ipc:///run/stoker/replay"],
    )
    topic: str = Field(
        "",
        description="First frame of each message, by which subscribers filter. llm-d reads `kv@POD@MODEL`.",
        examples=["kv@10.0.0.1@Qwen/Qwen3-0.6B"],
    )
    buffer_steps: Count = Field(
        10_000,
        description="Batches of events kept for replay; a step makes at most one. More of them take more memory.",
        examples=[10_000],
        json_schema_extra=about(unit="batches"),
    )
    hwm: Count = Field(
        100_000,
        description=(
            "Batches that wait for a slow subscriber. Further ones are dropped for that subscriber, which sees a gap "
            "in the sequence numbers."
        ),
        examples=[100_000],
        json_schema_extra=about(unit="batches"),
    )
    max_queue_size: Count = Field(
        100_000,
        description=(
            "Batches that wait to be encoded. When there are more, they are dropped, and an event reports to "
            "subscribers that nothing is cached."
        ),
        examples=[100_000],
        json_schema_extra=about(unit="batches"),
    )
    encoding: Literal["map", "array"] = Field(
        "map",
        description=(
            "How an event is written: a `map` with names, or an `array` of its values in a fixed order, for consumers "
            "written before June 2026."
        ),
        examples=["map"],
    )

    @property
    def is_publishing(self) -> bool:
        return self.enable_kv_cache_events

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses in use."""
        return (self.endpoint,) if self.replay_endpoint is None else (self.endpoint, self.replay_endpoint)

    def at_rank(self, rank: int) -> KVEventsConfig:
        """Return the configuration with the addresses of the replica with this rank."""
        replay = None if self.replay_endpoint is None else _at_rank(self.replay_endpoint, rank)
        return self.model_copy(update={"endpoint": _at_rank(self.endpoint, rank), "replay_endpoint": replay})


def _at_rank(address: str, rank: int) -> str:
    """Another port for each rank, or another path; port `*` is a free one anyway."""
    if address.startswith("ipc://"):
        return f"{address}_dp{rank}" if rank else address
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + rank}" if port.isdigit() else address


def is_bound(address: str) -> bool:
    """Whether readers connect to this address of the PUB socket; otherwise it connects to theirs."""
    return address.startswith("ipc://") or any(every in address for every in ("*", "::", "0.0.0.0"))
