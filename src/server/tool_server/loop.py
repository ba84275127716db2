"""Answers a request of the Responses API whose `tools` name configured MCP servers: generate, run the calls, go on.

The model sees the tools of a server as functions. A call of one is run here, and shown as an `mcp_call` item; calls of
the client's own functions end the response, as without servers. Does not know how a response is generated: `ask` does.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from ..protocol.errors import ApiError, bad_request, unsupported
from .servers import Tool, ToolServer, ToolServerError, ToolServers

MAX_ROUNDS = 32
MAX_CALLS = 64
Ask = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
Item = dict[str, Any]
_REFUSED = ("server_url", "connector_id", "authorization", "headers")


class ToolLoop:
    def __init__(self, servers: ToolServers, body: Mapping[str, Any], ask: Ask) -> None:
        """body: of the request. ask: the response to a body without MCP tools. Raises ApiError."""
        self._servers = servers
        self._body = body
        self._ask = ask
        self._owners: dict[str, ToolServer] = {}  # of each tool, by name
        self._num_left = _limit(body)
        for name in ("previous_response_id", "background", "store", "conversation"):
            if body.get(name):
                raise unsupported(name, " with tools of type `mcp`")

    async def items(self) -> AsyncIterator[tuple[Item, dict[str, Any] | None]]:
        """(item, None) for each item of the output, in order; at the end (last item, the response).

        Raises ApiError.
        """
        tools, listed = await self._tools()
        output: list[Item] = []
        for item in listed:
            output.append(item)
            yield item, None
        given = self._body.get("input", [])
        items = [{"role": "user", "content": given}] if isinstance(given, str) else _replayed(given)
        inner = {**self._body, "tools": tools, "stream": False, "store": False}
        inner.pop("max_tool_calls", None)
        usage: dict[str, Any] = {}
        for round_index in range(MAX_ROUNDS):
            response = await self._ask({**inner, "input": items})
            _add_usage(usage, response.get("usage"))
            goes_on = False
            items = [*items, *response["output"]]
            for item in response["output"]:
                shown = item
                if item["type"] == "function_call" and item["name"] in self._owners:
                    shown, result = await self._call(item)
                    items.append(result)
                    goes_on = True
                output.append(shown)
                yield shown, None
            is_waiting = any(item["type"] in _CLIENT_CALLS for item in output)
            if not goes_on or is_waiting or response["status"] != "completed":
                break
            # else a model that must call would never answer
            inner["tool_choice"] = "auto" if self._num_left and round_index < MAX_ROUNDS - 2 else "none"
        yield {}, {**response, "tools": self._body["tools"], "output": output, "usage": usage or None}

    async def _tools(self) -> tuple[list[Any], list[Item]]:
        """The tools with those of the servers as functions, and what was listed."""
        tools: list[Any] = []
        listed: list[Item] = []
        names = {tool.get("name") for tool in self._body["tools"] if isinstance(tool, dict)}
        for index, tool in enumerate(self._body["tools"]):
            if not isinstance(tool, dict) or tool.get("type") != "mcp":
                tools.append(tool)
                continue
            server, wanted = self._server(tool, f"tools[{index}]")
            try:
                found = await server.tools()
            except ToolServerError as error:
                raise ApiError(424, str(error), code="tool_server_failed", param=f"tools[{index}]") from None
            chosen = [each for each in found if wanted is None or each.name in wanted]
            for each in chosen:
                if each.name in names:
                    message = f"two tools have the name {each.name!r}; choose with `allowed_tools`"
                    raise bad_request(message, param=f"tools[{index}]")
                names.add(each.name)
                self._owners[each.name] = server
                tools.append(_function(each))
            listed.append(
                {
                    "id": f"mcpl_{uuid.uuid4().hex}",
                    "type": "mcp_list_tools",
                    "server_label": server.label,
                    "tools": [_listed(each) for each in chosen],
                    "error": None,
                }
            )
        return tools, listed

    def _server(self, tool: Mapping[str, Any], place: str) -> tuple[ToolServer, frozenset[str] | None]:
        """Raises ApiError for what the deployment does not allow."""
        for name in _REFUSED:
            if tool.get(name) is not None:
                raise unsupported(f"{place}.{name}", ": only servers of the deployment are used (`server.tool_server`)")
        label = tool.get("server_label")
        server = self._servers.get(label) if isinstance(label, str) else None
        if server is None:
            known = ", ".join(self._servers.labels)
            message = f"there is no tool server {str(label)[:100]!r}; the labels are {known}"
            raise bad_request(message, param=f"{place}.server_label")
        if tool.get("require_approval") != "never":
            message = ': send "never"; calls are run without asking'
            raise unsupported(f"{place}.require_approval", message)
        wanted = tool.get("allowed_tools")
        if isinstance(wanted, dict):
            wanted = wanted.get("tool_names")
        if wanted is not None and not (isinstance(wanted, list) and all(isinstance(name, str) for name in wanted)):
            raise bad_request("must be a list of names", code="invalid_type", param=f"{place}.allowed_tools")
        return server, None if wanted is None else frozenset(wanted)

    async def _call(self, call: Item) -> tuple[Item, Item]:
        """The item of the response, and that for the model."""
        server = self._owners[call["name"]]
        output: str | None = None
        error: str | None = None
        if not self._num_left:
            error = "the limit of tool calls is reached; answer without further calls"
        else:
            self._num_left -= 1
            try:
                result = await server.run(call["name"], call["arguments"])
                output, error = (None, result.text) if result.is_error else (result.text, None)
            except ToolServerError as failure:
                error = str(failure)
        shown = {
            "id": f"mcp_{uuid.uuid4().hex}",
            "type": "mcp_call",
            "server_label": server.label,
            "name": call["name"],
            "arguments": call["arguments"],
            "output": output,
            "error": error,
            "status": "completed" if error is None else "failed",
            "approval_request_id": None,
        }
        text = output if error is None else f"error: {error}"
        return shown, {"type": "function_call_output", "call_id": call["call_id"], "output": text}


_CLIENT_CALLS = ("function_call", "custom_tool_call")


def _limit(body: Mapping[str, Any]) -> int:
    given = body.get("max_tool_calls")
    if given is None:
        return MAX_CALLS
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise bad_request("must be a number from 1", param="max_tool_calls")
    return min(given, MAX_CALLS)


def _replayed(items: Any) -> list[Any]:
    """The input, with the calls of an earlier response as the model made them."""
    if not isinstance(items, list):
        raise bad_request("must be a text or a list of items", code="invalid_type", param="input")
    found: list[Any] = []
    for item in items:
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "mcp_list_tools":
            continue
        if kind != "mcp_call":
            found.append(item)
            continue
        call_id = str(item.get("id") or uuid.uuid4().hex)
        said = item.get("output") if item.get("error") is None else f"error: {item['error']}"
        call = {
            "type": "function_call",
            "call_id": call_id,
            "name": item.get("name"),
            "arguments": item.get("arguments"),
        }
        found += [call, {"type": "function_call_output", "call_id": call_id, "output": said or ""}]
    return found


def _function(tool: Tool) -> Item:
    return {"type": "function", "name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def _listed(tool: Tool) -> Item:
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": dict(tool.parameters),
        "annotations": None,
    }


def _add_usage(total: dict[str, Any], more: Any) -> None:
    for name, value in (more or {}).items():
        if isinstance(value, dict):
            _add_usage(total.setdefault(name, {}), value)
        elif isinstance(value, int):
            total[name] = total.get(name, 0) + value
