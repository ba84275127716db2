"""Configured middleware: the operator's own (`server.middleware`), and CORS (`server.allowed_origins`).

A request passes, in this order: CORS, the gate, the operator's middleware as listed, the key check, the routes. Errors
of the key check and of the routes are already HTTP responses when the operator's middleware gets them.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from ...config import ServerConfig
from ...config.resolve.import_path import ImportPathError, import_object
from ..protocol.errors import ApiError
from ..protocol.json import dump

READABLE_HEADERS = (
    "retry-after",
    "request-id",
    "x-prefix-kept",
    "x-request-id",
)  # response headers that scripts of other origins may read


class MiddlewareProblem(Exception):
    """A `server.middleware` that cannot be used."""


def load_middleware(paths: Sequence[str]) -> list[Middleware]:
    """Import each. Raises MiddlewareProblem for an object that is neither an async function nor an ASGI class."""
    return [_load(path) for path in paths]


def _load(path: str) -> Middleware:
    try:
        found = import_object(path)
    except ImportPathError as error:
        raise MiddlewareProblem(f"`server.middleware`: {error}") from None
    if inspect.isclass(found):
        _check_signature(path, found, ("app",))
        return Middleware(found)  # type: ignore[arg-type]
    if inspect.iscoroutinefunction(found):
        _check_signature(path, found, ("request", "call_next"))
        return Middleware(BaseHTTPMiddleware, dispatch=found)
    raise _problem(path, f"neither an async function nor a class, but {type(found).__name__}")


def _check_signature(path: str, found: object, arguments: tuple[str, ...]) -> None:
    try:
        inspect.signature(found).bind(*arguments)  # type: ignore[arg-type]
    except TypeError as error:
        raise _problem(path, f"cannot be called with ({', '.join(arguments)}): {error}") from None


def _problem(path: str, message: str) -> MiddlewareProblem:
    return MiddlewareProblem(f"`server.middleware`: {path}: {message}")


def cors(server: ServerConfig) -> list[Middleware]:
    """Middleware for CORS; empty without `allowed_origins`: browsers block requests from other origins then."""
    if not server.allowed_origins:
        return []
    return [
        Middleware(
            _Cors,
            allow_origins=server.allowed_origins,
            allow_methods=[method.upper() for method in server.allowed_methods],
            allow_headers=server.allowed_headers,
            allow_credentials=server.allow_credentials,
            expose_headers=READABLE_HEADERS,
        )
    ]


class _Cors(CORSMiddleware):
    """Starlette's CORS middleware; a refused preflight gets an error body of the usual shape."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        refused = bytes(response.body).decode().removeprefix("Disallowed CORS ")
        message = f"cross-origin requests with this {refused} are not allowed"
        body = dump(ApiError(400, message, code="cross_origin_refused").body)
        kept = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
        return Response(body, 400, kept, "application/json")
