"""The events of the items that only a server with tools makes. Each item is complete when it is sent."""

from __future__ import annotations

from typing import Any

Item = dict[str, Any]
Event = dict[str, Any]


def of_list(item: Item, index: int) -> list[Event]:
    """Events of an `mcp_list_tools` item. index: its place in the output."""
    at = {"output_index": index, "item_id": item["id"]}
    states = [_event(f"mcp_list_tools.{state}", **at) for state in ("in_progress", "completed")]
    return _item(item, {**item, "tools": []}, index, states)


def of_call(item: Item, index: int) -> list[Event]:
    """Events of an `mcp_call` item."""
    at = {"output_index": index, "item_id": item["id"]}
    begun = {**item, "status": "in_progress", "arguments": "", "output": None, "error": None}
    events = [
        _event("mcp_call.in_progress", **at),
        _event("mcp_call_arguments.delta", **at, delta=item["arguments"]),
        _event("mcp_call_arguments.done", **at, arguments=item["arguments"]),
        _event(f"mcp_call.{item['status']}", **at),
    ]
    return _item(item, begun, index, events)


def _item(item: Item, begun: Item, index: int, events: list[Event]) -> list[Event]:
    added = _event("output_item.added", output_index=index, item=begun)
    return [added, *events, _event("output_item.done", output_index=index, item=item)]


def _event(kind: str, **fields: Any) -> Event:
    return {"type": f"response.{kind}", **fields}
