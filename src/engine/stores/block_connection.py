"""Blocks over TCP: a server of those in host memory, and the reader of another engine's.

A reader sends which engines it is like (fingerprint.py) and the hashes it wants. The answer has the sizes of the first
ones, up to the first that is missing, and then their contents. Headers are msgpack after their length. Where a
library moves them (registered_blocks.py) the answer says where the contents are, and the reader fetches them.

The server answers everyone who knows a hash, which is to know the text; its port belongs into a private network.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgpack

from .host_blocks import HostBlocks

CONNECT_S = 3.0
SILENCE_S = 5.0  # without a byte, after which the other side is taken for dead
_LEAST_BYTES_S = 50e6  # of a reading that is slower, the rest is computed
_LENGTH = struct.Struct("!I")
_MAX_HEADER_BYTES = 1 << 24
_NOT_ALIKE = "has another model, number format or block size"
logger = logging.getLogger(__name__)


class BlocksUnreadable(Exception):
    """The message says why. `contents` are those that were read before."""

    def __init__(self, reason: str, contents: list[memoryview]) -> None:
        super().__init__(reason)
        self.contents = contents


class CannotServeBlocks(OSError):
    """The address for other engines cannot be used."""


Answer = Callable[[socket.socket, list[Any]], None]  # of a request for these hashes


class BlockServer:
    """Answers in threads, from its creation until `close`."""

    def __init__(self, host: str, port: int, fingerprint: str, answer: Answer) -> None:
        """port: 0 is a free one. Raises CannotServeBlocks."""

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                try:
                    _serve(self.request, fingerprint, answer)
                except (OSError, ValueError) as error:
                    logger.info("a reader of KV blocks, %s, was not served: %s", self.client_address[0], error)

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

    return Server


def _serve(connection: socket.socket, fingerprint: str, answer: Answer) -> None:
    connection.settimeout(SILENCE_S)
    request = _receive_header(connection)
    match request:
        case [str(theirs), [*hashes]]:
            pass
        case _:
            raise ValueError("it sent no request")
    if theirs != fingerprint:
        send_header(connection, _NOT_ALIKE)
    else:
        answer(connection, hashes)


def send_blocks(blocks: HostBlocks, connection: socket.socket, hashes: Sequence[Any]) -> None:
    """Answer with the contents of the first of these blocks, up to the first that is missing."""
    contents: list[memoryview] = []
    for block_hash in hashes:
        content = blocks.get(block_hash) if isinstance(block_hash, bytes) else None
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
    with socket.create_connection((host, port), CONNECT_S) as connection:
        connection.settimeout(SILENCE_S)
        send_header(connection, [fingerprint, list(hashes)])
        header = _receive_header(connection)
        if isinstance(header, str):
            raise ValueError(f"it {header[:100]}")
        yield connection, header


def send_header(connection: socket.socket, value: Any) -> None:
    data = msgpack.packb(value)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _receive_header(connection: socket.socket) -> Any:
    """Raises OSError, and ValueError for anything but a header."""
    deadline = time.monotonic() + longest_s(_MAX_HEADER_BYTES)
    (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size, deadline))
    if length > _MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes")
    try:
        return msgpack.unpackb(_receive(connection, length, deadline))
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
