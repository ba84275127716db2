"""Blocks over TCP: a server of blocks in host memory, and the reader of another engine's.

A reader sends which engines it is like (fingerprint.py) and the hashes it wants. The answer has the sizes of the first
ones, up to the first that is missing, and then their contents. Headers are msgpack after their length. Where a
library moves them (registered_blocks.py) the answer says where the contents are, and the reader fetches them.

The server answers everyone who knows a hash, which is to know the text; its port belongs into a private network. What
arrives there is not trusted: a length is compared with what a valid message can have, the fingerprint before the rest
is received, and hashes are read one by one until the first that is missing. Parsing more would hold the interpreter of
the engine.
"""

from __future__ import annotations

import logging
import re
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgpack

from ...frames import LENGTH_BYTES, framed, length_of
from ...logs import RareLogger
from .host_blocks import HostBlocks

CONNECT_S = 3.0
SILENCE_S = 5.0  # without a byte, after which the other side is taken for dead
_LEAST_BYTES_S = 50e6  # of a reading that is slower, the rest is computed
_HASH_BYTES = 64  # at most; the longest of a request
_MAX_HASHES = 1 << 17  # in one request; of more, the first
_MAX_ENTRY_BYTES = _HASH_BYTES + 2  # of a hash in a request, and of a block in an answer
_MAX_OWN_BYTES = 1 << 18  # of an answer, in addition to its entries: what a library needs to read from there
_MAX_READERS = 256  # connections at a time
_MAX_READERS_OF_ONE = 64  # with one address, on which several engines may be
_REQUEST_OF_OTHERS = re.compile(rb"\x92(?:[\xa0-\xbf]|\xd9.)", re.DOTALL)  # the start of one with another fingerprint
_NOT_ALIKE = "has another model, number format or block size"
logger = logging.getLogger(__name__)


class BlocksUnreadable(Exception):
    """The message says why. `contents` were read before."""

    def __init__(self, reason: str, contents: list[memoryview]) -> None:
        super().__init__(reason)
        self.contents = contents


class CannotServeBlocks(OSError):
    """The address for other engines cannot be used."""


Answer = Callable[[socket.socket, Iterable[bytes]], None]  # of a request for these hashes


class BlockServer:
    """Answers in threads, from its creation until `close`."""

    def __init__(self, host: str, port: int, fingerprint: str, answer: Answer) -> None:
        """port: 0 is a free one. Raises CannotServeBlocks."""

        unserved = RareLogger(logger)

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                try:
                    _serve(self.request, fingerprint, answer)
                except (OSError, ValueError) as error:
                    unserved.log(
                        logging.INFO, "a reader of KV blocks, %s, was not served: %s", self.client_address[0], error
                    )

        try:
            family, _, _, _, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = _server_class(family)((str(found[0]), int(found[1])), Handler)
        except OSError as error:
            raise CannotServeBlocks(f"`kv_transfer.kv_ip`: cannot listen on {host}, port {port}: {error}") from error
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="block-server", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _server_class(family: socket.AddressFamily) -> type[socketserver.ThreadingTCPServer]:
    class Server(socketserver.ThreadingTCPServer):
        address_family = family
        allow_reuse_address = True
        daemon_threads = True
        block_on_close = False
        request_queue_size = 128  # so that connections which are closed at once delay no reader

        def __init__(self, address: tuple[str, int], handler: type[socketserver.BaseRequestHandler]) -> None:
            self._num_readers: Counter[str] = Counter()  # by address
            self._lock = threading.Lock()
            super().__init__(address, handler)

        def verify_request(self, request: Any, client_address: Any) -> bool:
            """Whether there is a thread for this connection; else it is closed."""
            address = client_address[0]
            with self._lock:
                if self._num_readers.total() >= _MAX_READERS or self._num_readers[address] >= _MAX_READERS_OF_ONE:
                    return False
                self._num_readers[address] += 1
                return True

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                super().process_request_thread(request, client_address)
            finally:
                with self._lock:
                    self._num_readers[client_address[0]] -= 1
                    self._num_readers += Counter()  # without those that have none left

    return Server


def _serve(connection: socket.socket, fingerprint: str, answer: Answer) -> None:
    """Raises OSError, and ValueError for what is no request."""
    connection.settimeout(SILENCE_S)
    deadline = time.monotonic() + longest_s(0)
    ours = _beginning(fingerprint)
    length = _receive_length(connection, len(ours) + 5 + _MAX_HASHES * _MAX_ENTRY_BYTES, deadline)
    theirs = bytes(_receive(connection, min(length, len(ours)), deadline))
    if theirs != ours:
        if _REQUEST_OF_OTHERS.match(theirs) is None:
            raise ValueError("it sent no request")
        send_header(connection, _NOT_ALIKE)
        return
    rest = length - len(ours)
    answer(connection, _hashes(_receive(connection, rest, deadline + longest_s(rest))))


