"""Endpoint: one route's function as an ASGI app. Call: the argument of such a function."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, aclosing
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException

from ..engine.api import AdapterRef, CacheScope, EngineDead, InvalidRequest, RequestInputs, SamplingParams
from .access.auth import Key, Scope, check_scope
from .engine_errors import stopped_during_request
from .http.deadline import Deadline, header_timeouts
from .http.keep_alive import kept_alive
from .http.limits import ClientGone, check_json_content, read_body
from .http.rank import named_rank
from .observe.metrics import TokenKind
from .observe.tracing import TracedRequest
from .protocol import json
from .protocol.chat import Dialogue
from .protocol.errors import INVALID, ApiError, bad_request, internal_error
from .protocol.fields import CommonFields, SamplingFields
from .protocol.names import Names
from .protocol.pooling import PoolingFields
from .protocol.stream import DONE, error_frame
from .protocol.wire import Wire
from .service import Service

logger = logging.getLogger(__name__)
Body = TypeVar("Body", bound=Wire)
T = TypeVar("T")
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
LONG_BODY_BYTES = 64 << 10  # longer bodies are read in another process: here they would hold the GIL for long
MAX_NOTED = 16  # names in one header
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
INLINE_ITEMS = 1024  # work on more tokens than these is done in a thread; less takes a few milliseconds


class Call:
    """One HTTP request, with methods to read its body and to send a response."""

    def __init__(
        self, service: Service, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send, route: str
    ) -> None:
        self.service = service
        self.scope = scope
        self.receive = receive
        self.route = route
        self.arrived_at: float = scope["stoker.arrived_at"]
        self.cache_scope = CacheScope(scope["stoker.cache_salt"], service.cache_epoch)
        self.log_fields: dict[str, Any] = scope["stoker.log_fields"]  # of the access log line of this request
        self.owner: str = scope["stoker.owner"]  # of files, batches and stored responses
        self.request_id: str | None = scope["stoker.request_id"]  # of the header X-Request-Id
        self.key: Key | None = scope.get("stoker.key")  # None: the route needs none, or the server has none
        self.unique_id: str = scope["stoker.unique_id"]  # in the answer's header X-Request-Id if the request has none
        self.headers: dict[str, str] = {}  # of the response, in addition; set before it starts
        self.traced: TracedRequest | None = None  # what its span shows, if requests are traced
        self.admission = ExitStack()  # closed when the request no longer counts for the limits of its key
        self.num_body_bytes = 0  # set by `body`
        self.adapter: AdapterRef | None = None  # set by `named_model`
        self.long_body: bytes | bytearray = b""  # of a conversation, until it is rendered; see isolation.py
        self.body_model = ""  # name of its protocol model
        # The field by which another dialect asks for thinking, which is a wish there; None: in ours it is not.
        self.thinking_param: str | None = None
        self.abort_ids: tuple[str, ...] = ()  # by which this key can end the request
        self.names: Names | None = None  # of the fields in the dialect of the body, for errors
        self.skipped: list[str] = []  # types of tools and of entries of the history that the body's dialect skips
        self._send = send
        self._reserved = ExitStack()  # memory of the body
        self._timeouts_s = header_timeouts(scope["headers"])

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the URL; of several with one name the last."""
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1")))

    def queries(self, name: str) -> list[str]:
        """All parameters of the URL with this name."""
        found = parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        return [value for each, value in found if each == name]

    def charge(self, num_tokens: int, kind: TokenKind) -> None:
        """Count tokens that the request uses for its key."""
        self.service.key_usage.charge(self.key, num_tokens)
        if self.key is not None and self.key.name is not None:
            self.service.metrics.key_tokens(self.key.name, kind, num_tokens)

    async def named_model(self, name: str | None) -> str:
        """The served name that a request means, of the model or of an adapter, which stays until the request ends.

        Raises ApiError: 404, or for an adapter of `lora.resolver_folder` that cannot be used.
        """
        adapter = await self.service.named_adapter(name)
        if adapter is None:
            return self.service.named_model(name)
        self.admission.enter_context(self.service.adapters.used(adapter))
        self.adapter = adapter.ref
        self.cache_scope = replace(self.cache_scope, adapter=adapter.ref.digest)
        self.log_fields["adapter"] = adapter.name
        return adapter.name

    async def checked_model(self, name: str | None) -> str:
        """The same name, for a request that generates nothing: no adapter is loaded. Raises ApiError 404."""
        adapter = await self.service.listed_adapter(name)
        if adapter is None:
            return self.service.named_model(name)
        self.log_fields["adapter"] = adapter.name
        return adapter.name

    def inputs(self, prompt: list[int], sampling: SamplingParams, body: SamplingFields) -> RequestInputs:
        """What a request of this call brings to the computation."""
        scope, transfer = self.salted(body.cache_salt), body.kv_transfer_params
        if transfer is not None and transfer.do_remote_decode:  # see PrefillServers: the reader's root text is the salt
            scope = replace(scope, is_root=True)
        return RequestInputs(prompt, sampling, scope, adapter=self.adapter)

    def salted(self, salt: str | None) -> CacheScope:
        """The scope of the request's prefixes, with the salt that it sends."""
        return replace(self.cache_scope, salt=self.cache_scope.salt + salt) if salt else self.cache_scope

    @property
    def rank(self) -> int | None:
        """Rank of the replica that the header X-Data-Parallel-Rank names; None without it. Raises ApiError 400."""
        return named_rank(self.scope["headers"], self.service.resolved.topology.served_replicas)

    @property
    def deadline(self) -> Deadline | None:
        """Deadline after the shortest time that the request asks for, else after `server.request_timeout`."""
        timeout_s = min(self._timeouts_s, default=self.service.settings.request_timeout)
        if not timeout_s:
            return None
        return Deadline(timeout_s - (self.service.clock() - self.arrived_at), timeout_s)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Run the `async with` block until its end, the deadline, the shutdown, or until the client leaves.

        Raises ApiError or ClientGone. The body must have been read before.
        """
        return self.service.live.watch(self.receive, self.deadline, [(self.owner, name) for name in self.abort_ids])

    async def content(self) -> bytes | bytearray:
        """The body as it was sent. Its memory is reserved until `forget_body`."""
        check_json_content(self.scope)
        reserve = self._reserved.enter_context(self.service.bodies.reserve())
        content = await read_body(self.receive, self.service.limits, reserve)
        await self.service.turns.take()  # to read it, and to begin with the request
        return content

    def forget_body(self) -> None:
        """Release the memory of the body. May be called more than once."""
        self.long_body = b""
        self._reserved.close()

    async def body(self, model: type[Body], max_values: int = json.MAX_VALUES, *, keep: Sequence[str] = ()) -> Body:
        """The body as its protocol model. Raises ApiError for the first error in it, or ClientGone.

        Of a long body the model has what `Wire.essentials` says, and the fields `keep`; `long_body` is the whole if
        that is to be rendered.
        """
        content = await self.content()
        self.num_body_bytes = len(content)
        self.body_model = model.__name__
        if len(content) > LONG_BODY_BYTES:
            body = await self._long(model, content, max_values, keep)
            self._read_timeout(body)
            if isinstance(body, Dialogue):
                self.names = body.names
                self.long_body = content
                return body
        else:
            body = json.read(model, bytes(content), max_values)
            if isinstance(body, Dialogue):
                self.names, self.skipped = body.names, body.skipped
            body.refuse_unsupported()
            self._read_timeout(body)
            if unknown := body.unknown_fields:
                self.service.report_unknown(unknown, self.route)
        self.forget_body()
        return body

    def _read_timeout(self, body: Wire) -> None:
        if isinstance(body, CommonFields | PoolingFields) and body.timeout is not None:
            self._timeouts_s.append(body.timeout)

    async def _long(self, model: type[Body], content: bytes | bytearray, max_values: int, keep: Sequence[str]) -> Body:
        limit = self.service.text_limit()
        job = {"do": "parse", "model": model.__name__, "max_values": max_values, "limit": limit, "keep": keep}
        found = await self.service.ask_about_body(job, content)
        if found["unknown"]:
            self.service.report_unknown(found["unknown"], self.route, found["num_unknown"])
        fields, self.skipped = found["fields"], found["skipped"]
        # many token ids take milliseconds
        return await asyncio.get_running_loop().run_in_executor(self.service.writer, model.model_validate, fields)

    def note_ignored(self, param: str) -> None:
        """A field without effect on this model: named in a header of the response."""
        self._note("x-stoker-ignored-fields", param)

    def note_skipped(self, *, but: str | None = None) -> None:
        """Name the parts of the body that were skipped in a header of the response, except one type."""
        for kind in self.skipped:
            if kind != but:
                self._note("x-stoker-skipped-tools", kind)

    def api_error(self, error: Exception) -> ApiError:
        """The result of `to_api_error`, with the names that the fields have in the dialect of the body."""
        if self.names is not None and isinstance(error, ApiError | InvalidRequest):
            error = self.names.error(error)
        return to_api_error(error, self.service)

    def _note(self, header: str, value: str) -> None:
        """Adds a name to a header. Clients choose some of them: others than simple words become `other`."""
        shown = value if _WORD.fullmatch(value) else "other"
        noted = self.headers[header].split(", ") if header in self.headers else []
        if shown not in noted and len(noted) < MAX_NOTED:
            self.headers[header] = ", ".join([*noted, shown])

    async def answer(
        self, body: bytes | dict[str, Any] | list[Any], *, status: int = 200, headers: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> None:  # fmt: skip
        content = body if isinstance(body, bytes) else json.dump(body)
        sent = {"content-type": content_type, "content-length": str(len(content)), **self.headers, **(headers or {})}
        await self._send(_start(status, sent))
        await self._send({"type": "http.response.body", "body": content})

    async def answer_pieces(self, read: Callable[[], bytes], size: int, *, content_type: str) -> None:
        """Respond with `size` bytes, which `read` returns piece by piece; it is called in a thread."""
        await self._send(_start(200, {"content-type": content_type, "content-length": str(size), **self.headers}))
        while size > 0 and (piece := await asyncio.to_thread(read)):
            size -= len(piece)
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def sized(self, num_items: int, work: Callable[[], T]) -> T:
        """The result of `work`, which takes some microseconds for each item; for many items it runs in a thread."""
        if num_items <= INLINE_ITEMS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self.service.writer, work)

    async def answer_sized(self, num_items: int, build: Callable[[], dict[str, Any] | list[Any]]) -> None:
        """`answer` with an object of about `num_items` items; one of many is built and encoded in a thread."""
        encode = json.dump if num_items <= INLINE_ITEMS else json.dump_long
        await self.answer(await self.sized(num_items, lambda: encode(build())))

    async def stream(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        end: bytes = DONE,
        error_frame: Callable[[ApiError], bytes] = error_frame,
    ) -> None:
        """Respond with server-sent events: `frames`, then `end`; after an error one error event and no `end`.

        The response starts with the first frame, or with a comment (`server.sse_keep_alive_interval`): an error before
        it is raised, and becomes an error response. Raises ClientGone when the client leaves; `frames` is closed then,
        which aborts the generation.
        """
        stream = _EventStream(self._send, self.headers)
        interval_s = self.service.settings.sse_keep_alive_interval
        sent = kept_alive(frames, interval_s) if interval_s else frames
        try:
            async with self.running(), aclosing(frames), aclosing(sent):
                async for frame in sent:
                    await stream.write(frame)
                await stream.close(end)
        except ClientGone:
            raise
        except Exception as error:
            if not stream.has_started:
                raise
            answer = self.api_error(error)
            self.log_fields["error"] = answer.code
            await stream.close(error_frame(answer))


class _EventStream:
    def __init__(self, send: Send, headers: Mapping[str, str]) -> None:
        """headers: read when the first frame is written."""
        self._send = send
        self._headers = headers
        self.has_started = False

    async def write(self, frames: bytes) -> None:
        await self._write(frames, more_body=True)

    async def close(self, last: bytes) -> None:
        await self._write(last, more_body=False)

    async def _write(self, frames: bytes, *, more_body: bool) -> None:
        if not self.has_started:
            self.has_started = True
            # x-accel-buffering: a proxy must not buffer the stream
            headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache",
                       "x-accel-buffering": "no", **self._headers}  # fmt: skip
            await self._send(_start(200, headers))
        await self._send({"type": "http.response.body", "body": frames, "more_body": more_body})


def to_api_error(error: Exception, service: Service) -> ApiError:
    """Any exception as an error response. An unexpected one is logged with its traceback, and shown as a bare 500."""
    if isinstance(error, HTTPException):
        answer = _http_error(error)
    elif isinstance(error, ApiError):
        answer = error
    elif isinstance(error, InvalidRequest):
        answer = bad_request(str(error), code=error.code, param=error.param)
    elif isinstance(error, EngineDead):
        answer = stopped_during_request(service.client.state)
    else:
        logger.error("a request failed", exc_info=error)
        return internal_error()
    if service.settings.log_error_stack:
        fields = {"status": answer.status, "code": answer.code}
        logger.warning("error response: %s", answer.message, exc_info=error, extra={"fields": fields})
    return answer


def _http_error(error: HTTPException) -> ApiError:
    """An error that the operator's middleware raised, such as HTTPException(403, "closed today")."""
    status = error.status_code
    kind = "server_error" if status >= 500 else INVALID
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    return ApiError(status, str(error.detail), code=f"http_{status}", kind=kind, headers=headers)


