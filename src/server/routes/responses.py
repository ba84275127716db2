"""POST /v1/responses and the routes of stored responses."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from ..answers.responses import ResponseWriter, frames
from ..endpoint import Call, Message, to_api_error
from ..logprobs import chat_logprobs
from ..protocol.chat import ChatRequest
from ..protocol.errors import ApiError, bad_request, unsupported
from ..protocol.response_items import messages_of
from ..protocol.responses import ResponsesRequest
from ..service import Service
from ..stored.store import Store, Stored
from .answering import Answering, rendered_for_counting
from .usage import response_usage

T = TypeVar("T")
_PAGE = 20  # input items, if the client does not say how many


async def create(call: Call) -> None:
    service = call.service
    body = await call.body(ResponsesRequest, keep=() if service.responses is None else ("input",))
    model = service.named_model(body.model)
    service.check_ready()
    call.thinking_param = "reasoning.effort"
    for kind in body.known_tools.skipped:
        call.note_skipped_tool(kind)
    store = _store_of(service, body)
    earlier = await _earlier(call, body)
    job = _Job(call, body, model, earlier, store)
    if body.background:
        await job.run_in_background()
    elif body.stream:
        await call.stream(job.frames(), end=b"", error_frame=job.error_frame)
    else:
        async with call.running():
            await call.answer(await job.whole())


def _store_of(service: Service, body: ResponsesRequest) -> Store | None:
    """Where the response is to be stored. Raises ApiError for what needs a store."""
    if service.responses is None:
        for name in ("store", "previous_response_id", "background"):
            if getattr(body, name):
                message = (
                    f"`{name}` is not supported here: this deployment stores no responses (`server.responses_store`)"
                )
                raise bad_request(message, code="unsupported_parameter", param=name)
        return None
    return None if body.store is False else service.responses


async def _earlier(call: Call, body: ResponsesRequest) -> list[dict[str, Any]]:
    """The items of the response that this one continues."""
    if body.previous_response_id is None:
        return []
    return (await _find(call, body.previous_response_id, "previous_response_id")).items


class _Job:
    """One response: generated, written, and stored."""

    def __init__(
        self, call: Call, body: ResponsesRequest, model: str, earlier: list[dict[str, Any]], store: Store | None
    ) -> None:
        self._call = call
        self._body = body
        self._model = model
        self._earlier = earlier
        self._store = store
        self._owner = owner_of(call)
        self._writer: ResponseWriter | None = None

    async def frames(self) -> AsyncGenerator[bytes, None]:
        answering, writer = await self._start()
        is_first = True
        async with aclosing(answering.deltas()) as deltas:
            async for delta in deltas:
                events = writer.begin() if is_first else []  # now the engine has accepted the request
                is_first = False
                events += writer.add(delta)
                if delta.finish_reason is not None:
                    events += writer.end(delta.finish_reason, self._usage(answering))
                    await self._keep(events[-1]["response"])
                if events:
                    yield frames(events)

    async def whole(self) -> dict[str, Any]:
        answering, writer = await self._start()
        response: dict[str, Any] = {}
        async with aclosing(answering.deltas()) as deltas:
            async for delta in deltas:
                writer.add(delta)
                if delta.finish_reason is not None:
                    response = writer.end(delta.finish_reason, self._usage(answering))[-1]["response"]
        await self._keep(response)
        return response

    def error_frame(self, error: ApiError) -> bytes:
        """For an error after the first event."""
        assert self._writer is not None
        return frames(self._writer.failed(error))

    async def run_in_background(self) -> None:
        """Answers with the response as it is stored now. It is generated when the client has this answer."""
        answering, writer = await self._start()
        queued = writer.begin("queued")[-1]["response"]
        await self._keep(queued)
        self._call.service.background.start(self._owner, queued["id"], self._in_background(answering, writer))
        await self._call.answer(queued)

    async def _in_background(self, answering: Answering, writer: ResponseWriter) -> None:
        service = self._call.service
        try:
            async with service.live.watch(_never, self._call.deadline), aclosing(answering.deltas()) as deltas:
                async for delta in deltas:
                    writer.add(delta)
                    if delta.finish_reason is not None:
                        event = writer.end(delta.finish_reason, self._usage(answering))[-1]
                        await self._keep(event["response"])
        except asyncio.CancelledError:
            await self._keep(writer.response("cancelled"))
            raise
        except Exception as error:
            await self._keep(writer.failed(to_api_error(error, service))[-1]["response"])

    async def _start(self) -> tuple[Answering, ResponseWriter]:
        body, call = self._body, self._call
        chat = body.conversation()
        answering = await Answering.start(call, chat, prefix="resp_", earlier=messages_of(self._earlier))
        names = call.service.token_names(None)
        num_top = answering.num_top
        self._writer = ResponseWriter(
            body,
            self._head(answering, chat),
            write_logprobs=lambda entries: chat_logprobs(entries, num_top, names)["content"],
        )
        return answering, self._writer

    def _head(self, answering: Answering, chat: ChatRequest) -> dict[str, Any]:
        """What the request asked for, as far as it has an effect, and what the server decided."""
        body, sampling = self._body, answering.request.sampling
        is_ignored = "reasoning.effort" in self._call.headers.get("x-stoker-ignored-fields", "")
        reasoning = body.reasoning
        return {
            "id": answering.response_id,
            "object": "response",
            "created_at": answering.created,
            "model": self._model,
            "background": bool(body.background),
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {
                "effort": reasoning.effort if reasoning and not is_ignored else None,
                "summary": (reasoning.summary or reasoning.generate_summary) if reasoning else None,
            },
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": self._store is not None,
            "temperature": sampling.temperature,
            "text": {"format": (body.text.format if body.text else None) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": answering.num_top,
            "top_p": sampling.top_p,
            "truncation": body.truncation or "disabled",
            "user": body.user,
        }

    def _usage(self, answering: Answering) -> dict[str, Any]:
        settings = self._call.service.settings
        return response_usage(answering.generation, settings, answering.num_reasoning_tokens)

    async def _keep(self, response: dict[str, Any]) -> None:
        if self._store is None:
            return
        given = self._body.input
        items = [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given
        named = [{"id": f"item_{uuid.uuid4().hex}", **item} for item in items]
        stored = Stored(response, [*self._earlier, *named, *response["output"]], len(named))
        await _in_thread(self._call.service, lambda store: store.put(self._owner, stored))


async def retrieve(call: Call) -> None:
    if call.query.get("stream", "false") != "false":
        raise unsupported("stream", " here: read the response when its status is completed")
    stored = await _found(call)
    await call.answer(stored.response)


async def delete(call: Call) -> None:
    response_id: str = call.scope["path_params"]["response_id"]
    await call.service.background.cancel(owner_of(call), response_id)
    if not await _in_thread(call.service, lambda store: store.delete(owner_of(call), response_id)):
        raise _not_found(response_id)
    await call.answer({"id": response_id, "object": "response.deleted", "deleted": True})


async def cancel(call: Call) -> None:
    stored = await _found(call)
    response_id = stored.response["id"]
    if not stored.response["background"]:
        message = "only a response with `background: true` can be cancelled; close the connection of others"
        raise bad_request(message, param="response_id")
    if await call.service.background.cancel(owner_of(call), response_id):
        stored = await _found(call)
    await call.answer(stored.response)


async def input_items(call: Call) -> None:
    """The input of a stored response, page by page: newest first, unless the client asks otherwise."""
    stored = await _found(call)
    query = call.query
    limit, order, after = query.get("limit", str(_PAGE)), query.get("order", "desc"), query.get("after")
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit) <= 100:
        raise bad_request("`limit` must be from 1 to 100", param="limit")
    if order not in ("asc", "desc"):
        raise bad_request("`order` must be asc or desc", param="order")
    items = stored.input if order == "asc" else stored.input[::-1]
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise bad_request("`after` must be the id of an input item", param="after")
    first = 0 if after is None else ids.index(after) + 1
    page = items[first : first + int(limit)]
    await call.answer(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": first + len(page) < len(items),
        }
    )


async def input_tokens(call: Call) -> None:
    """The length of the prompt that such a request has."""
    service = call.service
    body = await call.body(ResponsesRequest)
    service.named_model(body.model)
    call.thinking_param = "reasoning.effort"
    _store_of(service, body)
    earlier = messages_of(await _earlier(call, body))
    num_tokens = await rendered_for_counting(call, body.conversation(), earlier)
    await call.answer({"object": "response.input_tokens", "input_tokens": num_tokens})


def owner_of(call: Call) -> str:
    """To whom a stored response belongs: the key, by its name if it has one, so that a new secret finds it too."""
    key = call.key
    if key is None:
        return ""
    return key.digest.hex() if key.name is None else f"key {key.name}"


async def _found(call: Call) -> Stored:
    return await _find(call, call.scope["path_params"]["response_id"], "response_id")


async def _find(call: Call, response_id: str, param: str) -> Stored:
    """Raises ApiError 404."""
    service, owner = call.service, owner_of(call)
    stored = await _in_thread(service, lambda store: store.get(owner, response_id))
    if stored is None:
        raise _not_found(response_id, param)
    response = stored.response
    is_orphan = response["status"] in ("queued", "in_progress") and response["created_at"] < service.started_at
    if is_orphan and not service.background.is_running(owner, response_id):
        error = {"code": "server_error", "message": "the server stopped while it generated this response"}
        stored = Stored({**response, "status": "failed", "error": error}, stored.items, stored.num_input)
    return stored


def _not_found(response_id: str, param: str = "response_id") -> ApiError:
    message = f"no response {response_id[:100]!r} is stored: there is none, or it has expired"
    return ApiError(404, message, code="not_found", param=param)


async def _in_thread(service: Service, work: Callable[[Store], T]) -> T:
    """Of the store, which may wait for a disk."""
    store = service.responses
    if store is None:
        message = "this deployment stores no responses (`server.responses_store`)"
        raise ApiError(404, message, code="not_found", param="response_id")
    return await asyncio.get_running_loop().run_in_executor(service.writer, work, store)


async def _never() -> Message:
    """The client of a response in the background does not leave."""
    future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await future
