"""How a response is made (Production), and how it reaches its client: whole, as a stream, or in the background.

A Production is made by just the model (Generated), or with tools that the server runs (tool_loop.py).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from ..answers.responses import Event, EventFrames, ResponseWriter, error_event
from ..endpoint import Call, Message
from ..logprobs import chat_logprobs
from ..protocol.chat import ChatRequest
from ..protocol.errors import ApiError
from ..protocol.response_items import messages_of, with_parts
from ..protocol.responses import ResponsesRequest
from ..stored.event_log import EventLog
from ..stored.store import Store, Stored
from .answering import Answering
from .stored_responses import followed, in_store
from .usage import metrics, response_usage

Item = dict[str, Any]


class Production(Protocol):
    async def start(self) -> None:
        """Everything that can be wrong with the request. Nothing is generated. Raises ApiError, InvalidRequest."""

    def begin(self, status: str = "in_progress") -> list[Event]:
        """The first events. status: `in_progress`, or `queued`; then `proceed` follows."""

    def proceed(self) -> list[Event]: ...

    def events(self) -> AsyncGenerator[list[Event], None]:
        """The events after these. The last one has the complete response."""

    def failed(self, error: ApiError) -> list[Event]:
        """The last events, instead of the end of `events`."""

    def response(self, status: str) -> dict[str, Any]:
        """The response object as it is now."""

    @property
    def answer(self) -> list[Item]:
        """What the model has written so far, and results of calls, as it would read them."""


class Delivery:
    def __init__(
        self, call: Call, body: ResponsesRequest, earlier: list[Item], store: Store | None, production: Production
    ) -> None:
        """earlier: the items of the response that this one continues. store: None if it is not to be stored."""
        self._call = call
        self._body = body
        self._earlier = earlier
        self._store = store
        self._production = production
        self._owner = call.owner
        self._frames = EventFrames()
        given = body.input
        items = [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given
        self._input = [{"id": f"item_{uuid.uuid4().hex}", **with_parts(item)} for item in items]
        self._first: list[Event] | None = None  # events of a stream that are not sent yet; None until it is prepared
        self._now: dict[str, Any] = {}  # the response in the background, as clients see it

    async def run(self) -> None:
        call, body = self._call, self._body
        if body.background:
            await self._start_in_background()
        elif body.stream:
            await call.stream(self._stream(), end=b"", error_frame=self._failed)
        else:
            async with call.running():
                await call.answer(await self._whole())

    async def _whole(self) -> dict[str, Any]:
        await self._production.start()
        events: list[Event] = []
        async with aclosing(self._production.events()) as found:
            async for each in found:
                events = each or events
        response: dict[str, Any] = events[-1]["response"]
        await self._keep(response)
        return response

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        await self._production.start()
        self._first = self._production.begin()
        async with aclosing(self._production.events()) as found:
            async for events in found:
                if _is_end(events):
                    await self._keep(events[-1]["response"])
                # the engine has accepted the request: it can be said that the response begins
                if frames := self._frames.encode([*self._first, *events]):
                    yield b"".join(frames)
                self._first = []

    def _failed(self, error: ApiError) -> bytes:
        """Frames for an error after the first frame, which may have been a comment."""
        if self._first is None:
            return error_event(error)
        return b"".join(self._frames.encode([*self._first, *self._production.failed(error)]))

    async def _start_in_background(self) -> None:
        """Answers with the response as it is stored now, or with the stream of its events.

        It is generated in its own task, whether the client stays or not.
        """
        call, production = self._call, self._production
        await production.start()
        background = call.service.background
        log = EventLog(background.log_memory) if self._body.stream else None
        self._now = production.response("queued")
        self._add(log, production.begin("queued"))
        await self._keep(self._now)
        background.start(
            self._owner,
            self._now["id"],
            self._in_background(log),
            lambda: self._now,
            log,
            call.admission.pop_all().close,  # it counts for the limits of its key until it has ended
        )
        if log is None:
            await call.answer(self._now)
        else:
            await call.stream(followed(log, -1), end=b"", error_frame=error_event)

    async def _in_background(self, log: EventLog | None) -> None:
        service, production = self._call.service, self._production
        try:
            async with service.live.watch(_never, self._call.deadline), aclosing(production.events()) as found:
                first = production.proceed()
                async for events in found:
                    self._now = events[-1]["response"] if _is_end(events) else production.response("in_progress")
                    self._add(log, [*first, *events])
                    first = []
        except asyncio.CancelledError:
            self._now = production.response("cancelled")
            raise
        except Exception as error:
            last = production.failed(self._call.api_error(error))
            self._now = last[-1]["response"]
            self._add(log, last)
        finally:
            try:
                await self._keep(self._now, log)
            finally:  # also if it is cancelled once more: clients wait for the end of the log
                if log is not None:
                    log.end()

    def _add(self, log: EventLog | None, events: Sequence[Event]) -> None:
        if log is not None:
            log.add(self._frames.encode(events))

    async def _keep(self, response: dict[str, Any], log: EventLog | None = None) -> None:
        if self._store is None:
            return
        answer = self._production.answer
        stored = Stored(response, [*self._earlier, *self._input, *answer], len(self._input), len(answer))
        packed = None if log is None else log.packed
        await in_store(
            self._call.service, lambda store: store.put(self._owner, stored, None if packed is None else packed())
        )


class Generated:
    """A response that only the model writes."""

    def __init__(self, call: Call, body: ResponsesRequest, model: str, earlier: Sequence[Item]) -> None:
        """earlier: the items of the response that this one continues."""
        self._call = call
        self._body = body
        self._model = model
        self._earlier = earlier

    async def start(self) -> None:
        body, call = self._body, self._call
        chat = body.conversation()
        earlier = messages_of(self._earlier).messages
        if earlier and call.names is not None:
            call.names = call.names.without_places()
        self._answering = await Answering.start(call, chat, prefix="resp_", has_own_id=True, earlier=earlier)
        names = call.service.token_names(None)
        num_top = self._answering.num_top
        self.head = self._head(self._answering, chat)
        self._writer = ResponseWriter(
            body, self.head, write_logprobs=lambda entries: chat_logprobs(entries, num_top, names)["content"]
        )

    def begin(self, status: str = "in_progress") -> list[Event]:
        return self._writer.begin(status)

    def proceed(self) -> list[Event]:
        return self._writer.proceed()

    async def events(self) -> AsyncGenerator[list[Event], None]:
        async with aclosing(self._answering.deltas()) as deltas:
            async for delta in deltas:
                events = self._writer.add(delta)
                if delta.finish_reason is not None:
                    settings = self._call.service.settings
                    extra = metrics(self._answering.generation, settings)
                    events += self._writer.end(delta.finish_reason, self._usage(), extra)
                yield events

    def failed(self, error: ApiError) -> list[Event]:
        return self._writer.failed(error)

    def response(self, status: str) -> dict[str, Any]:
        return self._writer.response(status)

    @property
    def answer(self) -> list[Item]:
        return self._writer.items

    def _head(self, answering: Answering, chat: ChatRequest) -> dict[str, Any]:
        """What the request asked for, as far as it has an effect, and what the server decided."""
        body, sampling = self._body, answering.request.inputs.sampling
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
            "store": body.store is not False and self._call.service.responses is not None,
            "temperature": sampling.temperature,
            "text": {"format": (body.text.format if body.text else None) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": answering.num_top,
            "top_p": sampling.top_p,
            "truncation": body.truncation or "disabled",
            "user": body.user,
        }

    def _usage(self) -> dict[str, Any]:
        answering, settings = self._answering, self._call.service.settings
        return response_usage(answering.generation, settings, answering.num_reasoning_tokens)


def _is_end(events: Sequence[Event]) -> bool:
    return bool(events) and "response" in events[-1]


async def _never() -> Message:
    """The client of a response in the background does not leave."""
    future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await future
