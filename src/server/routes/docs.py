"""GET /openapi.json: the API of this deployment as an OpenAPI document, which the web page shows at /docs.

Generated from the table of routes and the protocol models at the first request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from pydantic.json_schema import models_json_schema

from ...version import __version__
from ..endpoint import Call
from .examples import EXAMPLES
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
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")  # of a path, such as {model:path}


class Docs:
    def __init__(self, routes: Sequence[RouteEntry]) -> None:
        """routes: read at the first request for a description; entries may be added until then."""
        self._routes = routes

    async def openapi(self, call: Call) -> None:
        is_needed = call.service.keys.is_needed
        paths: dict[str, dict[str, Any]] = {}
        for route, path, method, operation in self._operations:
            security: list[dict[str, list[str]]] = [{"key": []}] if is_needed(route.path, route.method) else []
            paths.setdefault(path, {})[method] = {**operation, "security": security}
        await call.answer({**self._document, "paths": paths})

    @cached_property
    def _operations(self) -> list[tuple[RouteEntry, str, str, dict[str, Any]]]:
        """Route, path and method of each operation, and the operation without the key that it needs."""
        return [
            (route, _PARAMETER.sub(r"{\1}", route.path), route.method.lower(), _operation(route))
            for route in self._routes
        ]

    @cached_property
    def _document(self) -> dict[str, Any]:
        """An OpenAPI 3.1 document without its paths."""
        bodies = list(dict.fromkeys(route.body for route in self._routes if route.body is not None))
        _, models = models_json_schema(
            [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
        )
        schemas = models.get("$defs", {})
        for schema in schemas.values():
            schema.pop("description", None)  # a docstring: for readers of the code, and absent under python -OO
        return {
            "openapi": "3.1.0",
            "info": {"title": "Stoker", "version": __version__},
            "components": {
                "schemas": {**schemas, "Error": _ERROR},
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
        }


def _operation(route: RouteEntry) -> dict[str, Any]:
    answers: dict[str, Any] = {route.answer: {}}
    if route.body is not None and "stream" in route.body.model_fields:
        answers["text/event-stream"] = {}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.method.lower() + _PARAMETER.sub(r"\1", route.path).replace("/", "_"),
        "responses": {
            "200": {"description": "The response.", "content": answers},
            "default": {"description": "An error.", "content": _json("Error")},
        },
    }
    parameters = [_parameter(name, "path") for name in _PARAMETER.findall(route.path)]
    parameters += [_parameter(name, "query") for name in route.query]
    if parameters:
        operation["parameters"] = parameters
    if content := _body(route):
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameter(name: str, place: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}


def _body(route: RouteEntry) -> dict[str, Any]:
    if route.form is not None:
        schema = {"type": "object", "properties": route.form, "required": list(route.form)}
        return {"multipart/form-data": {"schema": schema}}
    content: dict[str, Any] = {} if route.body is None else _json(route.body.__name__)
    if route.path in EXAMPLES:
        content.setdefault("application/json", {"schema": {"type": "object"}})["example"] = EXAMPLES[route.path]
    return content


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
