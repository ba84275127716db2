"""Runs the batches of all clients, some rows at a time, beside the requests of other clients.

Rows go through the app of the server, as requests do. A row begins only while no request waits in the queue of the
engine, and at most `server.batch_concurrency` run, over all batches: interactive requests come first.

A batch is continued after the process ended in any way: results are in its part file, and a row is run if it has none
there. Of several processes that share a folder, the one that holds the lock runs batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from ...engine.client.engine_client import EngineState
from ...input_file import open_file
from ...logs import log_fields
from ..batch.lines import LineError, facts_of, failed, faults, lines_of, read_line, result_id
from ..batch.part_file import Counts, PartFile
from ..batch.run import Batch
from ..in_process import App
from ..protocol.batches import ROUTES
from ..protocol.errors import ApiError
from ..service import Service
from .batches import ENDED, Batches, Queue, Queued
from .store import Writing, new_id, owners

MAX_ROW_BYTES = 1 << 20
MAX_ROWS = 50_000
MAX_ERRORS = 100  # of an input file, that are shown
MAX_RUNNING = 64  # batches
MAX_RUNNING_OF_OWNER = 8
_POLL_S = 1.0
_TURN_POLL_S = 0.02
_SAVE_S = 1.0
_CLEAN_S = 60.0
_RETRY_S = 60.0
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Outcome:
    status: str
    moment: str  # the field that gets the time


_COMPLETED = _Outcome("completed", "completed_at")
_CANCELLED = _Outcome("cancelled", "cancelled_at")
_EXPIRED = _Outcome("expired", "expired_at")
_QUOTA_REACHED = _Outcome("failed", "failed_at")
_QUOTA_STEP = 1 << 14  # bytes after which the files on disk are counted again


class _QuotaReached(OSError):
    """The owner of a batch has no room for a further result (`server.files_quota`)."""


class _LimitedPart(PartFile):
    """Results, as far as the quota of their owner has room for them."""

    def __init__(self, path: Path, num_left: Callable[[], int]) -> None:
        """num_left: bytes of the quota. Raises as PartFile."""
        super().__init__(path, mode=0o600)
        self._num_left, self._granted = num_left, 0

    def append(self, line: bytes) -> None:
        """Raises _QuotaReached, too."""
        if self._granted < len(line):
            left = self._num_left()
            if left < len(line):
                raise _QuotaReached
            self._granted = min(left, len(line) + _QUOTA_STEP)
        super().append(line)
        self._granted -= len(line)


class BatchRunner:
    def __init__(self, service: Service, app: App, root: Path, clock: Callable[[], float] = time.time) -> None:
        """app: from `build_app(service)`."""
        self._service = service
        self._app = app
        self._root = root
        self._clock = clock
        self._queue = Queue(root)
        self._rows = asyncio.Semaphore(service.settings.batch_concurrency)
        self._running: dict[Queued, asyncio.Task[None]] = {}
        self._cancelled: set[Queued] = set()  # running batches whose task has been cancelled, or begins with that
        self._retry_at: dict[Queued, float] = {}  # after an error, such as a full disk: results of rows would be lost
        self._lock = -1
        self._cleaned_at = 0.0

    async def run(self) -> None:
        """Run batches until the task is cancelled."""
        try:
            while True:
                try:
                    await self._look()
                except OSError as error:  # such as a full disk
                    log_fields(logger, logging.ERROR, "batches", {"error": str(error)})
                await asyncio.sleep(_POLL_S)
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            if self._lock >= 0:
                os.close(self._lock)

    async def _look(self) -> None:
        """End, cancel and start batches, as their state asks for."""
        if not self._holds_lock():
            return
        for queued, task in list(self._running.items()):
            if task.done():
                self._forget(queued, task)
            elif queued not in self._cancelled and self._queue.is_cancelled(*queued):
                self._cancelled.add(queued)
                task.cancel()  # it ends the batch, or the next task for this batch does
        for queued in self._queue.all():
            if queued not in self._running and self._can_start(queued):
                if self._queue.is_cancelled(*queued):
                    self._cancelled.add(queued)
                self._running[queued] = asyncio.create_task(self._process(queued))
        if self._clock() - self._cleaned_at > _CLEAN_S:
            self._cleaned_at = self._clock()
            await asyncio.to_thread(self._clean)

    def _forget(self, queued: Queued, task: asyncio.Task[None]) -> None:
        """Forget a task that has ended. A batch whose task has failed is continued later."""
        del self._running[queued]
        self._cancelled.discard(queued)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            fields = {"batch": queued.batch_id, "error": str(error) or type(error).__name__}
            log_fields(logger, logging.ERROR, "a batch was interrupted and will be continued", fields)
            self._retry_at[queued] = self._clock() + _RETRY_S

    def _can_start(self, queued: Queued) -> bool:
        if self._clock() < self._retry_at.get(queued, 0.0):
            return False
        num_own = sum(running.owner == queued.owner for running in self._running)
        return len(self._running) < MAX_RUNNING and num_own < MAX_RUNNING_OF_OWNER

    def _holds_lock(self) -> bool:
        if self._lock < 0:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self._root / "runner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                return False
            self._lock = lock
        return True

    def _clean(self) -> None:
        for owner in owners(self._root):
            batches = Batches(self._root, owner, self._clock)
            used = {batch["input_file_id"] for batch in batches.unfinished()}
            batches.files.clean(used.__contains__)
            batches.delete_before(self._clock() - self._service.settings.files_ttl)

    async def _process(self, queued: Queued) -> None:
        """Process one batch, from any state to its end."""
        batches = Batches(self._root, queued.owner, self._clock)
        batch = batches.read(queued.batch_id)
        if batch is None:
            if self._queue.is_orphan(*queued):
                self._queue.remove(*queued)
            return
        if batch["status"] not in ENDED:
            await self._advance(batches, batch)
        batches.part(queued.batch_id).unlink(missing_ok=True)
        self._queue.remove(*queued)
        self._retry_at.pop(queued, None)
        log_fields(logger, logging.INFO, "batch ended", {"batch": batch["id"], "status": batch["status"],
                                                         **batch["request_counts"]})  # fmt: skip

    async def _advance(self, batches: Batches, batch: dict[str, Any]) -> None:
        outcome = _COMPLETED
        if batch["status"] != "finalizing" and self._queue.is_cancelled(batches.owner, batch["id"]):
            batch["cancelling_at"] = self._now
            await self._finish(batches, batch, _CANCELLED)
            return
        if batch["status"] == "validating" and not await self._validate(batches, batch):
            return
        if batch["status"] == "in_progress":
            outcome = await self._run_rows(batches, batch)
        elif batch["status"] == "finalizing":  # interrupted before
            ends = {each.status: each for each in (_EXPIRED, _CANCELLED, _QUOTA_REACHED)}
            outcome = ends.get(batch.get("ends_as", ""), _COMPLETED)
        await self._finish(batches, batch, outcome)

    async def _validate(self, batches: Batches, batch: dict[str, Any]) -> bool:
        """Whether every line of the input is a request."""
        max_bytes = self._max_row_bytes

        def check() -> tuple[int, list[tuple[int, LineError]]]:
            with BufferedReader(open_file(batches.files.path(batch["input_file_id"]))) as file:
                return faults(file, max_bytes, (batch["endpoint"],), max_lines=MAX_ROWS, max_faults=MAX_ERRORS)

        try:
            num_rows, found = await asyncio.to_thread(check)
        except (ApiError, FileNotFoundError):
            gone = LineError("file_not_found", "the input file was deleted or has expired")
            num_rows, found = 0, [(0, gone)]
        if not found and not num_rows:
            found = [(0, LineError("empty_file", "the input file has no requests"))]
        batch["request_counts"]["total"] = num_rows
        if found:
            data = [
                {"code": fault.code, "message": fault.message, "param": None, "line": line or None}
                for line, fault in found
            ]
            batch.update(status="failed", failed_at=self._now, errors={"object": "list", "data": data})
        else:
            batch.update(status="in_progress", in_progress_at=self._now)
        batches.save(batch)
        return not found

    async def _run_rows(self, batches: Batches, batch: dict[str, Any]) -> _Outcome:
        part = await self._open_part(batches, batch["id"])
        saved_at = self._clock()

        def on_progress(counts: Counts) -> None:
            nonlocal saved_at
            if self._clock() - saved_at >= _SAVE_S:
                saved_at = self._clock()
                self._count(batch, counts)
                batches.save(batch)

        try:
            with BufferedReader(open_file(batches.files.path(batch["input_file_id"]))) as source:
                run = Batch(
                    self._service,
                    self._app,
                    source,
                    part,
                    run_id=_run_id(batch),
                    concurrency=self._service.settings.batch_concurrency,
                    on_progress=on_progress,
                    routes=(batch["endpoint"],),
                    max_bytes=self._max_row_bytes,
                    turn=self._turn,
                    scope={"stoker.owner": batches.owner},
                    shares_queue=True,
                )
                async with asyncio.timeout(max(0.0, batch["expires_at"] - self._clock())):
                    await run.run()
            return _COMPLETED
        except TimeoutError:
            return _EXPIRED
        except _QuotaReached:
            return _QUOTA_REACHED
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._queue.is_cancelled(batches.owner, batch["id"]) or task is None:
                raise  # the server stops
            task.uncancel()
            batch["cancelling_at"] = self._now
            return _CANCELLED
        finally:
            self._count(batch, part.counts)
            part.close()

    def _num_left(self, batches: Batches) -> int:
        return self._service.settings.files_quota - batches.num_bytes()

    async def _open_part(self, batches: Batches, batch_id: str) -> PartFile:
        num_left = functools.partial(self._num_left, batches)
        opening = asyncio.ensure_future(asyncio.to_thread(_LimitedPart, batches.part(batch_id), num_left))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            (await opening).close()
            raise

    async def _finish(self, batches: Batches, batch: dict[str, Any], outcome: _Outcome) -> None:
        """Write the results. It can be interrupted and repeated: the ids of the files are stored before."""
        batch.update(status="finalizing", finalizing_at=self._now, ends_as=outcome.status)
        for name in ("output", "error"):
            batch.setdefault(f"{name}_id", new_id("file-"))
        batches.save(batch)
        sizes = await asyncio.to_thread(self._write_results, batches, batch, is_expired=outcome is _EXPIRED)
        for name in ("output", "error"):
            batch[f"{name}_file_id"] = batch.pop(f"{name}_id") if sizes[name] else None
        if outcome is _QUOTA_REACHED:
            self._add_quota_error(batch)
        batch.pop("ends_as")
        batch.update({"status": outcome.status, outcome.moment: self._now})
        batches.save(batch)

    def _add_quota_error(self, batch: dict[str, Any]) -> None:
        quota = self._service.settings.files_quota
        message = f"the files of this key would take more than {quota} bytes (`server.files_quota`): delete some"
        error = {"code": "quota_exceeded", "message": message, "param": None, "line": None}
        batch["errors"] = {"object": "list", "data": [error]}

    def _write_results(self, batches: Batches, batch: dict[str, Any], *, is_expired: bool) -> dict[str, int]:
        """Answers in one file, errors in the other. Returns their sizes; an empty file is not kept."""
        ttl_s = int(self._service.settings.files_ttl)
        files, expires_at = batches.files, self._now + min(ttl_s, batch.get("output_ttl_s") or ttl_s)
        with files.writing() as output, files.writing() as errors:
            done = self._divide(batches.part(batch["id"]), output, errors)
            if is_expired:
                left = self._num_left(batches) - output.size - errors.size
                for line in self._never_run(batches, batch, done):
                    left -= len(line)
                    if left >= 0:
                        errors.write(line)
                    batch["request_counts"]["failed"] += 1
                if left < 0:
                    self._add_quota_error(batch)
            sizes = {"output": output.size, "error": errors.size}
            for name, writing in (("output", output), ("error", errors)):
                if writing.size:
                    file_name = f"{batch['id']}_{name}.jsonl"
                    files.add(writing, file_name, "batch_output", expires_at=expires_at, file_id=batch[f"{name}_id"])
        return sizes

    @staticmethod
    def _divide(part: Path, output: Writing, errors: Writing) -> set[int]:
        """Write each result to one of the files. Returns the numbers of the rows that have one."""
        done: set[int] = set()
        if part.exists():
            with BufferedReader(open_file(part)) as results:
                for line in results:
                    number, status = facts_of(json.loads(line))
                    (output if status == 200 else errors).write(line)
                    done.add(number)
        return done

    def _never_run(self, batches: Batches, batch: dict[str, Any], done: set[int]) -> list[bytes]:
        found: list[bytes] = []
        try:
            path = batches.files.path(batch["input_file_id"])
        except ApiError:  # it has expired too
            return found
        with BufferedReader(open_file(path)) as source:
            for number, line in lines_of(source, self._max_row_bytes):
                if number not in done:
                    custom_id = read_line(number, line, self._max_row_bytes, ROUTES).custom_id
                    error = LineError("batch_expired", "the batch expired before this request ran", custom_id)
                    found.append(failed(result_id(_run_id(batch), number), error))
        return found

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for the turn of a row, which is processed within the block."""
        async with self._rows:
            while not self._is_free:  # noqa: ASYNC110 (the client's state can only be polled)
                await asyncio.sleep(_TURN_POLL_S)
            yield

    @property
    def _is_free(self) -> bool:
        """Whether a row may begin: no request of a client waits for the engine."""
        client = self._service.client
        return client.state is EngineState.READY and not client.stats.num_waiting and not self._service.is_draining()

    @staticmethod
    def _count(batch: dict[str, Any], counts: Counts) -> None:
        batch["request_counts"].update(completed=counts.answered, failed=counts.refused + counts.malformed)
        batch.update(usage=counts.usage.shown, model=counts.usage.model)

    @property
    def _max_row_bytes(self) -> int:
        return min(MAX_ROW_BYTES, self._service.settings.max_request_bytes)

    @property
    def _now(self) -> int:
        return int(self._clock())


def _run_id(batch: Mapping[str, Any]) -> str:
    return str(batch["id"]).removeprefix("batch_")
