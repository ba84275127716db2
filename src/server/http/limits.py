"""Limits of requests before they are parsed: size of headers, of a body and of all bodies, time for a body to arrive.

hypercorn's checks are incomplete: headers that arrive in one piece pass its limit, a slow body has no timeout, and
Content-Length together with Transfer-Encoding is accepted (the bytes after the body would be served as another
request). Each refusal here closes the connection, because the bytes that follow on it were not read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

from ..protocol.errors import ApiError, closing, unavailable

# Of each body, not counted in the total: requests of ordinary size are served while large ones use all of it.
UNCOUNTED_BYTES = 64 << 10
FORM_BYTES = 64 << 10  # of an upload, besides its file
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGone(Exception):
    """The client closed the connection; no response can be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_request_bytes: int = 32 << 20
    max_header_bytes: int = 32 << 10
    max_headers: int = 256
    body_idle_timeout: float = 30.0  # seconds between two parts
    body_timeout: float = 120.0  # seconds for the whole body


class BodyMemory:
    """The bodies that are being received and parsed, over all connections: their size, and its limit."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0

    @contextlib.contextmanager
    def reserve(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts a number of bytes for one body, until the end of the block.

        It raises ApiError 503 if all bodies exceed the limit.
        """
        num_reserved = 0

        def add(num_bytes: int) -> None:
            nonlocal num_reserved
            if self._num_bytes + num_bytes > self._max_bytes:
                message = (
                    f"the bodies of all requests exceed {self._max_bytes} bytes (`server.max_total_request_bytes`)"
                )
                raise closing(unavailable(message, code="too_many_bodies", retry_after_s=1))
            self._num_bytes += num_bytes
            num_reserved += num_bytes

        try:
            yield add
        finally:
            self._num_bytes -= num_reserved


def check_headers(scope: Scope, limits: Limits, max_bytes: int | None = None) -> None:
    """Raises ApiError: 431, 400 (two lengths, a length that is not a number), 413.

    max_bytes: of a body that is not read into memory.
    """
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    target = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
    size = target + sum(len(name) + len(value) + 4 for name, value in headers)  # 4: ": " and the line's end
    if size > limits.max_header_bytes or len(headers) > limits.max_headers:
        message = (
            f"the request head has {len(headers)} headers and {size} bytes; "
            f"the limits are {limits.max_headers} and {limits.max_header_bytes}"
        )
        raise closing(ApiError(431, message, code="headers_too_large"))
    lengths = [value for name, value in headers if name == b"content-length"]
    if lengths and any(name == b"transfer-encoding" for name, _ in headers):
        raise closing(ApiError(400, "both Content-Length and Transfer-Encoding are given", code="bad_request"))
    for length in lengths:
        if not length.isdigit() or len(lengths) > 1:
            raise closing(ApiError(400, "Content-Length is not one number", code="bad_request"))
        if max_bytes is not None and len(length) <= 18:
            if int(length) > max_bytes:
                message = f"the upload is larger than {max_bytes} bytes (`server.files_quota`)"
                raise closing(ApiError(413, message, code="request_too_large"))
        elif len(length) > 18 or int(length) > limits.max_request_bytes:
            raise _too_large(limits)


def check_json_content(scope: Scope) -> None:
    """Raises ApiError 415 unless the content type is JSON, which other origins cannot send without a CORS preflight."""
    check_not_encoded(scope)
    for name, value in scope["headers"]:
        if name == b"content-type" and value.split(b";")[0].strip().lower() == b"application/json":
            return
    raise closing(
        ApiError(415, "the body must be sent as Content-Type: application/json", code="unsupported_media_type")
    )


def check_not_encoded(scope: Scope) -> None:
    """Raises ApiError 415 for a body that is compressed: its size would not be known before it is in memory."""
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            shown = value.decode("latin-1")[:40]
            message = f"the body is sent with Content-Encoding: {shown}; it must be sent without compression"
            error = ApiError(415, message, code="unsupported_media_type", headers={"accept-encoding": "identity"})
            raise closing(error)


async def read_body(receive: Receive, limits: Limits, reserve: Callable[[int], None]) -> bytes | bytearray:
    """The whole body. Raises ApiError (408, 413), what `reserve` raises, or ClientGone.

    reserve: called with the size of each part, except the beginning of the body.
    """
    body = bytearray()  # a list of the parts could take many times their size
    deadline = asyncio.get_running_loop().time() + limits.body_timeout
    while True:
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(min(deadline, now + limits.body_idle_timeout)):
                message = await receive()
        except TimeoutError:
            raise closing(ApiError(408, "the body took too long to arrive", code="request_timeout")) from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece: bytes = message.get("body", b"")
        size = len(body) + len(piece)
        if size > limits.max_request_bytes:
            raise _too_large(limits)
        is_last = not message.get("more_body")
        if is_last and not body:
            return piece  # it is in memory already
        if body:
            reserve(max(0, min(len(piece), size - UNCOUNTED_BYTES)))
        body += piece
        if is_last:
            return body


def _too_large(limits: Limits) -> ApiError:
    message = f"the body is larger than the limit of {limits.max_request_bytes} bytes (`server.max_request_bytes`)"
    return closing(ApiError(413, message, code="request_too_large"))
