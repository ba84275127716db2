"""The type of a field, read from its annotation: the kind of value, its choices, bounds and notations."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from . import types as values

Kind = Literal[
    "text", "choice", "flag", "whole", "human int", "size", "duration", "number", "texts", "wholes", "mapping"
]
_PARSERS = {
    values.parse_whole: "whole",
    values.parse_human_int: "human int",
    values.parse_size: "size",
    values.parse_duration: "duration",
    values.parse_number: "number",
}


@dataclass
class Parts:
    """The parts of an annotation; the attributes are those of `Option`."""

    kind: Kind = "text"
    choices: tuple[str | int, ...] = ()
    words: tuple[str, ...] = ()
    has_text_values: bool = False
    bounds: tuple[Any, ...] = ()
    spellings: tuple[int, ...] = ()
    min_length: int = 0
    pattern: str | None = None
    is_nullable: bool = False
    is_secret: bool = False
    has_type: bool = False

    def read(self, annotation: Any) -> None:
        origin = get_origin(annotation)
        if origin is Annotated:
            base, *extras = get_args(annotation)
            self.read(base)
            for extra in extras:
                self.read_extra(extra)
        elif origin in (Union, types.UnionType):
            for part in get_args(annotation):
                self.read(part)
        elif origin is Literal:
            self.choices += get_args(annotation)
            if not self.has_type:
                self.kind = "choice"
        elif annotation is type(None):
            self.is_nullable = True
        else:
            self.has_type = True
            if annotation is SecretStr or SecretStr in map(_bare, get_args(annotation)):
                self.is_secret = True
            if annotation is bool:
                self.kind = "flag"
            elif origin is dict:
                self.kind = "mapping"
                self.has_text_values = get_args(annotation)[1] is str
            elif origin is tuple:
                item = Parts()
                item.read(get_args(annotation)[0])
                self.kind = "wholes" if item.kind == "whole" else "texts"
                self.bounds += item.bounds if self.kind == "wholes" else ()
                self.words = tuple(map(str, item.choices))
                self.pattern = item.pattern
            else:
                self.kind = "text"

    def read_extra(self, extra: Any) -> None:
        if isinstance(extra, Ge | Gt | Le | Lt):
            self.bounds += (extra,)
        elif isinstance(extra, FieldInfo):
            for part in extra.metadata:
                self.read_extra(part)
        elif isinstance(extra, MinLen):
            self.min_length = extra.min_length
        elif isinstance(pattern := getattr(extra, "pattern", None), str):
            self.pattern = pattern
        else:
            function: Any = getattr(extra, "func", None)
            if function in _PARSERS:
                self.kind = _PARSERS[function]  # type: ignore[assignment]
            if hasattr(function, "spelling"):
                self.spellings += (function.spelling,)


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def read_annotation(info: FieldInfo) -> Parts:
    """The parts of a field, metadata next to the annotation included."""
    parts = Parts()
    parts.read(info.annotation)
    for extra in info.metadata:
        parts.read_extra(extra)
    return parts
