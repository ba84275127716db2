"""Encoding of tagged records: msgpack, never code.

A message is a msgpack array: its tag, which is the name of its class, and the values of its fields. How a field is
encoded follows from its type. Fields of other types than those of msgpack have a Part, and messages whose fields depend
on each other a Layout. `decode` trusts no input: it raises WireError for anything that is not exactly one of the
declared messages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from types import UnionType
from typing import Any, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgpack

from ..step.columns import ColumnError

MessageT = TypeVar("MessageT")


class WireError(ColumnError):
    """The bytes are not a message of this protocol; the text says what was found where."""


class Part(NamedTuple):
    """How the values of a type are encoded."""

    packed: type  # what msgpack makes of a value
    write: Callable[[Any], Any]
    read: Callable[[Any, str], Any]  # of what arrived, and the name of its field for messages


class Layout(NamedTuple):
    """How a message is encoded whose fields are not encoded one by one."""

    write: Callable[[Any], Sequence[Any]]
    read: Callable[[list[Any]], Any]


class RecordCodec(Generic[MessageT]):
    """The encoding of the messages of one protocol."""

    def __init__(
        self,
        kinds: Sequence[type],
        parts: Mapping[Any, Part] | None = None,
        layouts: Mapping[type, Layout] | None = None,
        max_bytes: int = sys.maxsize,
    ) -> None:
        """kinds: dataclasses, the messages. parts: by type of a field. layouts: by message. max_bytes: of a message."""
        self._max_bytes = max_bytes
        _, self._write, self._read = tagged(kinds, parts or {}, layouts)

    def encode(self, message: MessageT) -> bytes:
        """One message as bytes. Raises OverflowError when a number of a column does not fit 32 bits."""
        packed: bytes = msgpack.packb(self._write(message), default=asdict)
        return packed

    def decode(self, data: bytes | bytearray) -> MessageT:
        """The message in `data`. Raises WireError for anything else."""
        if len(data) > self._max_bytes:
            raise WireError(f"message of {len(data)} bytes, at most {self._max_bytes} are read")
        try:
            parts = msgpack.unpackb(data, strict_map_key=False)
        except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
            raise WireError(f"not msgpack: {error or type(error).__name__}") from None
        message: MessageT = self._read(parts, "")
        return message


def take(parts: list[Any], *kinds: type | tuple[type, ...]) -> list[Any]:
    """Returns the parts if their number and types are right. A bool is not an int here."""
    if len(parts) != len(kinds):
        raise WireError(f"{len(parts)} parts, {len(kinds)} are expected")
    for position, (part, kind) in enumerate(zip(parts, kinds, strict=True)):
        allowed = kind if isinstance(kind, tuple) else (kind,)
        if type(part) not in allowed:
            names = " or ".join(allowed_kind.__name__ for allowed_kind in allowed)
            raise WireError(f"part {position} is {type(part).__name__}, expected {names}")
    return parts


def tagged(kinds: Sequence[type], parts: Mapping[Any, Part], layouts: Mapping[type, Layout] | None = None) -> Part:
    """One of these dataclasses: its tag, and its fields by `layouts` or one by one."""
    writers: dict[type, tuple[str, Callable[[Any], Sequence[Any]]]] = {}
    readers: dict[str, Callable[[list[Any]], Any]] = {}
    for kind in kinds:
        tag = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
        layout = (layouts or {}).get(kind) or _layout(kind, parts)
        writers[kind], readers[tag] = (tag, layout.write), layout.read

    def write(value: Any) -> list[Any]:
        tag, write_fields = writers[type(value)]
        return [tag, *write_fields(value)]

    def read(values: Any, _: str) -> Any:
        if not isinstance(values, list) or not values or not isinstance(values[0], str):
            raise WireError("not a message: an array that starts with a tag is expected")
        tag = values.pop(0)
        if (read_fields := readers.get(tag)) is None:
            raise WireError(f"unknown tag {tag[:32]!r}")
        try:
            return read_fields(values)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise WireError(f"{tag}: {error}") from None

    return Part(list, write, read)


def many(part: Part) -> Part:
    """A list of such values."""
    return Part(
        list,
        lambda values: [part.write(each) for each in values],
        lambda values, name: [part.read(each, name) for each in values],
    )


def record(kind: type, parts: Mapping[Any, Part], without: Sequence[str] = ()) -> Part:
    """A field that is a dataclass itself. without: its fields that are not sent."""
    layout = _layout(kind, parts, without)
    return Part(list, layout.write, lambda values, _: layout.read(values))


def _layout(kind: type, parts: Mapping[Any, Part], without: Sequence[str] = ()) -> Layout:
    """The fields of a dataclass in their order."""
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind) if each.name not in without]
    has_names = any(each.kw_only for each in fields(kind))
    kinds: list[tuple[type, ...]] = []
    converted: list[tuple[int, str, Part]] = []
    for position, name in enumerate(names):
        hint = hints[name]
        is_union = get_origin(hint) in (Union, UnionType) and hint not in parts
        options = get_args(hint) if is_union else (hint,)
        kinds.append(tuple(parts[each].packed if each in parts else get_origin(each) or each for each in options))
        converted += [(position, name, parts[each]) for each in options if each in parts]

    def write(message: Any) -> list[Any]:
        values = [getattr(message, name) for name in names]
        for position, _, part in converted:
            if values[position] is not None:
                values[position] = part.write(values[position])
        return values

    def read(values: list[Any]) -> Any:
        take(values, *kinds)
        for position, name, part in converted:
            if values[position] is not None:
                values[position] = part.read(values[position], name)
        return kind(**dict(zip(names, values, strict=True))) if has_names else kind(*values)

    return Layout(write, read)
