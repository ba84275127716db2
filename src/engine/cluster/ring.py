"""The connections between stages that are on several nodes: each rank connects to its successor in the next stage."""

from __future__ import annotations

import contextlib
import hmac
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

KEY_BYTES = 16
_HELLO = struct.Struct(f"<{KEY_BYTES}sq")  # the key, the rank that connects
_LIMIT_S, _POLL_S = 60.0, 0.25


def listen(address: str) -> tuple[socket.socket, list[Any]]:
    """A listener, and its place: address and port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)
    return listener, list(listener.getsockname()[:2])


def connect_stages(
    listener: socket.socket,
    key: bytes,
    places: Sequence[Sequence[Any]],
    rank: int,
    size: int,
    check: Callable[[], None] = lambda: None,
) -> tuple[socket.socket, socket.socket]:
    """Connections from the stage before, and to the next one. Closes the listener.

    Args:
        key: which ranks show each other.
        places: where each rank listens.
        size: ranks of a stage.
        check: called while this waits; may raise.

    Raises OSError if a rank does not answer.
    """
    with listener:
        address, port = places[(rank + size) % len(places)]
        after = socket.create_connection((address, port), _LIMIT_S)
        try:
            after.sendall(_HELLO.pack(key, rank))
            before = _accepted(listener, key, (rank - size) % len(places), check)
        except BaseException:
            after.close()
            raise
    for end in (before, after):
        end.settimeout(None)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return before, after


def _accepted(listener: socket.socket, key: bytes, rank: int, check: Callable[[], None]) -> socket.socket:
    deadline = time.monotonic() + _LIMIT_S
    listener.settimeout(_POLL_S)
    while time.monotonic() < deadline:
        check()
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            if _is_rank(connection, key, rank):
                return connection
            connection.close()
    raise TimeoutError(f"rank {rank} of the model has not connected to its next stage within {_LIMIT_S:g} s")


def _is_rank(connection: socket.socket, key: bytes, rank: int) -> bool:
    connection.settimeout(_LIMIT_S)
    hello = connection.recv(_HELLO.size, socket.MSG_WAITALL)
    if len(hello) != _HELLO.size:
        return False
    its_key, its_rank = _HELLO.unpack(hello)
    return hmac.compare_digest(its_key, key) and its_rank == rank
