"""HTTP/1.1 as an attacker writes it: raw bytes in, raw bytes out."""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .catalogue import Fell, expect

PIECE = 1 << 16
LEAKS = re.compile(rb"Traceback|site-packages|\bat 0x[0-9a-f]{6}")


@dataclass(frozen=True)
class Answer:
    status: int  # 0: the connection ended without one
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def connect(address: tuple[str, int], *, receive_bytes: int | None = None, limit_s: float = 30.0) -> socket.socket:
    """receive_bytes: size of the kernel's buffer, small for a client that does not read."""
    opened = socket.socket()
    opened.settimeout(limit_s)
    if receive_bytes is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    try:
        opened.connect(address)
    except OSError:
        opened.close()
        raise
    return opened


def reset(opened: socket.socket) -> None:
    """Close a connection with RST."""
    with contextlib.suppress(OSError):
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    opened.close()


def head(method: str, path: str, *lines: str, close: bool = True) -> bytes:
    end = ["connection: close"] if close else []
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: localhost", *lines, *end, "", ""]).encode("latin-1")


def posting(path: str, body: bytes | Any, *, close: bool = True) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = ("content-type: application/json", f"content-length: {len(content)}")
    return head("POST", path, *lines, close=close) + content


def exchange(opened: socket.socket, data: bytes, *, limit_s: float = 30.0, quiet_s: float | None = None) -> bytes:
    """Send while reading; returns what arrived until the server closed.

    quiet_s: return too when nothing arrived for so long after everything was sent. Raises TimeoutError after limit_s.
    """
    until, last, received, rest = time.monotonic() + limit_s, time.monotonic(), bytearray(), memoryview(data)
    opened.setblocking(False)
    while True:
        can_read, can_write, _ = select.select([opened], [opened] if rest else [], [], 0.1)
        now = time.monotonic()
        try:
            if can_write:
                rest = rest[opened.send(rest[:PIECE]) :]
                last = now
            if can_read:
                piece = opened.recv(PIECE)
                if not piece:
                    return bytes(received)
                received += piece
                last = now
        except BlockingIOError:
            pass
        except OSError:  # the server closed while the client was sending; what it said before may still be there
            with contextlib.suppress(OSError):
                while piece := opened.recv(PIECE):
                    received += piece
            return bytes(received)
        if quiet_s is not None and not rest and now - last > quiet_s:
            return bytes(received)
        if now > until:
            raise TimeoutError(f"no end of the answer within {limit_s:.0f} s")


def statuses(received: bytes) -> list[int]:
    """Statuses of all answers in `received`."""
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


def answer_of(received: bytes) -> Answer:
    top, _, body = received.partition(b"\r\n\r\n")
    found = statuses(top)
    if b"transfer-encoding: chunked" in top.lower():
        body = _without_chunks(body)
    return Answer(found[-1] if found else 0, body)


def ask(address: tuple[str, int], data: bytes, *, limit_s: float = 30.0) -> Answer:
    """One request on a new connection, which `data` asks to close. Raises Fell if it takes longer than the limit."""
    with contextlib.closing(connect(address, limit_s=limit_s)) as opened:
        try:
            return answer_of(exchange(opened, data, limit_s=limit_s))
        except TimeoutError as error:
            raise Fell(f"{error}: {data[:80]!r}") from None


def check_answer(answer: Answer, allowed: Iterable[int], what: str) -> None:
    """Raises Fell if the status is not allowed, an error has not the documented shape, or internals leak."""
    shown = answer.body[:160].decode(errors="replace")
    expect(
        answer.status in set(allowed), f"{what}: status {answer.status or 'none, the connection was closed'} {shown}"
    )
    if answer.status < 400:
        return
    expect(not LEAKS.search(answer.body), f"{what}: the error shows internals: {shown}")
    if not answer.body and answer.status in (400, 431):
        return  # documented: sent before a request exists
    try:
        is_shaped = set(answer.json["error"]) == {"message", "type", "param", "code"}
    except (ValueError, TypeError, KeyError):
        is_shaped = False
    expect(is_shaped, f"{what}: the body of error {answer.status} has not the documented shape: {shown}")


def _without_chunks(body: bytes) -> bytes:
    found = bytearray()
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        if not length:
            break
        found += rest[:length]
        body = rest[length + 2 :]
    return bytes(found)
