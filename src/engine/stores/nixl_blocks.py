"""NixlBlocks: blocks in memory that is registered with NIXL, which moves them over RDMA, or TCP where there is none.

An engine sends the addresses of its blocks, and others read them without its help. It may need the place for another
block meanwhile: each block has a checksum, and one that does not match is computed again.
"""

from __future__ import annotations

import importlib
import os
import socket
import threading
import time
import zlib
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import numpy as np

from .block_connection import BlocksUnreadable, ask, longest_s, send_header

_PACKAGES = ("nixl", "nixl_cu12", "nixl_cu13")
_POLL_S = 0.0005
_MEMORY = "DRAM"
_MAX_ABANDONED = 4
# Of UCX, unless they are set: with its own 8 KiB a block over TCP takes 1.5 to 2 times as long.
_TCP_SEGMENTS = {"UCX_TCP_TX_SEG_SIZE": "64k", "UCX_TCP_RX_SEG_SIZE": "64k"}


class NixlMissing(OSError):
    """NIXL is not installed, or does not start here."""


class NixlBlocks:
    """The blocks that others may read, and the reader of those of others. Its methods may be called from any thread."""

    def __init__(self, max_bytes: int, block_bytes: int) -> None:
        """max_bytes: 0 keeps none. Raises NixlMissing."""
        self._block_bytes = block_bytes
        self._agent, self._lock = _new_agent(), threading.Lock()  # an agent is for one thread at a time
        self._places = np.empty((max_bytes // block_bytes, block_bytes), np.uint8)
        self._free = list(range(len(self._places)))
        self._used: OrderedDict[bytes, int] = OrderedDict()  # place by hash, least recently used first
        self._places_lock = threading.Lock()
        self._abandoned: deque[Any] = deque(maxlen=_MAX_ABANDONED)  # memory of transfers that have failed
        if len(self._places):
            self._register(self._places)

    def _register(self, memory: np.ndarray[Any, np.dtype[np.uint8]]) -> Any:
        return self._agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], _MEMORY)

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

    def put(self, block_hash: bytes, content: memoryview) -> None:
        with self._places_lock:
            if block_hash in self._used or not len(self._places):
                return
            place = self._free.pop() if self._free else self._used.popitem(last=False)[1]
            self._places[place] = np.frombuffer(content, np.uint8)
            self._used[block_hash] = place

    def answer(self, connection: socket.socket, hashes: Sequence[Any]) -> None:
        """Say where the first of these blocks are, up to the first that is missing."""
        entries = []
        for block_hash in hashes:
            entry = self._entry(block_hash)
            if entry is None:
                break
            entries.append(entry)
        with self._lock:
            metadata = self._agent.get_agent_metadata()
        send_header(connection, [metadata, entries])

    def _entry(self, block_hash: Any) -> tuple[int, int] | None:
        """Address and checksum."""
        with self._places_lock:
            place = self._used.get(block_hash) if isinstance(block_hash, bytes) else None
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
                metadata, entries = _checked(header, len(hashes))
        except (OSError, ValueError) as error:
            raise BlocksUnreadable(f"{where}: {error}", []) from error
        if not entries:
            return []
        try:
            contents = np.empty((len(entries), self._block_bytes), np.uint8)
            self._transfer(metadata, [address for address, _ in entries], contents)
        except Exception as error:  # of NIXL, which has classes of its own for them
            raise BlocksUnreadable(f"{where}: {type(error).__name__}: {error}", []) from error
        whole: list[memoryview] = []
        for (_, checksum), content in zip(entries, contents, strict=True):
            if zlib.crc32(content.data) != checksum:
                raise BlocksUnreadable(f"{where}: a block was replaced while it was read", whole)
            whole.append(content.data)
        return whole

    def _transfer(self, metadata: bytes, addresses: list[int], contents: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        """Raises TimeoutError, and what NIXL raises."""
        agent, count = self._agent, len(addresses)
        sizes = [self._block_bytes] * count
        own = [contents.ctypes.data + index * self._block_bytes for index in range(count)]
        deadline = time.monotonic() + longest_s(contents.nbytes)
        with self._lock:
            registered, handle, name, is_done = self._register(contents), None, None, False
        try:
            with self._lock:
                name = agent.add_remote_agent(metadata)
                local = agent.get_xfer_descs(_descriptors(own, sizes), _MEMORY)
                remote = agent.get_xfer_descs(_descriptors(addresses, sizes), _MEMORY)
                handle = agent.initialize_xfer("READ", local, remote, name)
                state = agent.transfer(handle)
            while state == "PROC":
                time.sleep(_POLL_S)
                if time.monotonic() > deadline:
                    raise TimeoutError("the transfer makes no progress")
                with self._lock:
                    state = agent.check_xfer_state(handle)
            if state != "DONE":
                raise ConnectionError("the transfer failed")
            is_done = True
        finally:
            if not is_done:
                self._abandoned.append(contents)  # NIXL may still write there
            with self._lock:
                if handle is not None:
                    with suppress(Exception):  # it may still run
                        agent.release_xfer_handle(handle)
                if name is not None and not is_done:  # NIXL would refuse every further transfer from this agent
                    with suppress(Exception):
                        agent.remove_remote_agent(name)
                with suppress(Exception):
                    agent.deregister_memory(registered)


def _new_agent() -> Any:
    for variable, size in _TCP_SEGMENTS.items():
        os.environ.setdefault(variable, size)
    for package in _PACKAGES:
        try:
            api = importlib.import_module(f"{package}._api")
        except ImportError:
            continue
        try:
            return api.nixl_agent(uuid4().hex, api.nixl_agent_config(backends=["UCX"]))
        except Exception as error:
            raise NixlMissing(f"`kv_transfer.kv_connector: NixlConnector`: NIXL does not start: {error}") from error
    raise NixlMissing("`kv_transfer.kv_connector: NixlConnector` needs NIXL: pip install 'stoker[nixl]'")


def _checked(header: Any, most: int) -> tuple[bytes, list[tuple[int, int]]]:
    match header:
        case [bytes(metadata), [*entries]] if len(entries) <= most:
            if all(isinstance(entry, list) and list(map(type, entry)) == [int, int] for entry in entries):
                return metadata, [(address, checksum) for address, checksum in entries]
    raise ValueError("its answer is not understood; both engines need the same `kv_connector`")


def _descriptors(addresses: Sequence[int], sizes: Sequence[int]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array([(address, size, 0) for address, size in zip(addresses, sizes, strict=True)], np.uint64)
