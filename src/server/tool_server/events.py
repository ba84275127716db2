"""The events of a streamed response whose items are made one after the other, each complete when it is sent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..protocol.errors import ApiError
from ..protocol.stream import event_frame

Item = dict[str, Any]


class ItemEvents:
    def __init__(self, response_id: str, model: str, body: Mapping[str, Any]) -> None:
        self._response: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata") or {},
            "model": model,
            "output": [],
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body["tools"],
            "usage": None,
        }
        self._sequence = 0
        self._index = 0

    def begin(self) -> bytes:
        return b"".join(self._frame(f"response.{kind}", response=self._response) for kind in ("created", "in_progress"))

    def item(self, item: Item) -> bytes:
        at = {"output_index": self._index, "item_id": item["id"]}
        self._index += 1
        self._response["output"] = [*self._response["output"], item]
        begun = {**item, "status": "in_progress", **_EMPTY.get(item["type"], {})}
        frames = [self._frame("response.output_item.added", output_index=at["output_index"], item=begun)]
        kind = item["type"]
        if kind == "message":
            for index, part in enumerate(item["content"]):
                frames += self._part(part, {**at, "content_index": index})
        elif kind in ("function_call", "mcp_call"):
            if kind == "mcp_call":
                frames.append(self._frame("response.mcp_call.in_progress", **at))
            arguments = "function_call_arguments" if kind == "function_call" else "mcp_call_arguments"
            frames.append(self._frame(f"response.{arguments}.delta", **at, delta=item["arguments"]))
            frames.append(self._frame(f"response.{arguments}.done", **at, arguments=item["arguments"]))
            if kind == "mcp_call":
                frames.append(self._frame(f"response.mcp_call.{item['status']}", **at))
        elif kind == "mcp_list_tools":
            frames += [self._frame(f"response.mcp_list_tools.{state}", **at) for state in ("in_progress", "completed")]
        frames.append(self._frame("response.output_item.done", output_index=at["output_index"], item=item))
        return b"".join(frames)

    def end(self, response: Mapping[str, Any]) -> bytes:
        self._response = {**response, "id": self._response["id"]}
        return self._frame(f"response.{response['status']}", response=self._response)

    def failed(self, error: ApiError) -> bytes:
        cause = {"code": error.code, "message": error.message}
        self._response = {**self._response, "status": "failed", "error": cause}
        return self._frame("response.failed", response=self._response)

    def _part(self, part: Item, at: dict[str, Any]) -> list[bytes]:
        text = part.get("text", "")
        empty = {**part, "text": ""}
        return [
            self._frame("response.content_part.added", **at, part=empty),
            self._frame("response.output_text.delta", **at, delta=text, logprobs=part.get("logprobs") or []),
            self._frame("response.output_text.done", **at, text=text, logprobs=part.get("logprobs") or []),
            self._frame("response.content_part.done", **at, part=part),
        ]

    def _frame(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        return event_frame(kind, {"type": kind, "sequence_number": self._sequence - 1, **fields})


_EMPTY: Mapping[str, Item] = {
    "message": {"content": []},
    "function_call": {"arguments": ""},
    "mcp_call": {"arguments": "", "output": None, "error": None},
    "mcp_list_tools": {"tools": []},
}
