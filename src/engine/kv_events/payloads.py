"""Payloads of KV cache events: msgpack `[time, events, rank]`, and the view of the cache that the events describe.

The layout is the one that routers read from vLLM since June 2026 (`map`), or read before (`array`):
docs/guide/kv-events.md has it. Hashes are the engine's own block hashes, in binary. Of a request's salt a digest is
sent, never the salt.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgpack

from ..api import AdapterRef
from ..core.block_events import BlockEvent, BlocksCleared, BlocksRemoved, BlocksStored, ExtraKeys

Encoding = Literal["map", "array"]
_ID_DIGITS = 8  # of the digest of an adapter, which are its number for programs that know adapters by numbers


@dataclass(frozen=True, slots=True)
class EventPayloads:
    """Encodes events.

    windows: of each group of layers, in tokens; None: all. medium: where the blocks are. rank: of the replica.
    """

    block_size: int
    windows: tuple[int | None, ...]
    medium: Literal["CPU", "GPU"]
    encoding: Encoding
    rank: int = 0

    def encode(self, events: Iterable[BlockEvent], time_s: float) -> bytes:
        """Encode one payload. time_s: since 1970."""
        fields = [self._fields(event) for event in events]
        shown = fields if self.encoding == "map" else [list(entry.values()) for entry in fields]
        packed: bytes = msgpack.packb([time_s, shown, self.rank])
        return packed

    def _fields(self, event: BlockEvent) -> dict[str, Any]:
        """Fields in the order of the array form, whose last value is left out where there is no window."""
        match event:
            case BlocksStored():
                window = self.windows[event.group]
                return {
                    "type": "BlockStored",
                    "block_hashes": event.block_hashes,
                    "parent_block_hash": event.parent_hash,
                    "token_ids": event.token_ids,
                    "block_size": self.block_size,
                    "lora_id": None if event.adapter is None else int(event.adapter.digest[:_ID_DIGITS], 16),
                    "medium": self.medium,
                    "lora_name": None if event.adapter is None else event.adapter.name,
                    "extra_keys": event.extra_keys,
                    "group_idx": event.group,
                    "kv_cache_spec_kind": "full_attention" if window is None else "sliding_window",
                    **({} if window is None else {"kv_cache_spec_sliding_window": window}),
                }
            case BlocksRemoved():
                return {
                    "type": "BlockRemoved",
                    "block_hashes": event.block_hashes,
                    "medium": self.medium,
                    "group_idx": event.group,
                }
            case BlocksCleared():
                return {"type": "AllBlocksCleared"}


@dataclass(slots=True)
class _Block:
    parent_hash: bytes | None
    token_ids: array[int]
    extra_keys: ExtraKeys
    adapter: AdapterRef | None


class CacheView:
    """What someone knows who has read all events: by group, the blocks that are cached."""

    def __init__(self, num_groups: int) -> None:
        self.groups: list[dict[bytes, _Block]] = [{} for _ in range(num_groups)]

    def apply(self, events: Iterable[BlockEvent], block_size: int) -> None:
        for event in events:
            match event:
                case BlocksStored():
                    parent = event.parent_hash
                    for index, (block_hash, keys) in enumerate(zip(event.block_hashes, event.extra_keys, strict=True)):
                        token_ids = array("i", event.token_ids[index * block_size : (index + 1) * block_size])
                        self.groups[event.group][block_hash] = _Block(parent, token_ids, keys, event.adapter)
                        parent = block_hash
                case BlocksRemoved():
                    for block_hash in event.block_hashes:
                        self.groups[event.group].pop(block_hash, None)
                case BlocksCleared():
                    for blocks in self.groups:
                        blocks.clear()

    def events(self, max_blocks: int) -> Iterator[Sequence[BlockEvent]]:
        """Events that make an empty view equal to this one, in pieces of at most `max_blocks` blocks. A block comes
        after its parent, if that is cached."""
        piece: list[BlockEvent] = [BlocksCleared()]
        num_blocks = 0
        for group, blocks in enumerate(self.groups):
            last: BlocksStored | None = None
            for block_hash in _parents_first(blocks):
                block = blocks[block_hash]
                if num_blocks == max_blocks:
                    yield piece
                    piece, num_blocks, last = [], 0, None
                if last is not None and last.block_hashes[-1] == block.parent_hash:
                    last.block_hashes.append(block_hash)
                    last.token_ids += block.token_ids
                    last.extra_keys.append(block.extra_keys)
                else:
                    keys, token_ids = [block.extra_keys], list(block.token_ids)
                    last = BlocksStored(group, block.parent_hash, [block_hash], token_ids, keys, block.adapter)
                    piece.append(last)
                num_blocks += 1
        yield piece


def _parents_first(blocks: dict[bytes, _Block]) -> Iterator[bytes]:
    seen: set[bytes] = set()
    for block_hash in blocks:
        chain: list[bytes] = []
        at: bytes | None = block_hash
        while at is not None and at in blocks and at not in seen:
            chain.append(at)
            seen.add(at)
            at = blocks[at].parent_hash
        yield from reversed(chain)
