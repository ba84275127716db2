"""EngineBlocks: blocks that engines read from each other's host memory, for prefill and decode apart.

Of prompts that are for others, this engine keeps the blocks in a buffer, and serves them over TCP. Of prompts that say
where their blocks are, it reads them from there. Blocks in its own buffer that the KV cache has lost are read again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile

from ...logs import RareLogger
from ..api import StoredBlocks
from .block_connection import BlockServer, BlocksUnreadable, read_blocks, send_blocks
from .future_fetch import FutureFetch
from .host_blocks import HostBlocks
from .registered_blocks import Mover, RegisteredBlocks

_READERS = 2  # requests whose blocks are read at a time, as many as the scheduler lets wait for them
logger = logging.getLogger(__name__)


class EngineBlocks:
    """Implements core/block_store.py."""

    def __init__(
        self, host: str, port: int, fingerprint: str, block_bytes: int, buffer_bytes: int, mover: Mover | None = None
    ) -> None:
        """
        host: at which others reach this engine. port: 0 is a free one.
        block_bytes: of each block. buffer_bytes: 0 serves nothing.
        mover: moves the contents; all engines have the same kind. None sends them over TCP. Raises CannotServeBlocks.
        """
        self._fingerprint, self._host = fingerprint, host
        self._failures = RareLogger(logger)
        self._buffer: HostBlocks | RegisteredBlocks
        if mover is not None:
            self._buffer = registered = RegisteredBlocks(mover, buffer_bytes, block_bytes)
            self._read_from, answer = registered.read, registered.answer
        else:
            self._buffer = blocks = HostBlocks(buffer_bytes)
            self._read_from, answer = partial(read_blocks, num_bytes=block_bytes), partial(send_blocks, blocks)
        self._server = BlockServer(host, port, fingerprint, answer) if buffer_bytes else None
        self._readers = ThreadPoolExecutor(_READERS, "read-blocks")

    @property
    def port(self) -> int:
        return 0 if self._server is None else self._server.port

    def has(self, block_hash: bytes) -> bool:
        return block_hash in self._buffer

    def wants(self, block_hash: bytes, *, is_for_others: bool) -> bool:
        return is_for_others and self._server is not None and not self._buffer.touch(block_hash)

    def save(self, block_hash: bytes, content: memoryview, *, is_for_others: bool) -> None:
        if self.wants(block_hash, is_for_others=is_for_others):
            self._buffer.put(block_hash, content)

    def drop(self, block_hash: bytes) -> None:
        self._buffer.drop(block_hash)

    def is_saving(self, block_hash: bytes) -> bool:
        return False

    def stored(self, hashes: Sequence[bytes]) -> StoredBlocks:
        return StoredBlocks(tuple(takewhile(self.has, hashes)), self._host, self.port)

    def fetch(self, hashes: Sequence[bytes], source: StoredBlocks | None) -> FutureFetch:
        return FutureFetch(self._readers.submit(self._read, list(hashes), source))

    def _read(self, hashes: list[bytes], source: StoredBlocks | None) -> list[memoryview]:
        """Blocks in the own buffer, and then what the source has. Runs in a thread: registered ones are copied."""
        contents: list[memoryview] = []
        for block_hash in hashes:
            content = self._buffer.get(block_hash)
            if content is None:
                break
            contents.append(content)
        missing = hashes[len(contents) :]
        if source is None or not source.host or not missing:
            return contents
        try:
            return contents + self._read_from(source.host, source.port, self._fingerprint, missing)
        except BlocksUnreadable as error:
            self._failures.log(
                logging.WARNING, "KV blocks of another engine cannot be read, their tokens are computed: %s", error
            )
            return contents + error.contents

    @property
    def num_failures(self) -> int:
        return self._failures.count

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._readers.shutdown(wait=False, cancel_futures=True)
