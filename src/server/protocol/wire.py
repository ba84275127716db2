"""Wire: the base of all request bodies, and of their parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from ...engine.api import ProcessorCall
from .errors import own, unsupported
from .unserved import UNSERVED, Route, UnservedField


def _whole(value: Any) -> Any:
    """Clients in languages with one type of numbers write 4.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_whole)]


class Wire(BaseModel):
    """A request body. Types are strict, but 4.0 is an integer: "8" is not a number. Unknown fields are kept apart.

    route: whose unserved fields are known; None for a part of a body.
    content_fields: fields with what the request is about, which have limits of their own.
    """

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())
    route: ClassVar[Route | None] = None
    content_fields: ClassVar[frozenset[str]] = frozenset()

    @property
    def unknown_fields(self) -> list[str]:
        return sorted((self.model_extra or {}).keys() - self._unserved.keys())

    @property
    def texts_to_encode(self) -> list[str]:
        """Texts of the client that are refused if they do not fit into the context."""
        return []

    def essentials(self) -> dict[str, Any]:
        """The fields that the server reads once the body has been checked, in the form of a body.

        Without null and unknown fields, and without the content that only the chat template reads.
        """
        return {name: _plain(value) for name in type(self).model_fields if (value := getattr(self, name)) is not None}

    @property
    def _unserved(self) -> Mapping[str, UnservedField]:
        return UNSERVED[self.route] if self.route is not None else {}

    def refuse_unsupported(self) -> None:
        """Raises ApiError for the first field that is refused with its value."""
        for name, value in (self.model_extra or {}).items():
            field = self._unserved.get(name)
            if field is not None and field.refuses(value):
                raise own(unsupported(name, f": {field.reason}"))


def _plain(value: Any) -> Any:
    if isinstance(value, Wire):
        return value.essentials()
    if isinstance(value, list):
        return [_plain(item) for item in value] if value and isinstance(value[0], Wire | ProcessorCall) else value
    return dataclasses.asdict(value) if isinstance(value, ProcessorCall) else value
