"""HostBlocks: blocks in host memory, of which the least recently used make room for new ones."""

from __future__ import annotations

import threading
from collections import OrderedDict


class HostBlocks:
    """Contents of blocks in host memory. Any thread may call the methods."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._contents: OrderedDict[bytes, memoryview] = OrderedDict()  # by hash, least recently used first
        self._num_bytes = 0

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._contents

    def get(self, block_hash: bytes) -> memoryview | None:
        with self._lock:
            content = self._contents.get(block_hash)
            if content is not None:
                self._contents.move_to_end(block_hash)
            return content

    def touch(self, block_hash: bytes) -> bool:
        """Whether it is there; then it was used now."""
        with self._lock:
            if block_hash not in self._contents:
                return False
            self._contents.move_to_end(block_hash)
            return True

    def drop(self, block_hash: bytes) -> None:
        with self._lock:
            content = self._contents.pop(block_hash, None)
            self._num_bytes -= 0 if content is None else content.nbytes

    def put(self, block_hash: bytes, content: memoryview) -> None:
        """Store a block, unless it is larger than the limit."""
        with self._lock:
            if block_hash in self._contents or content.nbytes > self._max_bytes:
                return
            while self._num_bytes + content.nbytes > self._max_bytes:
                self._num_bytes -= self._contents.popitem(last=False)[1].nbytes
            self._contents[block_hash] = content
            self._num_bytes += content.nbytes
