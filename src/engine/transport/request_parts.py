"""How a request's inputs are encoded, in the messages to the engine and in the plans for ranks of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from ..api import AdapterRef, CacheScope, RequestInputs, Task
from ..step.columns import int_bytes, ints
from .records import Layout, Part, WireError, record, tagged, take


def validated(kind: type) -> Part:
    """A dataclass as a map of its fields that differ from their defaults. Unknown names and wrong types are refused."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    defaults = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory() for each in fields(kind)
    }

    def write(value: Any) -> dict[str, Any]:
        return {name: found for name, default in defaults.items() if (found := getattr(value, name)) != default}

    def read(values: Mapping[str, Any], _: str) -> Any:
        for name in values:
            if name not in defaults:
                raise WireError(f"{kind.__name__} has no field {str(name)[:32]!r}")
        try:
            return adapter.validate_python(values)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(step) for step in first["loc"])
            raise WireError(f"{kind.__name__}.{place}: {first['msg']}") from None

    return Part(dict, write, read)


def _as_map(kind: type) -> Layout:
    part = validated(kind)
    return Layout(lambda value: [part.write(value)], lambda parts: part.read(take(parts, dict)[0], ""))


_TASKS = get_args(Task) or (Task,)
REQUEST_PARTS: dict[Any, Part] = {
    list[int]: Part(bytes, int_bytes, ints),
    Task: tagged(_TASKS, {}, {kind: _as_map(kind) for kind in _TASKS}),
    CacheScope: validated(CacheScope),
    AdapterRef: record(AdapterRef, {}),
}
REQUEST_PARTS[RequestInputs] = record(RequestInputs, REQUEST_PARTS)
