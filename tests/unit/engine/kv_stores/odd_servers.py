"""Servers on a free port that answer a connection as a test says, and then close it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

HOST = "127.0.0.1"


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port. Its one connection gets this answer to its request."""
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                read_header(connection)
                answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(60)


def header(value: Any) -> bytes:
    data = msgpack.packb(value)
    return struct.pack("!Q", len(data)) + data


def read_header(connection: socket.socket) -> Any:
    with connection.makefile("rb") as file:
        (length,) = struct.unpack("!Q", file.read(8))
        return msgpack.unpackb(file.read(length))
