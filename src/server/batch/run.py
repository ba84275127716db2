"""Running a batch: so many requests at once, each result on disk as soon as it is there, in the order they end in.

An engine that died is waited for, and what it was at is asked again, a few times; so is a queue that was full.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from ...engine.client import EngineState
from ..protocol.errors import ApiError
from ..service import Service
from .call import Answer, App, post
from .lines import BatchRequest, LineError, answered, failed, lines_of, read_line
from .part_file import Counts, PartFile

ATTEMPTS = 3  # of a request whose engine died under it: it may be what kills it
_POLL_S = 0.1


class EngineGone(Exception):
    """The engine is gone for good; the rest of the batch cannot be run."""


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
    ) -> None:
        """
        app: of `build_app(service)`.
        part: gets the results; the lines that it holds already are not run again.
        run_id: hexadecimal; with the number of its line it makes the id of a result.
        on_progress: is told after each line.
        """
        self._service = service
        self._app = app
        self._part = part
        self._run_id = run_id
        self._concurrency = concurrency
        self._on_progress = on_progress
        self._max_bytes = service.settings.max_request_bytes
        self._requests = self._read(source)
        self._num_open = 0
        self._one_ended = asyncio.Event()

    async def run(self) -> Counts:
        """Every line once. Raises EngineGone, or OSError where a result cannot be written; cancelling it is safe."""
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._concurrency):
                    workers.create_task(self._work())
        except* (EngineGone, OSError) as errors:
            raise _first(errors) from None
        return self._part.counts

    async def _work(self) -> None:
        for result_id, request in self._requests:  # shared by all workers: each takes the next one
            answer = await self._ask(request)
            line = answered(result_id, request.custom_id, answer.status, _request_id(answer), _body(answer))
            self._add(line, answer.status)

    def _read(self, source: BinaryIO) -> Iterator[tuple[str, BatchRequest]]:
        """The requests that are still to be run; lines that hold none get their results on the way."""
        seen = self._part.custom_ids
        for number, line in lines_of(source, self._max_bytes):
            if number in self._part.done:
                continue
            result_id = f"batch_req_{self._run_id}_{number}"
            try:
                request = read_line(number, line, self._max_bytes)
                if request.custom_id in seen:
                    message = f"line {number}: an earlier line has the same `custom_id`"
                    raise LineError("duplicate_custom_id", message, request.custom_id)
            except LineError as error:
                self._add(failed(result_id, error), None)
                continue
            seen.add(request.custom_id)
            yield result_id, request

    def _add(self, line: bytes, status: int | None) -> None:
        self._part.append(line)
        self._part.counts.add(status)
        self._on_progress(self._part.counts)

    async def _ask(self, request: BatchRequest) -> Answer:
        attempts = 1
        while True:
            self._num_open += 1
            try:
                answer = await post(self._app, request.url, request.body)
            finally:
                self._num_open -= 1
                self._one_ended.set()
            if answer.status == 429 and self._num_open:  # alone, it would be refused for ever
                self._one_ended.clear()
                await self._one_ended.wait()
            elif answer.status == 503:
                await self._until_ready()
                if attempts == ATTEMPTS:
                    return answer
                attempts += 1
            else:
                return answer

    async def _until_ready(self) -> None:
        client = self._service.client
        while client.state is not EngineState.READY:
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
    # of the operator's middleware: what it says, in the shape of all errors
    said = answer.body[:1000].decode(errors="replace")
    return ApiError(answer.status, f"no JSON object, but: {said}", code="no_json").body


def _request_id(answer: Answer) -> str:
    sent = answer.headers.get(b"x-request-id")
    return sent.decode("latin-1") if sent else f"req_{uuid.uuid4().hex}"


def _first(errors: BaseExceptionGroup[EngineGone | OSError]) -> EngineGone | OSError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, EngineGone | OSError)
    return error
