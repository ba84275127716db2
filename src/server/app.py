"""The ASGI app: all routes, and the gate that every request passes first and every answer last."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route

from ..logs import log_facts
from .endpoint import Call, Endpoint, Message, Send, to_api_error
from .limits import ClientGone, check_headers
from .protocol.errors import ApiError
from .protocol.json import dump
from .routes.chat import chat_completions
from .routes.completions import completions
from .routes.health import livez, readyz
from .routes.metrics import metrics, version
from .routes.models import list_models, show_model
from .routes.tokenize import detokenize, tokenize
from .service import Service

Handler = Callable[[Call], Awaitable[None]]
logger = logging.getLogger(__name__)

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/v1/completions", completions),
    ("GET", "/v1/models", list_models),
    ("GET", "/v1/models/{model:path}", show_model),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
    ("GET", "/metrics", metrics),
    ("GET", "/version", version),
    ("GET", "/health", readyz),
    ("GET", "/livez", livez),
    ("GET", "/readyz", readyz),
)
_UNLOGGED = frozenset({"/health", "/livez", "/readyz", "/metrics"})
_CLIENT_GONE = 499  # in logs and metrics only: nobody is there to receive it
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def build_app(service: Service) -> Starlette:
    """The app of one deployment. `service.live.end_all` ends what is under way when the server must stop."""
    routes = [Route(path, Endpoint(service, path, handler), methods=[method]) for method, path, handler in ROUTES]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Gate, service=service)],
        exception_handlers={HTTPException: _raise_again},  # the gate answers every error, in one shape
    )
    # A redirect of /v1/models/ would be built from the client's Host header: a wrong path is a 404.
    app.router.redirect_slashes = False
    return app


async def _raise_again(request: Request, error: Exception) -> Any:
    raise error


class Gate:
    """Refuses early, answers errors, counts and logs. Nothing is authorised by what headers say of the address."""

    def __init__(self, app: Callable[..., Awaitable[None]], service: Service) -> None:
        self._app = app
        self._service = service
        self._root_path = service.settings.root_path.rstrip("/")

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        if scope["type"] != "http":
            return  # no lifespan, no web sockets
        answer = _Answer(send, self._request_id(scope))
        facts: dict[str, Any] = {}
        arrived_at = self._service.clock()
        scope.update({"stoker.arrived_at": arrived_at, "stoker.facts": facts, "stoker.cache_salt": ""})
        try:
            self._admit(scope)
            await self._app(scope, receive, answer.send)
        except ClientGone:
            pass  # nobody is left to answer; if nothing was sent the status stays _CLIENT_GONE
        except HTTPException as error:
            await answer.refuse(_http_error(error))
        except Exception as error:
            await answer.refuse(to_api_error(error))
        finally:
            route = scope.get("stoker.route", "other")
            method = (
                scope["method"] if scope["method"] in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE") else "other"
            )
            self._service.metrics.http_request(route, method, answer.status)
            if route not in _UNLOGGED:
                line = {"status": answer.status, "total_s": self._service.clock() - arrived_at, **facts}
                if answer.code:
                    line["code"] = answer.code
                log_facts(logger, logging.INFO, f"{method} {route}", line)

    def _admit(self, scope: Message) -> None:
        if self._root_path and scope["path"].startswith(self._root_path + "/"):
            scope["path"] = scope["path"][len(self._root_path) :]  # a proxy that does not strip its prefix
        check_headers(scope, self._service.limits)
        key = self._service.keys.check(scope["path"], scope["headers"])
        scope["stoker.cache_salt"] = self._service.keys.cache_salt(key)
        if key is not None:
            scope["stoker.facts"]["key"] = key

    def _request_id(self, scope: Message) -> str | None:
        if not self._service.settings.enable_request_id_headers:
            return None
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                sent: str = value.decode("latin-1")
                if _REQUEST_ID.fullmatch(sent):
                    return sent
        return uuid.uuid4().hex


class _Answer:
    """What has been sent, and the means to send an error if nothing has."""

    def __init__(self, send: Send, request_id: str | None) -> None:
        self._send = send
        self._request_id = request_id
        self._has_started = False
        self.status = _CLIENT_GONE  # unless something is sent
        self.code: str | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._has_started = True
            self.status = message["status"]
            if self._request_id is not None:
                message["headers"] = [*message["headers"], (b"x-request-id", self._request_id.encode("latin-1"))]
        await self._send(message)

    async def refuse(self, error: ApiError) -> None:
        self.code = error.code
        if self._has_started:
            return  # too late for another answer; the broken off body is the sign
        body = dump(error.body)
        headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": raw})
        await self.send({"type": "http.response.body", "body": body})


def _http_error(error: HTTPException) -> ApiError:
    """The router's own refusals."""
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if error.status_code == 405:
        message = f"this route takes {headers.get('allow', 'another method')}"
        return ApiError(405, message, code="method_not_allowed", headers=headers)
    return ApiError(error.status_code, "there is no such route", code="not_found", headers=headers)
