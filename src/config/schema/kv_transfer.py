"""Section `kv_transfer`: KV cache that moves between engines."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from .section import Section, about

ONE_ENGINE = "the KV cache stays in the engine that computed it"


class KVTransferConfig(Section):
    """KV cache that moves between engines."""

    json_flags: ClassVar[tuple[str, ...]] = ("--kv-transfer-config",)

    kv_connector: str | None = Field(
        None,
        min_length=1,
        description="What carries the blocks.",
        examples=["NixlConnector"],
        json_schema_extra=about(reload="process", devices=(), refused=ONE_ENGINE),
    )
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"] | None = Field(
        None,
        description="Send blocks, receive them, or both.",
        examples=["kv_both"],
        json_schema_extra=about(reload="process", devices=(), refused=ONE_ENGINE),
    )
