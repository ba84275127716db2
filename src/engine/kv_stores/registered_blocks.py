"""RegisteredBlocks: blocks in memory that is registered with a library, which moves them over RDMA or TCP.

An engine sends the addresses of its blocks, and others read them without its help. It may need the place for another
block meanwhile: each block has a checksum, and one that does not match is computed again.
"""

from __future__ import annotations

import socket
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .block_connection import BlocksUnreadable, ask, longest_s, send_header

POLL_S = 0.0005
Memory = npt.NDArray[np.uint8]


class MoverMissing(OSError):
    """The library is not installed, or does not start here."""


class Mover(Protocol):
    """A library that reads the memory of other processes. The calls may come from any thread."""

    def keep_registered(self, memory: Memory) -> None:
        """Let others read this memory for as long as the process runs."""
        ...

    @property
    def own(self) -> bytes:
        """What others need to read from here: their `source`."""
        ...

    def read(self, source: bytes, addresses: Sequence[int], contents: Memory, deadline: float) -> None:
        """addresses: of blocks at the source. contents: [blocks, bytes], which get them. deadline: time.monotonic().

        Raises what the library raises, ConnectionError, or TimeoutError. If the library may still write to `contents`
        then, the mover keeps them.
        """
        ...


class RegisteredBlocks:
    """The blocks that others may read, and the reader of others' blocks. Its methods may be called from any thread."""

    def __init__(self, mover: Mover, max_bytes: int, block_bytes: int) -> None:
        """max_bytes: 0 keeps none."""
        self._mover, self._block_bytes = mover, block_bytes
        self._places = np.empty((max_bytes // block_bytes, block_bytes), np.uint8)
        self._free = list(range(len(self._places)))
        self._used: OrderedDict[bytes, int] = OrderedDict()  # place by hash, least recently used first
        self._places_lock = threading.Lock()
        if len(self._places):
            mover.keep_registered(self._places)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._used

    def get(self, block_hash: bytes) -> memoryview | None:
        """A copy: its place may be used for another block."""
        with self._places_lock:
            place = self._used.get(block_hash)
            return None if place is None else memoryview(self._places[place].tobytes())

    def touch(self, block_hash: bytes) -> bool:
        """Whether it is there; then it was used now."""
        with self._places_lock:
            if block_hash not in self._used:
                return False
            self._used.move_to_end(block_hash)
            return True

    def drop(self, block_hash: bytes) -> None:
        with self._places_lock:
            if (place := self._used.pop(block_hash, None)) is not None:
                self._free.append(place)

    def put(self, block_hash: bytes, content: memoryview) -> None:
        with self._places_lock:
            if block_hash in self._used or not len(self._places):
                return
            place = self._free.pop() if self._free else self._used.popitem(last=False)[1]
            self._places[place] = np.frombuffer(content, np.uint8)
            self._used[block_hash] = place

    def answer(self, connection: socket.socket, hashes: Iterable[bytes]) -> None:
        """Say where the first of these blocks are, up to the first that is missing."""
        entries = []
        for block_hash in hashes:
            entry = self._entry(block_hash)
            if entry is None:
                break
            entries.append(entry)
        send_header(connection, [self._mover.own, entries])

    def _entry(self, block_hash: bytes) -> tuple[int, int] | None:
        """Address and checksum of a block."""
        with self._places_lock:
            place = self._used.get(block_hash)
            if place is None:
                return None
            self._used.move_to_end(block_hash)
            content = self._places[place]
            return content.ctypes.data, zlib.crc32(content.data)

    def read(self, host: str, port: int, fingerprint: str, hashes: Sequence[bytes]) -> list[memoryview]:
        """The contents of the first of these blocks, up to the first that cannot be read. Raises BlocksUnreadable."""
        where = f"{host}, port {port}"
        try:
            with ask(host, port, fingerprint, hashes) as (_, header):
                source, entries = _checked(header, len(hashes))
        except (OSError, ValueError) as error:
            raise BlocksUnreadable(f"{where}: {error}", []) from error
        if not entries:
            return []
        contents = np.empty((len(entries), self._block_bytes), np.uint8)
        try:
            deadline = time.monotonic() + longest_s(contents.nbytes)
            self._mover.read(source, [address for address, _ in entries], contents, deadline)
        except Exception as error:  # libraries have their own classes for them
            raise BlocksUnreadable(f"{where}: {type(error).__name__}: {error}", []) from error
        whole: list[memoryview] = []
        for (_, checksum), content in zip(entries, contents, strict=True):
            if zlib.crc32(content.data) != checksum:
                raise BlocksUnreadable(f"{where}: a block was replaced while it was read", whole)
            whole.append(content.data)
        return whole


def _checked(header: Any, most: int) -> tuple[bytes, list[tuple[int, int]]]:
    match header:
        case [bytes(source), [*entries]] if len(entries) <= most:
            if all(isinstance(entry, list) and list(map(type, entry)) == [int, int] for entry in entries):
                return source, [(address, checksum) for address, checksum in entries]
    raise ValueError("its answer is not understood; both engines need the same `kv_connector`")
