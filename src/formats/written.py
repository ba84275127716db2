"""A format that a user declares in a file: the same data as in declarations/."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from .format import (
    BareKeys,
    CallMarkers,
    Format,
    Harmony,
    JsonCall,
    NamedJson,
    Pythonic,
    ReasoningMarkers,
    XmlCall,
)

_STYLES: Mapping[str, type[Any]] = {
    "json": JsonCall,
    "named_json": NamedJson,
    "xml": XmlCall,
    "pythonic": Pythonic,
    "bare_keys": BareKeys,
    "harmony": Harmony,
}
_Part = TypeVar("_Part")


def format_of(written: Any) -> Format:
    """The format that a mapping declares. Raises ValueError, with the key that is wrong."""
    written = _mapping(written, "")
    reasoning = written.get("reasoning")
    calls = written.get("calls")
    parts = {
        **written,
        "reasoning": None if reasoning is None else _part(ReasoningMarkers, reasoning, "reasoning"),
        "calls": None if calls is None else _calls(_mapping(calls, "calls")),
    }
    return _part(Format, {"description": "declared in a file", **parts}, "")


def _calls(written: Mapping[str, Any]) -> CallMarkers:
    style = _mapping(written.get("style"), "calls.style")
    if len(style) != 1 or not (names := style.keys() & _STYLES.keys()):
        raise ValueError(f"`calls.style` must have one of the keys {', '.join(_STYLES)}")
    name = names.pop()
    found = _part(_STYLES[name], style[name] or {}, f"calls.style.{name}")
    others = written.get("others") or ()
    if not isinstance(others, Sequence) or isinstance(others, str):
        raise ValueError("`calls.others` must be a list")
    others = tuple(_calls(_mapping(other, "calls.others")) for other in others)
    return _part(CallMarkers, {**written, "style": found, "others": others}, "calls")


def _part(kind: type[_Part], written: Any, place: str) -> _Part:
    written = _mapping(written, place)
    fields = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    if unknown := sorted(written.keys() - set(fields)):
        raise ValueError(f"no such key `{_below(place, unknown[0])}`; the keys are {', '.join(fields)}")
    try:
        return TypeAdapter(kind).validate_python(written)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"`{_below(place, where)}`: {first['msg'].lower()}") from None


def _mapping(written: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(written, Mapping) or not all(isinstance(key, str) for key in written):
        raise ValueError(f"`{place}` must be a mapping" if place else "the top level must be a mapping")
    return written


def _below(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key
