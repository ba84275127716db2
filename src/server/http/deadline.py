"""The time limit of a request: the header X-Request-Timeout, the field `timeout`, or `server.request_timeout`.

A request over it is aborted in the engine. The answer is 504, or an error event in a stream that has begun.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..protocol.errors import ApiError, bad_request
from ..protocol.fields import MAX_TIMEOUT_S

HEADER = "X-Request-Timeout"


@dataclass(frozen=True, slots=True)
class Deadline:
    """remaining_s: seconds from now; negative if the time has passed. timeout_s: of the whole request."""

    remaining_s: float
    timeout_s: float

    def error(self) -> ApiError:
        message = f"the request was not complete after {self.timeout_s:g} s, its time limit"
        return ApiError(504, message, code="deadline_exceeded", kind="timeout_error")


def header_timeouts(headers: Sequence[tuple[bytes, bytes]]) -> list[float]:
    """Seconds; empty without the header. Raises ApiError 400."""
    sent = [value for name, value in headers if name == b"x-request-timeout"]
    if not sent:
        return []
    try:
        seconds = float(sent[0])
    except ValueError:
        seconds = math.nan
    if len(sent) > 1 or not 0 < seconds <= MAX_TIMEOUT_S:
        raise bad_request(f"the header {HEADER} must be one number of seconds, more than 0", param=HEADER)
    return [seconds]
