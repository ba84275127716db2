"""POST /v1/responses, and the count of its input. Stored responses: stored_responses.py."""

from __future__ import annotations

from typing import Any

from ..endpoint import Call
from ..protocol.errors import bad_request
from ..protocol.response_items import messages_of
from ..protocol.responses import ResponsesRequest
from ..service import Service
from ..stored.store import Store
from .answering import rendered_for_counting
from .responding import Delivery, Generated, Production
from .stored_responses import find
from .tool_loop import WithTools, names_servers


async def create(call: Call) -> None:
    service = call.service
    needs_input = service.responses is not None or service.tool_servers is not None
    body = await call.body(ResponsesRequest, keep=("input",) if needs_input else ())
    model = await call.named_model(body.model)
    service.check_ready()
    call.thinking_param = "reasoning.effort"
    servers = service.tool_servers if names_servers(body) else None
    call.note_skipped(but=None if servers is None else "mcp")
    store = _store_of(service, body)
    earlier = await _earlier(call, body)
    production: Production
    if servers is None:
        production = Generated(call, body, model, earlier)
    else:
        production = WithTools(call, body, model, earlier, servers)
    await Delivery(call, body, earlier, store, production).run()


def _store_of(service: Service, body: ResponsesRequest) -> Store | None:
    """Store for the response; None if it is not to be stored. Raises ApiError for what needs a store."""
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
    param = "previous_response_id"
    stored = await find(call, body.previous_response_id, param)
    if stored.response["status"] in ("queued", "in_progress"):
        raise bad_request("this response is not complete yet", code="response_not_complete", param=param)
    return stored.items


async def input_tokens(call: Call) -> None:
    """The length of the prompt that such a request has."""
    service = call.service
    body = await call.body(ResponsesRequest)
    await call.checked_model(body.model)
    call.thinking_param = "reasoning.effort"
    _store_of(service, body)
    call.note_skipped()
    earlier = messages_of(await _earlier(call, body)).messages
    num_tokens = await rendered_for_counting(call, body.conversation(), earlier)
    await call.answer({"object": "response.input_tokens", "input_tokens": num_tokens})
