"""GET /openapi.json and /docs: the API of this deployment as an OpenAPI document and as a web page.

Generated from the table of routes and the protocol models at the first request. The page is plain HTML: no script, and
nothing to load from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from functools import cached_property
from html import escape
from typing import Any

from pydantic.json_schema import models_json_schema

from ...version import __version__
from ..endpoint import Call
from .route_entry import RouteEntry

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Stoker</title><style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code { font-family: ui-monospace, monospace } td, th { padding: 0 1rem 0 0; text-align: left; vertical-align: top }
</style></head><body>
"""


class Docs:
    def __init__(self, routes: Sequence[RouteEntry], open_paths: Set[str]) -> None:
        """routes: read at the first request for a description; entries may be added until then.

        open_paths: those that need no key.
        """
        self._routes = routes
        self._open_paths = open_paths

    async def openapi(self, call: Call) -> None:
        await call.answer(self.description)

    async def page(self, call: Call) -> None:
        headers = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
        await call.answer(_page(self.description).encode(), content_type="text/html; charset=utf-8", headers=headers)

    @cached_property
    def description(self) -> dict[str, Any]:
        """An OpenAPI 3.1 document."""
        bodies = list(dict.fromkeys(route.body for route in self._routes if route.body is not None))
        _, models = models_json_schema(
            [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
        )
        paths: dict[str, dict[str, Any]] = {}
        for route in self._routes:
            paths.setdefault(route.path.replace(":path}", "}"), {})[route.method.lower()] = _operation(
                route, needs_key=route.path not in self._open_paths
            )
        return {
            "openapi": "3.1.0",
            "info": {"title": "Stoker", "version": __version__},
            "paths": paths,
            "components": {
                "schemas": {**models.get("$defs", {}), "Error": _ERROR},
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
        }


def _operation(route: RouteEntry, *, needs_key: bool) -> dict[str, Any]:
    answers: dict[str, Any] = {route.answer: {}}
    if route.body is not None and "stream" in route.body.model_fields:
        answers["text/event-stream"] = {}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.method.lower() + route.path.replace("/", "_").replace("{model:path}", "model"),
        "security": [{"key": []}] if needs_key else [],
        "responses": {
            "200": {"description": "The response.", "content": answers},
            "default": {"description": "An error.", "content": _json("Error")},
        },
    }
    if "{model:path}" in route.path:
        operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _json(route.body.__name__)}
    return operation


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _page(description: dict[str, Any]) -> str:
    info, schemas = description["info"], description["components"]["schemas"]
    parts = [
        _HEAD,
        f"<h1>Stoker {escape(info['version'])}</h1>\n",
        '<p>OpenAPI document: <a href="openapi.json"><code>openapi.json</code></a></p>\n',
    ]
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>\n")
            parts.append(f"<p>{escape(operation['summary'])}</p>\n")
            if "requestBody" in operation:
                reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                parts.append(_fields(schemas[reference.rpartition("/")[2]]))
    return "".join([*parts, "</body></html>\n"])


def _fields(schema: dict[str, Any]) -> str:
    """The fields of a body as a table, required ones first."""
    required = schema.get("required", [])
    rows = sorted(schema["properties"].items(), key=lambda item: item[0] not in required)
    lines = [
        f"<tr><td><code>{escape(name)}</code></td><td>{'required' if name in required else ''}</td>"
        f"<td>{escape(_type(field))}</td></tr>\n"
        for name, field in rows
    ]
    return "".join(["<table><tr><th>field</th><th></th><th>type</th></tr>\n", *lines, "</table>\n"])


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(each) for each in field["anyOf"] if each.get("type") != "null")
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    if "enum" in field:
        return " or ".join(json.dumps(value) for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return str(field.get("type", "anything"))
