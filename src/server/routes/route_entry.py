"""One route of the API: what serves it, and what its description says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..access.auth import Scope
from ..capabilities import Ability
from ..endpoint import Call
from ..protocol.wire import Wire


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """
    summary: for the API description.
    body: model of a POST body.
    form: fields of a POST body that is multipart/form-data, as JSON Schemas; all of them are required.
    query: names of the parameters of the query, all of them optional.
    answer: content type of the response.
    scope: that a key needs. A route for any valid key has `read`.
    needs: the model must have one of these abilities; empty: any model serves the route.
    is_alias: whether another path serves the same.
    """

    method: str
    path: str
    handle: Callable[[Call], Awaitable[None]]
    summary: str
    body: type[Wire] | None = None
    answer: str = "application/json"
    scope: Scope = "inference"
    form: Mapping[str, Any] | None = None
    query: tuple[str, ...] = ()
    needs: frozenset[Ability] = frozenset()
    is_alias: bool = False

    @property
    def is_limited(self) -> bool:
        """Whether the limits of a key count its requests."""
        return self.scope == "inference" and self.method == "POST"
