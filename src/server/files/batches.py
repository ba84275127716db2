"""Batches as the API shows them, on disk. Only the runner changes a record after it was created.

`queue/` has an empty file for each batch that has not ended, so that it is found without reading all records, also one
that another process of the server created; a second file asks for its cancellation.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..batch.usage import Usage
from ..protocol.batches import CreateBatch
from .store import Files, new_id, newest_first, not_found, read_record, write_record

MAX_UNFINISHED = 100  # of one owner
ENDED = ("completed", "failed", "cancelled", "expired")
_BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")
_QUEUED = re.compile(r"([0-9a-f]{64}|)~(batch_[0-9a-f]{32})")
_CANCEL = ".cancel"
# What clients do not see: while the results are written, and how long these are kept.
_INTERNAL = ("ends_as", "output_id", "error_id", "output_ttl_s")
_ORPHAN_S = 60  # a queued batch without a record: its creation was interrupted


class Queued(NamedTuple):
    owner: str
    batch_id: str


class Queue:
    """The batches that have not ended, of all owners."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "queue"

    def add(self, owner: str, batch_id: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self._folder / f"{owner}~{batch_id}").touch(mode=0o600)

    def remove(self, owner: str, batch_id: str) -> None:
        (self._folder / f"{owner}~{batch_id}").unlink(missing_ok=True)
        (self._folder / f"{owner}~{batch_id}{_CANCEL}").unlink(missing_ok=True)

    def cancel(self, owner: str, batch_id: str) -> None:
        (self._folder / f"{owner}~{batch_id}{_CANCEL}").touch(mode=0o600)

    def is_cancelled(self, owner: str, batch_id: str) -> bool:
        return (self._folder / f"{owner}~{batch_id}{_CANCEL}").exists()

    def is_orphan(self, owner: str, batch_id: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return time.time() - (self._folder / f"{owner}~{batch_id}").stat().st_mtime > _ORPHAN_S
        return False

    def all(self) -> list[Queued]:
        """The oldest first."""
        with contextlib.suppress(FileNotFoundError):
            matches = [_QUEUED.fullmatch(entry.name) for entry in os.scandir(self._folder)]
            return sorted((Queued(match[1], match[2]) for match in matches if match), key=lambda each: each.batch_id)
        return []


class Batches:
    """The batches of one owner."""

    def __init__(self, root: Path, owner: str, clock: Callable[[], float] = time.time) -> None:
        self.owner = owner
        self.files = Files(root, owner, clock)
        self.folder = self.files.folder.with_name("batches")
        self._queue = Queue(root)
        self._clock = clock

    def create(self, wanted: CreateBatch) -> dict[str, Any]:
        batch_id, now = new_id("batch_"), int(self._clock())
        batch = {
            "id": batch_id,
            "object": "batch",
            "endpoint": wanted.endpoint,
            "model": None,
            "errors": None,
            "input_file_id": wanted.input_file_id,
            "completion_window": wanted.completion_window,
            "status": "validating",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": now,
            "in_progress_at": None,
            "expires_at": now + int(wanted.window_s),
            "finalizing_at": None,
            "completed_at": None,
            "failed_at": None,
            "expired_at": None,
            "cancelling_at": None,
            "cancelled_at": None,
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "usage": Usage().shown,
            "metadata": wanted.metadata,
            "output_ttl_s": None if wanted.output_expires_after is None else wanted.output_expires_after.seconds,
        }
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._queue.add(self.owner, batch_id)
        self.save(batch)
        return self.get(batch_id)

    def save(self, batch: dict[str, Any]) -> None:
        write_record(self.folder / f"{batch['id']}.json", batch)

    def get(self, batch_id: str) -> dict[str, Any]:
        """Raises ApiError 404."""
        batch = self.read(batch_id) if _BATCH_ID.fullmatch(batch_id) else None
        if batch is None:
            raise not_found("batch", batch_id)
        for name in _INTERNAL:
            batch.pop(name, None)
        if batch["status"] not in ENDED and self._queue.is_cancelled(self.owner, batch_id):
            batch["status"] = "cancelling"
        return batch

    def read(self, batch_id: str) -> dict[str, Any] | None:
        """Record of a batch as it is stored; None if there is none."""
        return read_record(self.folder / f"{batch_id}.json")

    def ids(self) -> list[str]:
        """The newest first."""
        return newest_first(self.folder, _BATCH_ID)

    def unfinished(self) -> list[dict[str, Any]]:
        queued = [each.batch_id for each in self._queue.all() if each.owner == self.owner]
        found = [self.read(batch_id) for batch_id in queued]
        return [batch for batch in found if batch is not None]

    def cancel(self, batch_id: str) -> dict[str, Any]:
        """Cancel a batch, without effect if it has ended. Raises ApiError 404."""
        batch = self.get(batch_id)
        if batch["status"] not in ENDED:
            self._queue.cancel(self.owner, batch_id)
        return self.get(batch_id)

    def delete_before(self, moment: float) -> None:
        """Delete the batches that have ended and were created before this moment."""
        for batch_id in self.ids():
            batch = self.read(batch_id)
            if batch is not None and batch["status"] in ENDED and batch["created_at"] < moment:
                (self.folder / f"{batch_id}.json").unlink(missing_ok=True)

    def num_bytes(self) -> int:
        """Bytes of all files, and of the results of batches that have not ended."""
        total = self.files.num_bytes()
        for part in self.folder.glob("*.part"):
            batch = self.read(part.stem)
            if batch is not None and batch["status"] != "finalizing":  # else they are being written to files
                with contextlib.suppress(FileNotFoundError):
                    total += part.stat().st_size
        return total

    def part(self, batch_id: str) -> Path:
        """File that collects results until the batch ends."""
        return self.folder / f"{batch_id}.part"