class Endpoint:
    """A route's function as an ASGI app."""

    def __init__(
        self,
        service: Service,
        route: str,
        handle: Callable[[Call], Awaitable[None]],
        *,
        scope: Scope = "inference",
        is_limited: bool = False,
        refusal: Callable[[], ApiError | None] = lambda: None,
    ) -> None:
        """
        scope: that a key needs.
        is_limited: whether the limits of a key count its requests.
        refusal: why the model cannot serve this route; None if it can.
        """
        self._service = service
        self._route = route
        self._handle = handle
        self._scope = scope
        self._is_limited = is_limited
        self._refusal = refusal

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        scope["stoker.route"] = self._route
        call = Call(self._service, scope, receive, send, self._route)
        if self._service.tracing is not None and self._is_limited:
            call.traced = TracedRequest(scope["headers"], self._route, call.arrived_at, call.log_fields)
            scope["stoker.traced"] = call.traced
        check_scope(call.key, self._scope, f"{scope['method']} {self._route}")
        if (refusal := self._refusal()) is not None:
            raise refusal
        with call.admission:
            call.admission.enter_context(self._service.key_usage.admitted(call.key if self._is_limited else None))
            try:
                await self._handle(call)
            except (ApiError, InvalidRequest) as error:
                if call.names is None:
                    raise
                raise call.names.error(error) from error
            finally:
                call.forget_body()


def _start(status: int, headers: Mapping[str, str]) -> Message:
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": raw}