def _beginning(fingerprint: str) -> bytes:
    """The bytes with which a request of this fingerprint begins, up to its hashes."""
    empty: bytes = msgpack.packb([fingerprint, []])
    return empty[:-1]


def _hashes(data: memoryview) -> Iterator[bytes]:
    """The hashes in the rest of a request, up to the first that is none. Raises ValueError if it has no list."""
    unpacker = msgpack.Unpacker(
        max_bin_len=_HASH_BYTES, max_str_len=_HASH_BYTES, max_array_len=0, max_map_len=0, max_ext_len=0
    )
    unpacker.feed(data)
    try:
        num = unpacker.read_array_header()
    except (ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"it names no blocks: {type(error).__name__}") from error

    def one_by_one() -> Iterator[bytes]:
        for _ in range(num):
            try:
                found = unpacker.unpack()
            except (ValueError, msgpack.UnpackException):  # a list, a long text, or nothing more
                return
            if not isinstance(found, bytes):
                return
            yield found

    return one_by_one()


def send_blocks(blocks: HostBlocks, connection: socket.socket, hashes: Iterable[bytes]) -> None:
    """Answer with the contents of the first of these blocks, up to the first that is missing."""
    contents: list[memoryview] = []
    for block_hash in hashes:
        content = blocks.get(block_hash)
        if content is None:
            break
        contents.append(content)
    send_header(connection, [content.nbytes for content in contents])
    for content in contents:
        connection.sendall(content)


def read_blocks(host: str, port: int, fingerprint: str, hashes: Sequence[bytes], num_bytes: int) -> list[memoryview]:
    """The contents of the first of these blocks, up to the first that the engine at this address does not have.

    num_bytes: of each block. Raises BlocksUnreadable.
    """
    contents: list[memoryview] = []
    try:
        with ask(host, port, fingerprint, hashes) as (connection, sizes):
            if not isinstance(sizes, list) or len(sizes) > len(hashes) or any(size != num_bytes for size in sizes):
                raise ValueError("its answer is not understood")
            deadline = time.monotonic() + longest_s(len(sizes) * num_bytes)
            for _ in sizes:
                contents.append(_receive(connection, num_bytes, deadline))
    except (OSError, ValueError, MemoryError) as error:
        cause = str(error) or type(error).__name__
        raise BlocksUnreadable(f"{host}, port {port}: {cause}", contents) from error
    return contents


def longest_s(num_bytes: int) -> float:
    """Seconds that reading so much may take."""
    return SILENCE_S + num_bytes / _LEAST_BYTES_S


@contextmanager
def ask(host: str, port: int, fingerprint: str, hashes: Sequence[bytes]) -> Iterator[tuple[socket.socket, Any]]:
    """The connection, and the header of the answer. Raises OSError, and ValueError for a refusal."""
    hashes = hashes[:_MAX_HASHES]
    with socket.create_connection((host, port), CONNECT_S) as connection:
        connection.settimeout(SILENCE_S)
        send_header(connection, [fingerprint, list(hashes)])
        header = _receive_header(connection, _MAX_OWN_BYTES + len(hashes) * _MAX_ENTRY_BYTES)
        if isinstance(header, str):
            raise ValueError(f"it {header[:100]}")
        yield connection, header


def send_header(connection: socket.socket, value: Any) -> None:
    connection.sendall(framed(msgpack.packb(value)))


def _receive_length(connection: socket.socket, max_bytes: int, deadline: float) -> int:
    return length_of(_receive(connection, LENGTH_BYTES, deadline), max_bytes)


def _receive_header(connection: socket.socket, max_bytes: int) -> Any:
    """Raises OSError, and ValueError for anything but a header."""
    deadline = time.monotonic() + longest_s(max_bytes)
    data = _receive(connection, _receive_length(connection, max_bytes, deadline), deadline)
    try:
        return msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"no msgpack: {error}") from error


def _receive(connection: socket.socket, num_bytes: int, deadline: float) -> memoryview:
    """deadline: of time.monotonic. Raises OSError."""
    data = memoryview(bytearray(num_bytes))
    position = 0
    while position < num_bytes:
        received = connection.recv_into(data[position:])
        if not received:
            raise ConnectionResetError("the connection ended early")
        if time.monotonic() > deadline:
            raise TimeoutError("it sends too slowly")
        position += received
    return data
