"""Runs a batch: a number of requests at a time. Each result is written when its request ends, in that order.

Requests that fail because the engine stopped are sent again when it is ready, up to ATTEMPTS times. Requests refused
because the queue is full are sent again after another one has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, BinaryIO

from ...engine.client.engine_client import EngineState
from ..in_process import Answer, App, post
from ..protocol.batches import ROUTES
from ..protocol.errors import ApiError
from ..service import Service
from .lines import BatchRequest, LineError, answered, duplicate, failed, lines_of, read_line, result_id
from .part_file import Counts, PartFile

ATTEMPTS = 3  # of a request during which the engine stopped: the request may be the cause
_POLL_S = 0.1
_MAX_WAIT_S = 60.0  # before a request that was refused is sent again


class EngineGone(Exception):
    """The engine will not be started again; the rest of the batch cannot be run."""


class Batch:
    """One run over one input file."""

    def __init__(
        self,
        service: Service,
        app: App,
        source: BinaryIO,
        part: PartFile,
        *,
        run_id: str,
        concurrency: int,
        on_progress: Callable[[Counts], None] = lambda counts: None,
        routes: Sequence[str] = ROUTES,
        max_bytes: int | None = None,
        turn: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext,
        scope: Mapping[str, Any] | None = None,
        shares_queue: bool = False,
    ) -> None:
        """
        app: from `build_app(service)`.
        part: gets the results; lines that it contains already are not run again.
        run_id: hexadecimal; the id of a result consists of it and the line number.
        on_progress: called after each line.
        routes: that lines may name. max_bytes: of a line; `server.max_request_bytes` if None.
        turn: each request runs within it. scope: further entries of the scope of requests.
        shares_queue: other clients use the engine, so that a full queue is only a matter of time.
        """
        self._service = service
        self._app = app
        self._part = part
        self._run_id = run_id
        self._concurrency = concurrency
        self._on_progress = on_progress
        self._routes = routes
        self._max_bytes = max_bytes or service.settings.max_request_bytes
        self._turn = turn
        self._scope = scope
        self._shares_queue = shares_queue
        self._requests = self._read(source)
        self._reading = asyncio.Lock()
        self._num_open = 0
        self._request_ended = asyncio.Event()

    async def run(self) -> Counts:
        """Run every line once. Raises EngineGone, or OSError if a result cannot be written. Can be cancelled."""
        failed: EngineGone | OSError | None = None
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._concurrency):
                    workers.create_task(self._work())
        except* (EngineGone, OSError) as errors:
            failed = _first(errors)  # Python before 3.11.4 would put what is raised here into a group
        if failed is not None:
            raise failed
        return self._part.counts

    async def _work(self) -> None:
        while (found := await self._next()) is not None:
            line_id, request = found
            answer = await self._send(request)
            body = _body(answer)
            line = answered(line_id, request.custom_id, answer.status, _request_id(answer), body)
            self._add(line, answer.status, body)

    async def _next(self) -> tuple[str, BatchRequest] | None:
        """The next request, of one iterator for all workers; with other clients in a thread: a line can be long."""
        if not self._shares_queue:
            return next(self._requests, None)
        async with self._reading:
            return await asyncio.to_thread(next, self._requests, None)

    def _read(self, source: BinaryIO) -> Iterator[tuple[str, BatchRequest]]:
        """The requests still to be run. Writes the result of each line that is not a request."""
        seen = self._part.custom_ids
        for number, line in lines_of(source, self._max_bytes):
            if number in self._part.done:
                continue
            line_id = result_id(self._run_id, number)
            try:
                request = read_line(number, line, self._max_bytes, self._routes)
                if request.custom_id in seen:
                    raise duplicate(number, request.custom_id)
            except LineError as error:
                self._add(failed(line_id, error), None)
                continue
            seen.add(request.custom_id)
            yield line_id, request

    def _add(self, line: bytes, status: int | None, body: Mapping[str, Any] | None = None) -> None:
        self._part.append(line)
        self._part.counts.add(status, body)
        self._on_progress(self._part.counts)

    async def _send(self, request: BatchRequest) -> Answer:
        attempts = 1
        while True:
            async with self._turn():  # not while it waits: others would wait for a key that has reached its limit
                self._num_open += 1
                try:
                    answer = await post(self._app, request.url, request.body, self._scope)
                finally:
                    self._num_open -= 1
                    self._request_ended.set()
            if answer.status == 429 and self._shares_queue:
                await asyncio.sleep(_seconds(answer))
            elif answer.status == 429 and self._num_open:  # else nothing would end, and waiting would not help
                self._request_ended.clear()
                await self._request_ended.wait()
            elif answer.status == 503:
                await self._until_ready()
                if attempts == ATTEMPTS:
                    return answer
                attempts += 1
            else:
                return answer

    async def _until_ready(self) -> None:
        client = self._service.client
        while not client.is_available or self._service.is_draining():
            if client.state is EngineState.DEAD:
                raise EngineGone(client.reason)
            await asyncio.sleep(_POLL_S)


def _body(answer: Answer) -> dict[str, Any]:
    try:
        body = json.loads(answer.body)
    except ValueError:
        body = None
    if isinstance(body, dict):
        return body
    # from the operator's middleware: shown as an error body
    text = answer.body[:1000].decode(errors="replace")
    return ApiError(answer.status, f"the response is not a JSON object: {text}", code="no_json").body


def _request_id(answer: Answer) -> str:
    sent = answer.headers.get(b"x-request-id")
    return sent.decode("latin-1") if sent else f"req_{uuid.uuid4().hex}"


def _seconds(answer: Answer) -> float:
    """What a refused request is asked to wait."""
    sent = answer.headers.get(b"retry-after", b"")
    return min(_MAX_WAIT_S, float(sent)) if sent.isdigit() else _POLL_S


def _first(errors: BaseExceptionGroup[EngineGone | OSError]) -> EngineGone | OSError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, EngineGone | OSError)
    return error
