"""What stands around the app by declaration: the operator's own middleware, and what browsers may do from other sites.

A request passes, in this order: cross-origin rules, the gate, middleware as listed, the keys, the routes. What keys and
routes refuse is an answer by the time that the middleware sees it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from ..config import ServerConfig
from ..config.resolve.import_path import split_import_path
from .protocol.errors import ApiError
from .protocol.json import dump

READABLE_HEADERS = ("retry-after", "x-request-id")  # of answers, for scripts of other sites


class MiddlewareProblem(Exception):
    """A `server.middleware` that cannot be used."""


def load_middleware(names: Sequence[str]) -> list[Middleware]:
    """Import each. Raises MiddlewareProblem for what is neither an async function nor an ASGI class."""
    return [_load(name) for name in names]


def _load(name: str) -> Middleware:
    parts = split_import_path(name)
    if parts is None:
        raise _problem(name, "is no import path: write package.module.name")
    module, attribute = parts
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # an import runs whatever the module holds
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            hint = "; it is looked for among the installed packages and in the folders of PYTHONPATH"
        raise _problem(name, f"cannot be imported: {error}{hint}") from None
    if inspect.isclass(found):
        _check_call(name, found, ("app",))
        return Middleware(found)  # type: ignore[arg-type]
    if inspect.iscoroutinefunction(found):
        _check_call(name, found, ("request", "call_next"))
        return Middleware(BaseHTTPMiddleware, dispatch=found)
    raise _problem(name, f"is neither an async function nor a class, but {type(found).__name__}")


def _check_call(name: str, found: object, arguments: tuple[str, ...]) -> None:
    try:
        inspect.signature(found).bind(*arguments)  # type: ignore[arg-type]
    except TypeError as error:
        raise _problem(name, f"does not take ({', '.join(arguments)}): {error}") from None


def _problem(name: str, said: str) -> MiddlewareProblem:
    return MiddlewareProblem(f"`server.middleware`: {name} {said}")


def cross_origin(server: ServerConfig) -> list[Middleware]:
    """Nothing without `allowed_origins`: browsers then keep other sites out by themselves."""
    if not server.allowed_origins:
        return []
    return [
        Middleware(
            _CrossOrigin,
            allow_origins=server.allowed_origins,
            allow_methods=[method.upper() for method in server.allowed_methods],
            allow_headers=server.allowed_headers,
            allow_credentials=server.allow_credentials,
            expose_headers=READABLE_HEADERS,
        )
    ]


class _CrossOrigin(CORSMiddleware):
    """Starlette's, with refusals in the shape of all errors."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        what = bytes(response.body).decode().removeprefix("Disallowed CORS ")
        message = f"calls from other sites are not allowed with this {what}"
        body = dump(ApiError(400, message, code="cross_origin_refused").body)
        kept = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
        return Response(body, 400, kept, "application/json")
