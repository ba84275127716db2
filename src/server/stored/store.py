"""Stored responses, each for the key that made it: in memory, or in an SQLite file that survives a restart.

Bounded in number, in bytes and in time. The oldest are removed first.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Stored:
    """response: the object as clients get it. items: all that the model has read, of earlier responses as well, and its
    answer. num_input: how many of them before the answer are this request's input."""

    response: dict[str, Any]
    items: list[dict[str, Any]]
    num_input: int

    @property
    def input(self) -> list[dict[str, Any]]:
        end = len(self.items) - len(self.response["output"])
        return self.items[end - self.num_input : end]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    num_responses: int
    num_bytes: int
    ttl_s: float


class Store(Protocol):
    """Safe to call from threads. owner: the key, so that no key sees what another one stored."""

    def put(self, owner: str, stored: Stored) -> bool:
        """Whether it was small enough to be stored."""

    def get(self, owner: str, response_id: str) -> Stored | None: ...

    def delete(self, owner: str, response_id: str) -> bool:
        """Whether there was such a response."""

    def close(self) -> None: ...


def open_store(where: str, limits: Limits) -> Store:
    """where: `memory`, or the path of a file. Raises OSError or sqlite3.Error."""
    return MemoryStore(limits) if where == MEMORY else SqliteStore(where, limits)


def _encode(stored: Stored) -> bytes:
    return json.dumps([stored.response, stored.items, stored.num_input], separators=(",", ":")).encode()


def _decode(data: bytes) -> Stored:
    return Stored(*json.loads(data))


class MemoryStore:
    def __init__(self, limits: Limits, clock: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], tuple[float, bytes]] = OrderedDict()
        self._num_bytes = 0

    def put(self, owner: str, stored: Stored) -> bool:
        data = _encode(stored)
        key = (owner, stored.response["id"])
        with self._lock:
            self._remove(key)
            if len(data) > self._limits.num_bytes:
                return False
            self._kept[key] = (self._clock() + self._limits.ttl_s, data)
            self._num_bytes += len(data)
            while len(self._kept) > self._limits.num_responses or self._num_bytes > self._limits.num_bytes:
                self._remove(next(iter(self._kept)))
            while self._kept and next(iter(self._kept.values()))[0] <= self._clock():
                self._remove(next(iter(self._kept)))
        return True

    def get(self, owner: str, response_id: str) -> Stored | None:
        with self._lock:
            expires_at, data = self._kept.get((owner, response_id), (0.0, b""))
        return _decode(data) if expires_at > self._clock() else None

    def delete(self, owner: str, response_id: str) -> bool:
        found = self.get(owner, response_id) is not None
        with self._lock:
            self._remove((owner, response_id))
        return found

    def close(self) -> None:
        self._kept.clear()

    def _remove(self, key: tuple[str, str]) -> None:
        if key in self._kept:
            self._num_bytes -= len(self._kept.pop(key)[1])


class SqliteStore:
    """Several server processes may share the file."""

    def __init__(self, path: str, limits: Limits, clock: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
        self._run("PRAGMA journal_mode=WAL")
        self._run(
            "CREATE TABLE IF NOT EXISTS responses (owner TEXT, id TEXT, expires_at REAL, data BLOB, "
            "number INTEGER PRIMARY KEY AUTOINCREMENT, UNIQUE (owner, id))"
        )

    def put(self, owner: str, stored: Stored) -> bool:
        data = _encode(stored)
        response_id = stored.response["id"]
        with self._lock:
            self._run("DELETE FROM responses WHERE (owner = ? AND id = ?) OR expires_at <= ?",
                      owner, response_id, self._clock())  # fmt: skip
            if len(data) > self._limits.num_bytes:
                return False
            self._run("INSERT OR REPLACE INTO responses (owner, id, expires_at, data) VALUES (?, ?, ?, ?)",
                      owner, response_id, self._clock() + self._limits.ttl_s, data)  # fmt: skip
            # the newest that fit into both limits remain
            self._run(
                "DELETE FROM responses WHERE number IN (SELECT number FROM (SELECT number, "
                "row_number() OVER newest AS rank, sum(length(data)) OVER newest AS total FROM responses "
                "WINDOW newest AS (ORDER BY number DESC)) WHERE rank > ? OR total > ?)",
                self._limits.num_responses,
                self._limits.num_bytes,
            )
        return True

    def get(self, owner: str, response_id: str) -> Stored | None:
        with self._lock:
            rows = self._run("SELECT data FROM responses WHERE owner = ? AND id = ? AND expires_at > ?",
                             owner, response_id, self._clock())  # fmt: skip
        return _decode(rows[0][0]) if rows else None

    def delete(self, owner: str, response_id: str) -> bool:
        with self._lock:
            found = self._run("DELETE FROM responses WHERE owner = ? AND id = ? RETURNING 1", owner, response_id)
        return bool(found)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _run(self, statement: str, *values: Any) -> list[Any]:
        return self._database.execute(statement, values).fetchall()
