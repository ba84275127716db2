"""Lines of a batch file and of its results, in OpenAI's batch format.

{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
{"id": "...", "custom_id": "a", "response": {"status_code": 200, "request_id": "...", "body": {...}}, "error": null}

A request that the API refuses has a `response` with its status. A line that is not a request has an `error`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from ..protocol.errors import ApiError
from ..protocol.json import dump, parse

ROUTES = ("/v1/chat/completions", "/v1/completions")


@dataclass(frozen=True, slots=True)
class BatchRequest:
    custom_id: str
    url: str
    body: bytes


class LineError(Exception):
    """A line that is not a request."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.custom_id = custom_id


def lines_of(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """(number from 1, content) of each line that is not blank; None for the content of one over `max_bytes`."""
    number = 0
    while line := file.readline(max_bytes + 1):
        number += 1
        if len(line) > max_bytes and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = file.readline(1 << 20)
            yield number, None
        elif line.strip():
            yield number, line


def read_line(number: int, line: bytes | None, max_bytes: int) -> BatchRequest:
    """Raises LineError. The route checks the body."""
    if line is None:
        message = f"line {number} is longer than {max_bytes} bytes (`server.max_request_bytes`)"
        raise LineError("request_too_large", message)
    try:
        fields = parse(line, max_bytes)  # the route limits the values of the body
    except ApiError as error:
        what = error.message.removeprefix("the body ")
        separator = " " if what != error.message else ": "
        raise LineError(error.code, f"line {number}{separator}{what}") from None
    custom_id = fields.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise LineError("invalid_custom_id", f"line {number}: `custom_id` must be a string that is not empty")
    if fields.get("method") != "POST":
        raise LineError("invalid_method", f'line {number}: `method` must be "POST"', custom_id)
    if fields.get("url") not in ROUTES:
        raise LineError("invalid_url", f"line {number}: `url` must be {' or '.join(ROUTES)}", custom_id)
    body = fields.get("body")
    if not isinstance(body, dict):
        raise LineError("invalid_body", f"line {number}: `body` must be an object", custom_id)
    if body.get("stream"):
        raise LineError("unsupported_parameter", f"line {number}: `stream`: a batch cannot stream", custom_id)
    return BatchRequest(custom_id, fields["url"], dump(body))


def answered(result_id: str, custom_id: str, status: int, request_id: str, body: dict[str, Any]) -> bytes:
    response = {"status_code": status, "request_id": request_id, "body": body}
    return dump({"id": result_id, "custom_id": custom_id, "response": response, "error": None}) + b"\n"


def failed(result_id: str, error: LineError) -> bytes:
    fields = {"code": error.code, "message": error.message}
    return dump({"id": result_id, "custom_id": error.custom_id, "response": None, "error": fields}) + b"\n"
