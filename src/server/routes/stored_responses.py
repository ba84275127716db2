"""The routes of stored responses: read, stream again, cancel, delete. Each key sees its own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from ..answers.responses import error_event
from ..endpoint import Call
from ..protocol.batches import PAGE_PARAMETERS
from ..protocol.errors import ApiError, bad_request, unsupported
from ..service import Service
from ..stored.event_log import EventLog, EventsLost
from ..stored.store import Store, Stored

T = TypeVar("T")
RETRIEVE_PARAMETERS = ("stream", "starting_after", "include_obfuscation")  # the last one without effect
_PAGE = 20  # input items, if the client does not say how many


async def retrieve(call: Call) -> None:
    _check_query(call, RETRIEVE_PARAMETERS)
    stored = await _found(call)
    if call.query.get("stream", "false") == "false":
        await call.answer(stored.response)
        return
    after = call.query.get("starting_after", "-1")
    if not re.fullmatch(r"-1|[0-9]{1,9}", after):
        raise bad_request("`starting_after` must be the number of an event", param="starting_after")
    log = await _log(call, stored.response["id"])
    await call.stream(followed(log, int(after)), end=b"", error_frame=error_event)


async def _log(call: Call, response_id: str) -> EventLog:
    """The events of a response, which may still be generated. Raises ApiError."""
    service, owner = call.service, call.owner
    running = service.background.get(owner, response_id)
    if running is not None and running.log is not None:
        return running.log
    packed = await in_store(service, lambda store: store.events(owner, response_id))
    if packed is None:
        raise _events_lost("no events of this response are stored: it was not created with `background` and `stream`")
    return EventLog.unpacked(packed)


async def followed(log: EventLog, after: int) -> AsyncGenerator[bytes, None]:
    """The frames of a log after the number `after`. Raises ApiError if they are lost."""
    try:
        async with aclosing(log.frames(after)) as frames:
            async for each in frames:
                yield each
    except EventsLost:
        raise _events_lost("the events of this response exceed `server.max_stored_bytes`") from None


def _events_lost(cause: str) -> ApiError:
    return bad_request(f"{cause}; read the response without `stream`", code="events_not_stored", param="stream")


async def delete(call: Call) -> None:
    response_id: str = call.scope["path_params"]["response_id"]
    await call.service.background.cancel(call.owner, response_id)
    if not await in_store(call.service, lambda store: store.delete(call.owner, response_id)):
        raise _not_found(response_id)
    await call.answer({"id": response_id, "object": "response.deleted", "deleted": True})


async def cancel(call: Call) -> None:
    stored = await _found(call)
    response_id = stored.response["id"]
    if not stored.response["background"]:
        message = "only a response with `background: true` can be cancelled; close the connection of others"
        raise bad_request(message, param="response_id")
    if await call.service.background.cancel(call.owner, response_id):
        stored = await _found(call)
    await call.answer(stored.response)


async def input_items(call: Call) -> None:
    """The input of a stored response, page by page: newest first, unless the client asks otherwise."""
    _check_query(call, PAGE_PARAMETERS)
    stored = await _found(call)
    query = call.query
    limit, order, after = query.get("limit", str(_PAGE)), query.get("order", "desc"), query.get("after")
    if not re.fullmatch(r"[0-9]{1,3}", limit) or not 1 <= int(limit) <= 100:
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


def _check_query(call: Call, known: Collection[str]) -> None:
    """Raises ApiError for a parameter that would have no effect."""
    for name in call.query:
        if name.removesuffix("[]") == "include":
            raise unsupported("include", ": what a response contains is chosen when it is created")
        if name not in known:
            raise bad_request(f"unknown parameter `{name[:100]}`", code="unknown_parameter", param=name[:100])


async def _found(call: Call) -> Stored:
    return await find(call, call.scope["path_params"]["response_id"], "response_id")


async def find(call: Call, response_id: str, param: str) -> Stored:
    """Raises ApiError 404."""
    service, owner = call.service, call.owner
    running = service.background.get(owner, response_id)  # before the store is read: when it has ended, it is stored
    stored = await in_store(service, lambda store: store.get(owner, response_id))
    if stored is None:
        raise _not_found(response_id, param)
    response = stored.response
    if running is not None:
        return replace(stored, response=running.response())
    if response["status"] in ("queued", "in_progress"):
        message = "the server stopped while it generated this response, or could not store it"
        error = {"code": "server_error", "message": message}
        stored = replace(stored, response={**response, "status": "failed", "error": error})
    return stored


def _not_found(response_id: str, param: str = "response_id") -> ApiError:
    message = f"no response {response_id[:100]!r} is stored: there is none, or it has expired"
    return ApiError(404, message, code="not_found", param=param)


async def in_store(service: Service, work: Callable[[Store], T]) -> T:
    """Run `work` on the store in a thread, since it may wait for a disk. Raises ApiError 404 without a store."""
    store = service.responses
    if store is None:
        message = "this deployment stores no responses (`server.responses_store`)"
        raise ApiError(404, message, code="not_found", param="response_id")
    return await asyncio.get_running_loop().run_in_executor(service.writer, work, store)
