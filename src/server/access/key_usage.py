"""What the keys use: admits or refuses a request by the limits of its key. Times are passed in by a clock.

Requests and tokens per minute are two token buckets: a full one holds the limit of a minute and is filled again within
a minute. The tokens of a request are known as it runs, so they are taken from the bucket then; the next request waits
until the bucket is above zero again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from ..protocol.errors import ApiError
from .auth import Key, KeyLimits

_MINUTE_S = 60.0
# What is stored for each name: when it was last filled, the two buckets, and requests running in each process.
_FILLED_AT, _REQUESTS, _TOKENS, RUNNING = range(4)
Row: TypeAlias = "memoryview[float]"


class Rows(Protocol):
    """A row of numbers for each name of a key (shared_state.py)."""

    @property
    def process(self) -> int:
        """Index of this process among the processes that serve the deployment."""
        ...

    def locked(self, name: str) -> AbstractContextManager[Row]:
        """The row of a name, locked during the block. All zeros at first."""
        ...


class KeyUsage:
    def __init__(self, clock: Callable[[], float], rows: Rows) -> None:
        self._clock = clock
        self._rows = rows

    @contextlib.contextmanager
    def admitted(self, key: Key | None) -> Iterator[None]:
        """Count a request as running during the block. Raises ApiError 429 with the name of the limit."""
        if key is None or key.name is None or key.limits == KeyLimits():
            yield
            return
        running = RUNNING + self._rows.process
        with self._rows.locked(key.name) as row:
            self._fill(row, key.limits)
            _check(key.name, row, key.limits)
            row[_REQUESTS] -= 1
            row[running] += 1
        try:
            yield
        finally:
            with self._rows.locked(key.name) as row:
                row[running] -= 1

    def charge(self, key: Key | None, num_tokens: int) -> None:
        """Take tokens of a running request."""
        if key is None or key.name is None or key.limits.tokens_per_minute is None:
            return
        with self._rows.locked(key.name) as row:
            self._fill(row, key.limits)
            row[_TOKENS] -= num_tokens

    def _fill(self, row: Row, limits: KeyLimits) -> None:
        now = self._clock() + 1  # not 0, which means that the row was never filled
        share = 1.0 if row[_FILLED_AT] == 0 else max(0.0, now - row[_FILLED_AT]) / _MINUTE_S
        row[_FILLED_AT] = now
        for place, limit in ((_REQUESTS, limits.requests_per_minute), (_TOKENS, limits.tokens_per_minute)):
            row[place] = math.inf if limit is None else min(float(limit), row[place] + share * limit)


def _check(name: str, row: Row, limits: KeyLimits) -> None:
    """Raises ApiError 429 for the first limit that is reached."""
    if (most := limits.concurrent_requests) is not None and sum(row[RUNNING:]) >= most:
        raise _limited(name, "concurrent_requests", f"{most} requests are running", 1)
    if (most := limits.tokens_per_minute) is not None and row[_TOKENS] <= 0:
        wait_s = (1 - row[_TOKENS]) * _MINUTE_S / most
        raise _limited(name, "tokens_per_minute", f"{most} tokens a minute are used", wait_s)
    if (most := limits.requests_per_minute) is not None and row[_REQUESTS] < 1:
        wait_s = (1 - row[_REQUESTS]) * _MINUTE_S / most
        raise _limited(name, "requests_per_minute", f"{most} requests a minute are used", wait_s)


def _limited(name: str, limit: str, what: str, wait_s: float) -> ApiError:
    retry_after = str(max(1, math.ceil(wait_s)))
    message = f"the key {name!r} has reached its limit `{limit}`: {what}; try again in {retry_after} s"
    return ApiError(
        429, message, code="rate_limit_exceeded", kind="rate_limit_error", param=limit,
        headers={"retry-after": retry_after},
    )  # fmt: skip
