"""One route of the API: what serves it, and what its description says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..endpoint import Call
from ..protocol.fields import Wire


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """summary: for the API description. body: model of a POST body. answer: content type of the response."""

    method: str
    path: str
    handle: Callable[[Call], Awaitable[None]]
    summary: str
    body: type[Wire] | None = None
    answer: str = "application/json"
