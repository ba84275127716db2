"""Lines of a batch file and of its results, in OpenAI's batch format.

{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
{"id": "...", "custom_id": "a", "response": {"status_code": 200, "request_id": "...", "body": {...}}, "error": null}

A request that the API refuses has a `response` with its status. A line that is not a request has an `error`.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from ..protocol.batches import ROUTES
from ..protocol.errors import ApiError
from ..protocol.json import dump, parse
from ..protocol.pooling import BYTES_FORMATS

_RESULT_ID = re.compile(r"batch_req_[0-9a-f]+_([0-9]+)")


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
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if len(line) > max_bytes and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = file.readline(1 << 20)
            yield number, None
        elif line.strip():
            yield number, line


def read_line(number: int, line: bytes | None, max_bytes: int, routes: Sequence[str] = ROUTES) -> BatchRequest:
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
    if fields.get("url") not in routes:
        raise LineError("invalid_url", f"line {number}: `url` must be {' or '.join(routes)}", custom_id)
    body = fields.get("body")
    if not isinstance(body, dict):
        raise LineError("invalid_body", f"line {number}: `body` must be an object", custom_id)
    if body.get("stream"):
        raise LineError("unsupported_parameter", f"line {number}: `stream`: a batch cannot stream", custom_id)
    if body.get("background"):
        raise LineError("unsupported_parameter", f"line {number}: `background`: a batch waits for answers", custom_id)
    if body.get("encoding_format") in BYTES_FORMATS:
        message = f"line {number}: `encoding_format`: the results of a batch are JSON; send base64"
        raise LineError("unsupported_parameter", message, custom_id)
    return BatchRequest(custom_id, fields["url"], dump(body))


def faults(
    file: BinaryIO, max_bytes: int, routes: Sequence[str], *, max_lines: int, max_faults: int
) -> tuple[int, list[tuple[int, LineError]]]:
    """The number of lines, and what is wrong with the first wrong ones: (line, error)."""
    found: list[tuple[int, LineError]] = []
    seen: set[str] = set()
    num_lines = 0
    for number, line in lines_of(file, max_bytes):
        num_lines += 1
        if num_lines > max_lines:
            found.append((number, LineError("too_many_requests", f"the file has more than {max_lines} requests")))
            break
        try:
            request = read_line(number, line, max_bytes, routes)
            if request.custom_id in seen:
                raise duplicate(number, request.custom_id)
            seen.add(request.custom_id)
        except LineError as error:
            found.append((number, error))
            if len(found) == max_faults:
                break
    return num_lines, found


def duplicate(number: int, custom_id: str) -> LineError:
    message = f"line {number}: an earlier line has the same `custom_id`"
    return LineError("duplicate_custom_id", message, custom_id)


def result_id(run_id: str, number: int) -> str:
    """Id of the result of a line. `facts_of` reads the number of the line from it."""
    return f"batch_req_{run_id}_{number}"


def facts_of(result: Mapping[str, Any]) -> tuple[int, int | None]:
    """(number of the input line, status of the response, None for a line that is not a request) of a result.

    Raises ValueError, KeyError or TypeError for something else.
    """
    found = _RESULT_ID.fullmatch(result["id"])
    if found is None:
        raise ValueError(result["id"])
    return int(found[1]), result["response"]["status_code"] if result["response"] else None


def answered(result_id: str, custom_id: str, status: int, request_id: str, body: dict[str, Any]) -> bytes:
    response = {"status_code": status, "request_id": request_id, "body": body}
    return dump({"id": result_id, "custom_id": custom_id, "response": response, "error": None}) + b"\n"


def failed(result_id: str, error: LineError) -> bytes:
    fields = {"code": error.code, "message": error.message}
    return dump({"id": result_id, "custom_id": error.custom_id, "response": None, "error": fields}) + b"\n"
