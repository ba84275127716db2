"""JSON Schema of `server.tool_server`: MCP servers by label."""

from __future__ import annotations

from typing import Any

_TEXTS = {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}
_WHERE = {
    "url": {"type": "string", "pattern": "^https?://"},
    "command": _TEXTS,
}
_OTHERS = {
    "allowed_tools": _TEXTS,
    "timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": 3600},
}

TOOL_SERVERS: dict[str, Any] = {
    "type": "object",
    "propertyNames": {"pattern": "^[A-Za-z0-9_-]{1,64}$"},
    "additionalProperties": {
        "type": "object",
        "properties": {**_WHERE, **_OTHERS},
        "required": ["allowed_tools"],
        "oneOf": [{"required": [name]} for name in _WHERE],
        "additionalProperties": False,
    },
}
