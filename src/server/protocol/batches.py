"""/v1/batches and /v1/files: request bodies, and lists of objects page by page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs

from pydantic import Field, field_validator

from .errors import FieldError, bad_request
from .wire import Integer, Wire

# That the lines of a batch may name.
ROUTES = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/v1/embeddings", "/v1/score", "/v1/rerank", "/classify"),
)
MAX_METADATA = 16
MAX_PAGE = 100
_WINDOW = re.compile(r"([0-9]{1,4})([mhd])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400}
_MAX_WINDOW_S = 30 * 86400
Label = Annotated[str, Field(max_length=512)]


class ExpiresAfter(Wire):
    anchor: Literal["created_at"]
    seconds: Integer = Field(ge=3600, le=_MAX_WINDOW_S)


class CreateBatch(Wire):
    input_file_id: str = Field(max_length=100, description="a file that was uploaded with the purpose `batch`")
    endpoint: str = Field(description=f"of all its requests: {', '.join(ROUTES)}")
    completion_window: str = Field(description="the time after which what has not run is an error, such as 24h or 7d")
    metadata: dict[str, Label] | None = Field(None, max_length=MAX_METADATA, description="shown with the batch")
    output_expires_after: ExpiresAfter | None = Field(
        None, description="when the files of results are deleted, if that is before `server.files_ttl`"
    )

    @field_validator("endpoint")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ROUTES:
            raise FieldError(f"must be {' or '.join(ROUTES)}")
        return value

    @field_validator("completion_window")
    @classmethod
    def _readable(cls, value: str) -> str:
        found = _WINDOW.fullmatch(value)
        if not found or not 0 < int(found[1]) * _SECONDS[found[2]] <= _MAX_WINDOW_S:
            raise FieldError("must be a time of at most 30 days, such as 30m, 24h or 7d")
        return value

    @property
    def window_s(self) -> float:
        found = _WINDOW.fullmatch(self.completion_window)
        assert found is not None
        return int(found[1]) * _SECONDS[found[2]]


PAGE_PARAMETERS = ("after", "limit", "order")


class Page:
    """What a list request asks for: `after`, `limit`, `order`."""

    def __init__(self, query: bytes, *, known: Sequence[str] = ()) -> None:
        """known: further parameters. Raises ApiError."""
        try:
            self.values = {name: found[-1] for name, found in parse_qs(query.decode(), max_num_fields=16).items()}
        except ValueError:
            raise bad_request("the query is not valid") from None
        for name in self.values:
            if name not in (*PAGE_PARAMETERS, *known):
                raise bad_request(f"unknown parameter `{name[:100]}`", code="unknown_parameter", param=name[:100])
        limit = self.values.get("limit", "20")
        if not limit.isascii() or not limit.isdigit() or len(limit) > 6 or int(limit) < 1:
            raise bad_request("`limit` must be a number from 1", param="limit")
        self._limit = min(int(limit), MAX_PAGE)
        if self.values.get("order", "desc") not in ("asc", "desc"):
            raise bad_request("`order` must be asc or desc", param="order")

    def ids(self, newest_first: Sequence[str]) -> list[str]:
        """All that follow `after`, in the order that is asked for."""
        is_ascending = self.values.get("order") == "asc"
        ordered = [*reversed(newest_first)] if is_ascending else [*newest_first]
        after = self.values.get("after")
        if after is None:
            return ordered
        return [each for each in ordered if (each > after if is_ascending else each < after)]

    def answer(self, objects: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
        first, last = (objects[0]["id"], objects[-1]["id"]) if objects else (None, None)
        return {"object": "list", "data": [*objects], "first_id": first, "last_id": last, "has_more": has_more}

    @property
    def limit(self) -> int:
        return self._limit
