"""Stored responses, each for the key that made it: in memory, or in an SQLite file that survives a restart.

Bounded in number, in bytes and in time. The oldest of the key that has most are removed first (shares.py).
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ...config.schema.server import ServerConfig
from .shares import Shares

MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Stored:
    """response: the object as clients get it. items: all that the model has read, of earlier responses as well, and its
    answer. num_input: how many of them before the answer are this request's input. num_answer: how many are the answer;
    None: as many as the response has. Calls that the server carried out are two items for the model, and one there."""

    response: dict[str, Any]
    items: list[dict[str, Any]]
    num_input: int
    num_answer: int | None = None

    @property
    def input(self) -> list[dict[str, Any]]:
        num_answer = len(self.response["output"]) if self.num_answer is None else self.num_answer
        end = len(self.items) - num_answer
        return self.items[end - self.num_input : end]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    num_responses: int
    num_bytes: int
    ttl_s: float

    @classmethod
    def of(cls, settings: ServerConfig) -> Limits:
        return cls(
            num_responses=settings.max_stored_responses,
            num_bytes=settings.max_stored_bytes,
            ttl_s=settings.stored_response_ttl,
        )

    def fitting(self, data: bytes, events: bytes | None) -> bytes | None:
        """The events, unless they are too large beside the response."""
        return events if len(data) + len(events or b"") <= self.num_bytes else None


class Store(Protocol):
    """Safe to call from threads. owner: the key, so that no key sees what another one stored."""

    def put(self, owner: str, stored: Stored, events: bytes | None = None) -> bool:
        """Whether it was small enough to be stored. events: of its stream; they are left out if they are too large."""

    def get(self, owner: str, response_id: str) -> Stored | None: ...

    def events(self, owner: str, response_id: str) -> bytes | None: ...

    def delete(self, owner: str, response_id: str) -> bool:
        """Whether there was such a response."""

    def close(self) -> None: ...


class StoreProblem(Exception):
    """A file that cannot be the store."""


def open_store(where: str, limits: Limits) -> Store:
    """where: `memory`, or the path of a file. Raises StoreProblem."""
    try:
        return MemoryStore(limits) if where == MEMORY else SqliteStore(where, limits)
    except (OSError, sqlite3.Error) as error:
        cause = (getattr(error, "strerror", None) or str(error)).lower()
        raise StoreProblem(f"`server.responses_store`: {where}: {cause}") from None


def _encode(stored: Stored) -> bytes:
    fields = [stored.response, stored.items, stored.num_input, stored.num_answer]
    return json.dumps(fields, separators=(",", ":")).encode()


def _decode(data: bytes) -> Stored:
    return Stored(*json.loads(data))


@dataclass(frozen=True, slots=True)
class _Kept:
    expires_at: float
    data: bytes
    events: bytes | None


class MemoryStore:
    def __init__(self, limits: Limits, clock: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._shares = Shares(limits.num_responses, limits.num_bytes)

    def put(self, owner: str, stored: Stored, events: bytes | None = None) -> bool:
        data = _encode(stored)
        events = self._limits.fitting(data, events)
        key = (owner, stored.response["id"])
        with self._lock:
            self._remove(key)
            if len(data) > self._limits.num_bytes:
                return False
            self._kept[key] = _Kept(self._clock() + self._limits.ttl_s, data, events)
            self._shares.add(*key, len(data) + len(events or b""))
            for excess in self._shares.take_excess():
                del self._kept[excess]
            while self._kept and next(iter(self._kept.values())).expires_at <= self._clock():
                self._remove(next(iter(self._kept)))
        return True

    def get(self, owner: str, response_id: str) -> Stored | None:
        kept = self._find(owner, response_id)
        return None if kept is None else _decode(kept.data)

    def events(self, owner: str, response_id: str) -> bytes | None:
        kept = self._find(owner, response_id)
        return None if kept is None else kept.events

    def delete(self, owner: str, response_id: str) -> bool:
        found = self.get(owner, response_id) is not None
        with self._lock:
            self._remove((owner, response_id))
        return found

    def close(self) -> None:
        self._kept.clear()

    def _find(self, owner: str, response_id: str) -> _Kept | None:
        with self._lock:
            kept = self._kept.get((owner, response_id))
        return kept if kept is not None and kept.expires_at > self._clock() else None

    def _remove(self, key: tuple[str, str]) -> None:
        self._kept.pop(key, None)
        self._shares.remove(*key)


class SqliteStore:
    """One server process uses the file at a time."""

    def __init__(self, path: str, limits: Limits, clock: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._shares = Shares(limits.num_responses, limits.num_bytes)
        path = os.path.abspath(path)
        # It has the conversations of all keys. SQLite's files beside it (-wal, -shm) get the same rights.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
        try:
            self._prepare()
        except BaseException:
            self._database.close()
            raise

    def _prepare(self) -> None:
        self._run("PRAGMA journal_mode=WAL")
        self._run(
            "CREATE TABLE IF NOT EXISTS responses (owner TEXT, id TEXT, expires_at REAL, data BLOB, "
            "number INTEGER PRIMARY KEY AUTOINCREMENT, UNIQUE (owner, id))"
        )
        if "events" not in [column[1] for column in self._run("PRAGMA table_info(responses)")]:
            self._run("ALTER TABLE responses ADD COLUMN events BLOB")
        sizes = "SELECT owner, id, length(data) + ifnull(length(events), 0) FROM responses ORDER BY number"
        for owner, response_id, num_bytes in self._run(sizes):
            self._shares.add(owner, response_id, num_bytes)

    def put(self, owner: str, stored: Stored, events: bytes | None = None) -> bool:
        data = _encode(stored)
        events = self._limits.fitting(data, events)
        response_id = stored.response["id"]
        with self._lock:
            for gone in self._run("DELETE FROM responses WHERE (owner = ? AND id = ?) OR expires_at <= ? "
                                  "RETURNING owner, id", owner, response_id, self._clock()):  # fmt: skip
                self._shares.remove(*gone)
            if len(data) > self._limits.num_bytes:
                return False
            self._run("INSERT INTO responses (owner, id, expires_at, data, events) VALUES (?, ?, ?, ?, ?)",
                      owner, response_id, self._clock() + self._limits.ttl_s, data, events)  # fmt: skip
            self._shares.add(owner, response_id, len(data) + len(events or b""))
            for excess in self._shares.take_excess():
                self._run("DELETE FROM responses WHERE owner = ? AND id = ?", *excess)
        return True

    def get(self, owner: str, response_id: str) -> Stored | None:
        data = self._column("data", owner, response_id)
        return None if data is None else _decode(data)

    def events(self, owner: str, response_id: str) -> bytes | None:
        return self._column("events", owner, response_id)

    def delete(self, owner: str, response_id: str) -> bool:
        with self._lock:
            found = self._run("DELETE FROM responses WHERE owner = ? AND id = ? RETURNING 1", owner, response_id)
            self._shares.remove(owner, response_id)
        return bool(found)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _column(self, name: str, owner: str, response_id: str) -> bytes | None:
        with self._lock:
            rows = self._run(f"SELECT {name} FROM responses WHERE owner = ? AND id = ? AND expires_at > ?",
                             owner, response_id, self._clock())  # fmt: skip
        return rows[0][0] if rows else None

    def _run(self, statement: str, *values: Any) -> list[Any]:
        return self._database.execute(statement, values).fetchall()
