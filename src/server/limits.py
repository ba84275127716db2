"""Limits of a request before it is parsed: size of the headers, size of the body, time for the body to arrive.

hypercorn's checks are incomplete: headers that arrive in one piece pass its limit, a slow body has no timeout, and
Content-Length together with Transfer-Encoding is accepted (the bytes after the body would be served as another
request). Each refusal here closes the connection, because the bytes that follow on it were not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from .protocol.errors import ApiError, closing

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


def check_headers(scope: Scope, limits: Limits) -> None:
    """Raises ApiError: 431, 400 (two lengths, a length that is not a number), 413."""
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
        if len(length) > 18 or int(length) > limits.max_request_bytes:
            raise _too_large(limits)


def check_json_content(scope: Scope) -> None:
    """Raises ApiError 415 unless the content type is JSON, which other origins cannot send without a CORS preflight."""
    for name, value in scope["headers"]:
        if name == b"content-type" and value.split(b";")[0].strip().lower() == b"application/json":
            return
    raise closing(
        ApiError(415, "the body must be sent as Content-Type: application/json", code="unsupported_media_type")
    )


async def read_body(receive: Receive, limits: Limits) -> bytes:
    """The whole body. Raises ApiError (408, 413), or ClientGone."""
    pieces: list[bytes] = []
    size = 0
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
        piece = message.get("body", b"")
        size += len(piece)
        if size > limits.max_request_bytes:
            raise _too_large(limits)
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)


def _too_large(limits: Limits) -> ApiError:
    message = f"the body is larger than the limit of {limits.max_request_bytes} bytes (`server.max_request_bytes`)"
    return closing(ApiError(413, message, code="request_too_large"))
