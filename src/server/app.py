"""The ASGI app: all routes, and the gate, which every request and every response passes."""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route

from ..logs import ACCESS_LOGGER, REQUEST, log_fields
from .endpoint import Endpoint, Message, Send, to_api_error
from .http.limits import FORM_BYTES, ClientGone, check_headers
from .http.middleware import cors, load_middleware
from .http.sites import Sites
from .page.files import FOLDER
from .protocol.errors import ApiError
from .protocol.fields import REQUEST_ID
from .protocol.json import dump
from .protocol.messages import error_body, is_path_of_messages
from .routes.absent import NO_ENGINE, TABLE, NotHere, disabled
from .routes.page import assets
from .routes.route_entry import RouteEntry
from .routes.table import UPLOADS, other_ability, routes_of, routes_of_engine
from .service import Service

access_log = logging.getLogger(ACCESS_LOGGER)

_UNLOGGED = frozenset({"/health", "/livez", "/readyz", "/ping", "/metrics", "/load"})
_CLIENT_GONE = 499  # in logs and metrics only: the client left before a response was sent
_MAX_SHOWN_PATH = 200


def build_app(service: Service) -> Starlette:
    """The app of one deployment. `service.live.end_all` ends all running requests at shutdown.

    Raises MiddlewareProblem.
    """
    has_profiler = bool(service.resolved.observability.profiler_config)
    has_sleep = service.resolved.model.enable_sleep_mode
    entries = routes_of(service.settings, has_profiler=has_profiler, has_sleep=has_sleep)
    routes = [
        Route(
            route.path,
            Endpoint(
                service,
                route.path,
                route.handle,
                scope=route.scope,
                is_limited=route.is_limited,
                refusal=functools.partial(_refusal, service, route, entries),
            ),
            methods=[route.method],
        )
        for route in entries
    ]
    routes += [
        Route(file.path, Endpoint(service, FOLDER, file.handle, scope=file.scope), methods=[file.method])
        for file in assets(service.settings)
    ]
    routes += [
        Route(path, Endpoint(service, "absent", NotHere(absent), scope="read"))
        for absent in (*TABLE, *disabled(service.settings, has_profiler=has_profiler, has_sleep=has_sleep))
        for path in absent.paths
    ]
    routes += [
        Route(path, Endpoint(service, "absent", NotHere(NO_ENGINE), scope="read"))
        for path in sorted(routes_of_engine(service.settings))
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            *cors(service.settings),
            Middleware(_Gate, service=service),
            *load_middleware(service.settings.middleware),
            Middleware(_ErrorResponses, service=service),
            Middleware(_KeyCheck, service=service),
        ],
        exception_handlers={HTTPException: _route_error},
    )
    # No redirect of /v1/models/ to /v1/models: its URL would be built from the client's Host header. It is a 404.
    app.router.redirect_slashes = False
    app.middleware_stack = (
        app.build_middleware_stack()
    )  # now, so that a middleware class whose constructor raises ends the start
    return app


def _refusal(service: Service, route: RouteEntry, entries: Sequence[RouteEntry]) -> ApiError | None:
    return other_ability(route.needs, entries, service.abilities)


async def _route_error(request: Request, error: Exception) -> Any:
    """Raise an error of the router as an ApiError, which _ErrorResponses turns into the response."""
    assert isinstance(error, HTTPException)
    route = f"{request.method} {request.scope['path'][:_MAX_SHOWN_PATH]}"
    if error.status_code == 405:
        allowed = ", ".join(sorted((error.headers or {})["Allow"].split(", ")))  # starlette joins a set: in any order
        message = f"there is no route {route}: this path accepts {allowed}"
        raise ApiError(405, message, code="method_not_allowed", headers={"allow": allowed})
    raise ApiError(404, f"there is no route {route}", code="not_found")


