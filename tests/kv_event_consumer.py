"""A subscriber of KV cache events, written from the layout in docs/guide/kv-events.md: it imports nothing of ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgpack
import zmq

STORED = (
    *("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
    *("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"),
)
REMOVED = ("type", "block_hashes", "medium", "group_idx")
WAIT_MS = 10_000


def as_map(event: Any) -> dict[str, Any]:
    """Of both encodings."""
    if isinstance(event, dict):
        return event
    return dict(zip(STORED if event[0] == "BlockStored" else REMOVED, event, strict=False))


@dataclass
class View:
    """What is cached: by group and block hash, parent and token ids."""

    blocks: dict[tuple[int, bytes], tuple[bytes | None, tuple[int, ...]]] = field(default_factory=dict)
    num_events: int = 0
    rank: int = -1

    def apply(self, payload: bytes) -> None:
        _, events, rank = msgpack.unpackb(payload)
        self.rank = rank
        for event in map(as_map, events):
            self.num_events += 1
            if event["type"] == "AllBlocksCleared":
                self.blocks.clear()
                continue
            group = event["group_idx"]
            if event["type"] == "BlockRemoved":
                for block_hash in event["block_hashes"]:
                    del self.blocks[group, block_hash]
                continue
            assert event["type"] == "BlockStored"
            size, parent, tokens = event["block_size"], event["parent_block_hash"], event["token_ids"]
            assert len(tokens) == size * len(event["block_hashes"])
            assert len(event["extra_keys"]) == len(event["block_hashes"])
            for index, block_hash in enumerate(event["block_hashes"]):
                assert (group, block_hash) not in self.blocks
                self.blocks[group, block_hash] = (parent, tuple(tokens[index * size : (index + 1) * size]))
                parent = block_hash

    def hashes(self, group: int = 0) -> set[bytes]:
        return {block_hash for at, block_hash in self.blocks if at == group}


class Consumer:
    """Follows one publisher; fills gaps by replay, and starts from a snapshot."""

    def __init__(self, endpoint: str, replay_endpoint: str | None = None, topic: str = "", hwm: int = 0) -> None:
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.SUB)
        self._events.set_hwm(hwm)
        self._events.setsockopt_string(zmq.SUBSCRIBE, topic)
        self._events.connect(endpoint)
        self._asking = self._context.socket(zmq.DEALER)
        self._asking.set_hwm(0)
        if replay_endpoint is not None:
            self._asking.connect(replay_endpoint)
        self.view = View()
        self.topics: set[bytes] = set()
        self.next = 0  # sequence number of the next batch
        self.publisher = b""

    def close(self) -> None:
        self._context.destroy(linger=0)

    def ask(self, request: bytes) -> list[tuple[bytes, bytes]]:
        """The answers, without the end."""
        self._asking.send_multipart((b"", request))
        answers = []
        while self._asking.poll(WAIT_MS):
            _, sequence, payload = self._asking.recv_multipart()
            if sequence == b"\xff" * 8:
                assert payload == b""
                return answers
            answers.append((sequence, payload))
        raise TimeoutError("no end of the answer")

    def replay(self) -> None:
        """Everything from `next` on that is still kept."""
        for sequence, payload in self.ask(self.next.to_bytes(8, "big")):
            assert int.from_bytes(sequence) == self.next
            self._take(payload)

    def snapshot(self) -> None:
        self.view.blocks.clear()
        for sequence, payload in self.ask(b"snapshot"):
            self.next, self.publisher = int.from_bytes(sequence[:8]) + 1, sequence[8:]
            self.view.apply(payload)

    def receive(self, until: int) -> None:
        """Batches that were published, until those before sequence number `until` are applied."""
        while self.next < until:
            if not self._events.poll(WAIT_MS):
                raise TimeoutError(f"batch {self.next} did not arrive")
            topic, frame, payload = self._events.recv_multipart()
            self.topics.add(topic)
            sequence = int.from_bytes(frame)
            if sequence > self.next:
                self.replay()
            elif sequence == self.next:
                self._take(payload)

    def _take(self, payload: bytes) -> None:
        self.next += 1
        self.view.apply(payload)
