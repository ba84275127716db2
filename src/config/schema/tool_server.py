"""JSON Schema of `server.tool_server`: MCP servers by label."""

from __future__ import annotations

from typing import Any

_TEXTS = {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}
_WHERE = {
    "url": {"type": "string", "pattern": "^https?://"},
    "command": _TEXTS,
}
_OTHERS = {
    # names of headers, with the variables that have their values: the configuration contains no secret
    "headers_from_env": {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": "^[A-Za-z0-9-]{1,64}$"},
        "additionalProperties": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
    },
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
        "dependentRequired": {"headers_from_env": ["url"]},
        "additionalProperties": False,
    },
}
