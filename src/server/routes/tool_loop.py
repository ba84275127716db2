"""POST /v1/responses with tools of configured MCP servers (`server.tool_server`): responses of the model are made until
it calls none of them.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import ValidationError

from ..answers.responses import Event, error_object, response_event
from ..endpoint import Call, Message
from ..protocol.errors import ApiError, bad_request, from_validation
from ..protocol.responses import ResponsesRequest
from ..tool_server.loop import ToolLoop
from ..tool_server.servers import ToolServers
from .responding import Generated, Item

MAX_BYTES = 1 << 20  # of a request with such tools, which is read here
_OUTER = ("background", "max_tool_calls", "previous_response_id")  # of the whole response, not of a round


def names_servers(body: ResponsesRequest) -> bool:
    return any(tool["type"] == "mcp" for tool in body.tools or ())


class WithTools:
    """A response whose calls of configured tools are run here."""

    def __init__(
        self, call: Call, body: ResponsesRequest, model: str, earlier: Sequence[Item], servers: ToolServers
    ) -> None:
        """earlier: the items of the response that this one continues. Raises ApiError for a body that is too long."""
        if call.num_body_bytes > MAX_BYTES:
            message = f"a body with tools of type `mcp` can have at most {MAX_BYTES} bytes"
            raise bad_request(message, code="json_too_large", param="tools")
        call.forget_body()  # it is in `body`
        self._call = call
        self._body = body
        self._model = model
        self._earlier = earlier
        self._fields = body.essentials()
        given = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
        self._loop = ToolLoop(
            servers,
            body.tools or [],
            given,
            self._round,
            known=[*earlier, *given],
            choice=body.tool_choice,
            max_calls=body.max_tool_calls,
        )

    async def start(self) -> None:
        first = await self._loop.start()
        assert isinstance(first, Generated)
        self._head = {
            **first.head,
            "id": f"resp_{uuid.uuid4().hex}",
            "tools": self._body.tools,
            "tool_choice": self._body.tool_choice or "auto",
            "background": bool(self._body.background),
            **{name: getattr(self._body, name) for name in ("max_tool_calls", "previous_response_id")},
        }

    def begin(self, status: str = "in_progress") -> list[Event]:
        response = self.response(status)
        return [response_event(kind, response) for kind in ("created", status)]

    def proceed(self) -> list[Event]:
        return [response_event("in_progress", self.response("in_progress"))]

    async def events(self) -> AsyncGenerator[list[Event], None]:
        async with aclosing(self._loop.events()) as found:
            async for events in found:
                yield events
        last = self._loop.last
        ended = {name: last[name] for name in ("completed_at", "incomplete_details")}
        response = {**self.response(last["status"]), **ended, "usage": self._loop.usage or None}
        yield [response_event(last["status"], response)]

    def failed(self, error: ApiError) -> list[Event]:
        events = self._loop.failed(error)
        response = {**self.response("failed"), "error": error_object(error)}
        return [*events, response_event("failed", response)]

    def response(self, status: str) -> dict[str, Any]:
        nothing = {"completed_at": None, "error": None, "incomplete_details": None, "usage": None}
        return {**self._head, "status": status, **nothing, "output": [*self._loop.output]}

    @property
    def answer(self) -> list[Item]:
        return self._loop.answer

    def _round(self, fields: dict[str, Any]) -> Generated:
        outer = {"stream": None, "store": None, **dict.fromkeys(_OUTER)}
        try:
            body = ResponsesRequest.model_validate({**self._fields, **outer, **fields})
        except ValidationError as error:  # such as a name of a tool that no call can have
            raise from_validation(error) from None
        scope = {**self._call.scope, "stoker.unique_id": uuid.uuid4().hex, "stoker.request_id": None}
        inner = Call(self._call.service, scope, _nothing, _nowhere, self._call.route)
        inner.headers = self._call.headers
        inner.thinking_param = self._call.thinking_param
        return Generated(inner, body, self._model, self._earlier)


async def _nothing() -> Message:
    raise AssertionError("the body was read")


async def _nowhere(message: Message) -> None:
    raise AssertionError("a round sends nothing")