class _Gate:
    """Checks the headers, turns exceptions of the operator's middleware into responses, counts and logs.

    Nothing is authorised by headers that name an address, such as Host or X-Forwarded-For; they can only be refused.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], service: Service) -> None:
        self._app = app
        self._service = service
        self._sites = Sites(service.settings)
        self._root_path = service.settings.root_path.rstrip("/")
        self._unlogged = _UNLOGGED.union(service.settings.disable_access_log_for_endpoints)

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        if scope["type"] != "http":
            return  # no lifespan, no web sockets
        request_id, unique_id = _request_id(scope), uuid.uuid4().hex
        own_id = request_id or unique_id
        answer = _Response(send, own_id, self._service.settings.enable_request_id_headers, scope)
        fields: dict[str, Any] = {"id": own_id}
        arrived_at = self._service.clock()
        scope.update({"stoker.arrived_at": arrived_at, "stoker.log_fields": fields, "stoker.cache_salt": "",
                      "stoker.request_id": request_id, "stoker.unique_id": unique_id})  # fmt: skip
        token = REQUEST.set(own_id)  # in the log lines of this request
        try:
            self._admit(scope)
            await self._app(scope, receive, answer.send)
        except ClientGone:
            pass  # if nothing was sent the status remains _CLIENT_GONE
        except Exception as error:  # of the header check, or of the operator's middleware
            if not answer.has_started:  # else the client sees an incomplete body
                await _refuse(error, self._service, scope, answer.send)
        finally:
            route = scope.get("stoker.route", "other")
            method = (
                scope["method"] if scope["method"] in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE") else "other"
            )
            self._service.metrics.http_request(route, method, answer.status)
            if (traced := scope.get("stoker.traced")) is not None and self._service.tracing is not None:
                traced.status = answer.status
                self._service.tracing.record(traced, self._service.clock())
            key = scope.get("stoker.key")
            if key is not None and key.name is not None:
                self._service.metrics.key_request(key.name, answer.status)
            is_logged = route not in self._unlogged and scope["path"] not in self._unlogged
            if is_logged and not self._service.settings.disable_access_log:
                line = {"status": answer.status, "total_s": self._service.clock() - arrived_at, **fields}
                log_fields(access_log, logging.INFO, f"{method} {route}", line)
            REQUEST.reset(token)

    def _admit(self, scope: Message) -> None:
        if self._root_path and scope["path"].startswith(self._root_path + "/"):
            scope["path"] = scope["path"][len(self._root_path) :]  # from a proxy that does not strip its prefix
        is_upload = scope["path"] == UPLOADS and self._service.settings.files_dir is not None
        max_bytes = self._service.settings.files_quota + FORM_BYTES if is_upload else None
        check_headers(scope, self._service.limits, max_bytes)
        self._sites.check(scope)


def _request_id(scope: Message) -> str | None:
    """The client's id of the request, if it has a valid one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            sent: str = value.decode("latin-1")
            if REQUEST_ID.fullmatch(sent):
                return sent
    return None


class _ErrorResponses:
    """Turns exceptions of the key check and the routes into responses.

    It is inside the operator's middleware, which therefore gets a response for each request.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        answer = _Response(send)
        try:
            await self._app(scope, receive, answer.send)
        except ClientGone:
            raise
        except Exception as error:
            if answer.has_started:
                raise
            await _refuse(error, self._service, scope, answer.send)


class _KeyCheck:
    """Refuses requests without a valid key. It is inside the operator's middleware, which may add a key."""

    def __init__(self, app: Callable[..., Awaitable[None]], service: Service) -> None:
        self._app = app
        self._keys = service.keys

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        owner = scope.get("stoker.owner")  # set by the runner of batches; requests from the network have none
        if owner is None:
            key = self._keys.check(scope["path"], scope["headers"], scope["method"])
        else:
            key = self._keys.of_owner(owner)
        scope["stoker.cache_salt"] = self._keys.cache_salt(key)
        scope["stoker.key"] = key
        scope["stoker.owner"] = self._keys.owner(key)
        if key is not None:
            scope["stoker.log_fields"]["key"] = self._keys.index(key) if key.name is None else key.name
        await self._app(scope, receive, send)


class _Response:
    """Passes a response on, and stores its status. A response of an error names the request, for a report of it."""

    def __init__(
        self, send: Send, request_id: str | None = None, names_always: bool = False, scope: Message | None = None
    ) -> None:
        """scope: of the request; Anthropic's clients read the id of each answer from their own header."""
        self._scope = scope
        self._send = send
        self._request_id = request_id
        self._names_from = 0 if names_always else 400
        self.has_started = False
        self.status = _CLIENT_GONE  # until a response is sent

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            self.status = message["status"]
            if self._request_id is not None and self.status >= self._names_from:
                message["headers"] = [*message["headers"], (b"x-request-id", self._request_id.encode("latin-1"))]
            if self._scope is not None and self._request_id is not None and is_path_of_messages(self._scope["path"]):
                message["headers"] = [*message["headers"], (b"request-id", self._request_id.encode("latin-1"))]
        await self._send(message)


async def _refuse(error: Exception, service: Service, scope: Message, send: Send) -> None:
    answer = to_api_error(error, service)
    scope["stoker.log_fields"]["code"] = answer.code
    body = dump(error_body(answer) if is_path_of_messages(scope["path"]) else answer.body)
    headers = {"content-type": "application/json", "content-length": str(len(body)), **answer.headers}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
