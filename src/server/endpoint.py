"""Endpoint: one route's function as an ASGI app, and what every such function is given."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.exceptions import HTTPException

from ..engine.api import InvalidRequest
from .limits import ClientGone, check_json_content, read_body
from .protocol import json
from .protocol.errors import ApiError, bad_request, from_validation, internal_error
from .protocol.fields import Wire
from .protocol.stream import DONE, error_frame
from .service import Service

logger = logging.getLogger(__name__)
Body = TypeVar("Body", bound=Wire)
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
# Larger bodies are parsed on one thread for all: each holds the interpreter for tens of milliseconds at a stretch, and
# the event loop must not have to wait behind several.
_PARSE_INLINE_BYTES = 64 << 10


class Call:
    """One HTTP request and the means to answer it."""

    def __init__(
        self, service: Service, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send, route: str
    ) -> None:
        self.service = service
        self.scope = scope
        self.receive = receive
        self.route = route
        self.arrived_at: float = scope["stoker.arrived_at"]
        self.cache_salt: str = scope["stoker.cache_salt"]
        self.facts: dict[str, Any] = scope["stoker.facts"]  # for the log line of this request
        self.num_body_bytes = 0  # once `body` has read it
        self._send = send

    async def body(self, model: type[Body]) -> Body:
        """The body as its protocol model. Raises ApiError for the first fault in it, or ClientGone."""
        check_json_content(self.scope)
        content = await read_body(self.receive, self.service.limits)
        self.num_body_bytes = len(content)
        if len(content) <= _PARSE_INLINE_BYTES:
            body = _parse(model, content)
        else:
            body = await asyncio.get_running_loop().run_in_executor(self.service.parser, _parse, model, content)
        body.refuse_unsupported()
        if unknown := body.unknown_fields:
            self.service.note_unknown(unknown, self.route)
        return body

    async def answer(
        self, body: bytes | dict[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> None:  # fmt: skip
        content = body if isinstance(body, bytes) else json.dump(body)
        sent = {"content-type": content_type, "content-length": str(len(content)), **(headers or {})}
        await self._send(_start(status, sent))
        await self._send({"type": "http.response.body", "body": content})

    async def stream(self, frames: AsyncGenerator[bytes, None]) -> None:
        """Answer with server-sent events, `[DONE]` behind the last; or with one error event and no `[DONE]`.

        The answer starts with its first frame: an error before that is raised, and becomes an answer of its own.
        Raises ClientGone when the client leaves; `frames` is closed then, which aborts what makes them.
        """
        stream = _EventStream(self._send)
        try:
            async with self.service.live.watch(self.receive), aclosing(frames):
                async for frame in frames:
                    await stream.write(frame)
                await stream.close(DONE)
        except ClientGone:
            raise
        except Exception as error:
            if not stream.has_started:
                raise
            answer = to_api_error(error, self.service)
            self.facts["error"] = answer.code
            await stream.close(error_frame(answer))


def _parse(model: type[Body], content: bytes) -> Body:
    try:
        return model.model_validate(json.parse(content))
    except ValidationError as error:
        raise from_validation(error) from None


class _EventStream:
    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False

    async def write(self, frames: bytes) -> None:
        if not self.has_started:
            self.has_started = True
            # x-accel-buffering: a proxy in front must not collect the stream
            headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache",
                       "x-accel-buffering": "no"}  # fmt: skip
            await self._send(_start(200, headers))
        await self._send({"type": "http.response.body", "body": frames, "more_body": True})

    async def close(self, last: bytes) -> None:
        await self._send({"type": "http.response.body", "body": last, "more_body": False})


def to_api_error(error: Exception, service: Service) -> ApiError:
    """Any failure as an answer. What is not foreseen is logged with its traceback and shown as nothing but a 500."""
    if isinstance(error, HTTPException):
        answer = _http_error(error)
    elif isinstance(error, ApiError):
        answer = error
    elif isinstance(error, InvalidRequest):
        answer = bad_request(str(error), code=error.code, param=error.param)
    else:
        logger.error("a request failed", exc_info=error)
        return internal_error()
    if service.settings.log_error_stack:
        facts = {"status": answer.status, "code": answer.code}
        logger.warning("an error answer: %s", answer.message, exc_info=error, extra={"facts": facts})
    return answer


def _http_error(error: HTTPException) -> ApiError:
    """The router's own refusals."""
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if error.status_code == 405:
        message = f"this route takes {headers.get('allow', 'another method')}"
        return ApiError(405, message, code="method_not_allowed", headers=headers)
    return ApiError(error.status_code, "there is no such route", code="not_found", headers=headers)


class Endpoint:
    """A route's function as an ASGI app."""

    def __init__(self, service: Service, route: str, handle: Callable[[Call], Awaitable[None]]) -> None:
        self._service = service
        self._route = route
        self._handle = handle

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        scope["stoker.route"] = self._route
        await self._handle(Call(self._service, scope, receive, send, self._route))


def _start(status: int, headers: Mapping[str, str]) -> Message:
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": raw}
