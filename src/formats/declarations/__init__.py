"""The declarations, by the way in which arguments are written."""

from __future__ import annotations

from ..format import Format
from . import elements, json_objects, named_json, others

DECLARATIONS: tuple[Format, ...] = (
    *json_objects.FORMATS,
    *elements.FORMATS,
    *named_json.FORMATS,
    *others.FORMATS,
)
