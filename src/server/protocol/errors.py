"""Error responses: always `{"error": {"message", "type", "param", "code"}}`, built in this file only.

Messages are written by us. They contain what the client sent or may know, never a traceback, a path or a class name.
"""

from __future__ import annotations

import math
import re
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
        self.has_own_names = False  # fields have the names of the request's dialect, see names.py

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def bad_request(message: str, *, code: str = "invalid_value", param: str | None = None) -> ApiError:
    return ApiError(400, message, code=code, param=param)


def unsupported(param: str, detail: str = "") -> ApiError:
    """Error for a field of OpenAI's API, or of a server like it, that this server does not support."""
    return bad_request(f"`{param}` is not supported here{detail}", code="unsupported_parameter", param=param)


def own(error: ApiError) -> ApiError:
    """The same error, about a field that the client sent under this name: it is not translated by names.py."""
    error.has_own_names = True
    return error


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


# What a field must be, by pydantic's type of the error; `{...}` are its facts.
_MUST_BE = {
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
}
_UNION_TAG = re.compile(r"str|int|float|bool|(?:dict|list)\[.*")  # of a member of a union, in the place of an error


def from_validation(error: ValidationError) -> ApiError:
    """The first error that pydantic found, with OpenAI's code: which field, what is wrong, what is allowed."""
    errors = error.errors(include_url=False)
    found = errors[0]
    place = _place(found["loc"])
    param = _path(place)
    kind = found["type"]
    context = found.get("ctx", {})
    if kind == "missing":
        return bad_request(f"`{param}` is required", code="missing_required_parameter", param=param)
    if kind == "value_error":  # from our validators: the error may have a code and a place within the field
        cause = context.get("error")
        code = getattr(cause, "code", None) or "invalid_value"
        return bad_request(f"`{param}`: {cause}", code=code, param=param + getattr(cause, "place", ""))
    # of a union there is an error for each member
    wanted = dict.fromkeys(_must_be(each) for each in errors if _place(each["loc"]) == place)
    message = f"`{param}` must be " + " or ".join(text.removeprefix("must be ") for text in wanted)
    if len(wanted) == 1:
        message = f"`{param}` {next(iter(wanted))}"
    if kind in _BOUNDS:
        number = "integer" if isinstance(found["input"], int) and isinstance(_bound(context), int) else "decimal"
        return bad_request(message, code=f"{number}_{_BOUNDS[kind]}", param=param)
    if kind in _LENGTHS:
        return bad_request(message, code=_LENGTHS[kind], param=param)
    code = "invalid_value" if kind in ("literal_error", "enum", "string_pattern_mismatch") else "invalid_type"
    return bad_request(message, code=code, param=param)


def _must_be(found: ErrorDetails) -> str:
    facts = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in found.get("ctx", {}).items()
    }
    wanted = _MUST_BE.get(found["type"], "is not valid").format_map(facts)
    return wanted.replace(" 1 entries", " 1 entry").replace(" 1 characters", " 1 character")


def _place(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The place in the body. pydantic adds the name of a member of a union, which is left out."""
    is_of_union = len(loc) > 1 and isinstance(loc[-1], str) and _UNION_TAG.fullmatch(loc[-1])
    return loc[:-1] if is_of_union else loc


class FieldError(ValueError):
    """Raised by validators of protocol models: an invalid field, with its error code."""

    def __init__(self, message: str, *, code: str = "invalid_value", place: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.place = place  # within the field, such as `[0]`


def _bound(context: Mapping[str, Any]) -> Any:
    return next((context[name] for name in ("ge", "gt", "le", "lt") if name in context), None)


def _path(loc: tuple[int | str, ...]) -> str:
    """("messages", 0, "role") -> messages[0].role"""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path
