"""Error responses: always `{"error": {"message", "type", "param", "code"}}`, built in this file only.

Messages are written by us. They contain what the client sent or may know, never a traceback, a path or a class name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

INVALID = "invalid_request_error"


class ApiError(Exception):
    """An error response. `code` is for programs, `message` for people."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        kind: str = INVALID,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.kind = kind
        self.param = param
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def bad_request(message: str, *, code: str = "invalid_value", param: str | None = None) -> ApiError:
    return ApiError(400, message, code=code, param=param)


def unsupported(param: str, detail: str = "") -> ApiError:
    """For a field of OpenAI's API, or of a server like it, that this server does not support."""
    return bad_request(f"`{param}` is not supported here{detail}", code="unsupported_parameter", param=param)


def unavailable(message: str, *, code: str, retry_after_s: float | None = 5) -> ApiError:
    headers = {} if retry_after_s is None else {"retry-after": str(max(1, math.ceil(retry_after_s)))}
    return ApiError(503, message, code=code, kind="server_error", headers=headers)


def queue_full(message: str, retry_after_s: float) -> ApiError:
    headers = {"retry-after": str(max(1, math.ceil(retry_after_s)))}
    return ApiError(429, message, code="queue_full", kind="rate_limit_error", headers=headers)


def internal_error(message: str = "the server failed on this request", code: str = "internal_error") -> ApiError:
    return ApiError(500, message, code=code, kind="server_error")


def closing(error: ApiError) -> ApiError:
    """The same error, after which the connection is closed: further bytes on it cannot be trusted or were not read."""
    error.headers["connection"] = "close"
    return error


_BOUNDS = {
    "greater_than": "below_min_value",
    "greater_than_equal": "below_min_value",
    "less_than": "above_max_value",
    "less_than_equal": "above_max_value",
    "finite_number": "above_max_value",
}
_LENGTHS = {
    "too_short": "empty_array",
    "too_long": "array_above_max_length",
    "string_too_short": "string_below_min_length",
    "string_too_long": "string_above_max_length",
}


def from_validation(error: ValidationError) -> ApiError:
    """The first error that pydantic found, with OpenAI's code: which field, what is wrong, what is allowed."""
    found = error.errors(include_url=False)[0]
    param = _path(found["loc"])
    kind = found["type"]
    context = found.get("ctx", {})
    if kind == "missing":
        return bad_request(f"`{param}` is required", code="missing_required_parameter", param=param)
    if kind in _BOUNDS:
        number = "integer" if isinstance(found["input"], int) and isinstance(_bound(context), int) else "decimal"
        return bad_request(f"`{param}`: {_sentence(found)}", code=f"{number}_{_BOUNDS[kind]}", param=param)
    if kind in _LENGTHS:
        return bad_request(f"`{param}`: {_sentence(found)}", code=_LENGTHS[kind], param=param)
    if kind == "value_error":  # from our validators: the error may have a code and a place within the field
        cause = context.get("error")
        code = getattr(cause, "code", None) or "invalid_value"
        return bad_request(f"`{param}`: {cause}", code=code, param=param + getattr(cause, "place", ""))
    if kind in ("literal_error", "enum", "string_pattern_mismatch"):
        return bad_request(f"`{param}`: {_sentence(found)}", code="invalid_value", param=param)
    return bad_request(f"`{param}`: {_sentence(found)}", code="invalid_type", param=param)


class FieldError(ValueError):
    """Raised by validators of protocol models: an invalid field, with its error code."""

    def __init__(self, message: str, *, code: str = "invalid_value", place: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.place = place  # within the field, such as `[0]`


def _bound(context: Mapping[str, Any]) -> Any:
    return next((context[name] for name in ("ge", "gt", "le", "lt") if name in context), None)


def _sentence(found: ErrorDetails) -> str:
    message = found["msg"]
    return message[0].lower() + message[1:]


def _path(loc: tuple[int | str, ...]) -> str:
    """("messages", 0, "role") -> messages[0].role"""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path
