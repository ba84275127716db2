"""WaitingBlocks: which KV blocks wait to be saved, up to a number of bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterable

MAX_BYTES = 1 << 30


class WaitingBlocks:
    """Blocks that wait to be saved. Several threads use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sizes: dict[bytes, int] = {}
        self._num_bytes = 0

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._sizes

    def add(self, block_hash: bytes, num_bytes: int) -> bool:
        """Add a block; False if too much waits: it is dropped, and stored by a later request with this prefix."""
        with self._lock:
            if block_hash in self._sizes or self._num_bytes + num_bytes > MAX_BYTES:
                return False
            self._sizes[block_hash] = num_bytes
            self._num_bytes += num_bytes
        return True

    def remove(self, hashes: Iterable[bytes]) -> None:
        """Remove blocks that are saved, and known elsewhere already, or given up."""
        with self._lock:
            self._num_bytes -= sum(self._sizes.pop(block_hash) for block_hash in hashes)
