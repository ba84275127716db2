"""Answers a request of the Responses API whose `tools` name configured MCP servers: generate, run the calls, go on.

The model sees the tools of a server as functions. A call of one is run here, and shown as an `mcp_call` item; calls of
the client's own functions end the response, as without servers. Does not know how a response is generated.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from ..protocol.errors import ApiError, bad_request, unsupported
from ..protocol.response_items import listed_names, result_text
from .events import Event, of_call, of_list
from .servers import Tool, ToolServer, ToolServerError, ToolServers

MAX_ROUNDS = 32
MAX_CALLS = 64
Item = dict[str, Any]
_REFUSED = ("server_url", "connector_id", "authorization", "headers")


class Round(Protocol):
    """One response of the model."""

    async def start(self) -> None:
        """Check the request. Raises ApiError."""

    def events(self) -> AsyncGenerator[list[Event], None]:
        """Events of the response's items; the last one has the response. Raises ApiError."""

    def failed(self, error: ApiError) -> list[Event]:
        """The last events, after an error."""


NewRound = Callable[[dict[str, Any]], Round]  # of the fields that differ from those of the request


class ToolLoop:
    def __init__(
        self,
        servers: ToolServers,
        tools: Sequence[Item],
        items: Sequence[Item],
        new_round: NewRound,
        *,
        known: Sequence[Item] = (),
        choice: Any = None,
        max_calls: int | None = None,
    ) -> None:
        """
        tools, items: of the request. choice: its `tool_choice`.
        known: items of earlier responses; what these list is not listed again.
        """
        self._servers = servers
        self._tools = tools
        self._items = [*items]
        self._num_given = len(items)
        self._new_round = new_round
        self._choice = choice
        self._known = {listed_names(item) for item in known if item.get("type") == "mcp_list_tools"}
        self._num_left = min(max_calls or MAX_CALLS, MAX_CALLS)
        self._owners: dict[str, ToolServer] = {}  # of each tool, by name
        self._listed: list[Item] = []
        self.output: list[Item] = []  # the complete items of the response
        self.usage: Item = {}
        self._held: dict[int, list[Event]] = {}  # of a round, by output index, from the first call of a server on
        self._is_open = False  # a round is being generated

    @property
    def answer(self) -> list[Item]:
        """What the model has written, and the results of its calls, as it reads them."""
        return [*self._listed, *self._items[self._num_given :]]

    async def start(self) -> Round:
        """The first round, checked. Raises ApiError."""
        self._functions, listed = await self._list()
        self._listed = [item for item in listed if listed_names(item) not in self._known]
        self._round = self._next(self._first_choice())
        await self._round.start()
        return self._round

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Events of all items, in order. At the end the last response of the model is `last`. Raises ApiError."""
        for item in self._listed:
            yield self._add(item, of_list)
        for round_index in range(MAX_ROUNDS):
            if round_index:
                # else a model that must call would never answer
                may_call = self._num_left and round_index < MAX_ROUNDS - 1
                self._round = self._next({"tool_choice": "auto" if may_call else "none"})
                await self._round.start()
            self._held = {}
            self._num_before = len(self.output)
            self._is_open = True
            async with aclosing(self._round.events()) as found:
                async for events in found:
                    yield self._shown(events, self._held)
            self._is_open = False
            response = self.last
            _add_usage(self.usage, response.get("usage"))
            self._items += response["output"]
            goes_on = False
            for index, own in sorted(self._held.items()):
                item = response["output"][index]
                if not self._is_run_here(item):
                    yield self._shown(own)
                    continue
                shown, result = await self._call(item)
                self._items.append(result)
                goes_on = True
                yield self._add(shown, of_call)
            is_waiting = any(item["type"] in _CLIENT_CALLS for item in self.output)
            if not goes_on or is_waiting or response["status"] != "completed":
                break

    def failed(self, error: ApiError) -> list[Event]:
        """What ends an open item."""
        return self._shown(self._round.failed(error), self._held) if self._is_open else []

    def _shown(self, events: Iterable[Event], held: dict[int, list[Event]] | None = None) -> list[Event]:
        """The events of a round, as events of the whole response. held: gets events of calls that are run here, and
        all that follow: one item is open at a time."""
        shown: list[Event] = []
        for event in events:
            if "response" in event:
                self.last = event["response"]
                continue
            index = event["output_index"]
            if held is not None and (held or self._is_run_here(event.get("item", {}))):
                held.setdefault(index, []).append(event)
                continue
            if event["type"] == "response.output_item.done":
                self.output.append(event["item"])
            shown.append({**event, "output_index": self._num_before + index})
        return shown

    def _add(self, item: Item, events: Callable[[Item, int], list[Event]]) -> list[Event]:
        self.output.append(item)
        return events(item, len(self.output) - 1)

    def _is_run_here(self, item: Mapping[str, Any]) -> bool:
        is_own = item.get("type") != "function_call" or "namespace" in item
        return not is_own and item["name"] in self._owners

    def _first_choice(self) -> Item:
        """A choice of a server, or of a tool of one, as a choice of functions. Raises ApiError."""
        choice = self._choice
        if not isinstance(choice, dict) or choice.get("type") != "mcp":
            return {}
        names = [name for name, server in self._owners.items() if server.label == choice.get("server_label")]
        if choice.get("name") is not None:
            names = [name for name in names if name == choice["name"]]
        if not names:
            raise bad_request("`tool_choice` names a tool server, or a tool of it, that is not in `tools`",
                              param="tool_choice")  # fmt: skip
        functions = [{"type": "function", "name": name} for name in names]
        return {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": functions}}

    def _next(self, choice: Item) -> Round:
        return self._new_round({"tools": self._functions, "input": self._items, **choice})

    async def _list(self) -> tuple[list[Any], list[Item]]:
        """The tools with the servers' tools as functions, and what was listed."""
        tools: list[Any] = []
        listed: list[Item] = []
        names = {name for tool in self._tools if isinstance(name := tool.get("name"), str)}
        for index, tool in enumerate(self._tools):
            if tool["type"] != "mcp":
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
        return shown, {"type": "function_call_output", "call_id": call["call_id"], "output": result_text(shown)}


_CLIENT_CALLS = ("function_call", "custom_tool_call")


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
