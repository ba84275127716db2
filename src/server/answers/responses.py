"""An answer in the form of the Responses API: items, and the events that announce them.

One item is open at a time. A complete response is made of the same items, so that its ids are those of the stream.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from typing import Any

from ...engine.api import TokenLogprobs
from ...formats.events import CallArguments, CallBegin, CallEnd, Content, Reasoning
from ..protocol.errors import ApiError
from ..protocol.response_items import opaque
from ..protocol.response_tools import NamedTool
from ..protocol.responses import ENCRYPTED, ResponsesRequest
from ..protocol.stream import event_frame
from .json_input import JsonInput
from .reading import AnswerDelta

Event = dict[str, Any]


class ResponseWriter:
    def __init__(
        self,
        request: ResponsesRequest,
        head: dict[str, Any],
        *,
        write_logprobs: Callable[[list[TokenLogprobs]], list[dict[str, Any]]],
    ) -> None:
        """head: fields of the response object that do not change. write_logprobs: in the form of this API."""
        self.items: list[dict[str, Any]] = []
        self._head = head
        self._sequence = 0
        self._named = request.known_tools.named
        self._has_summary = bool(request.reasoning and request.reasoning.has_summary)
        self._has_encrypted = ENCRYPTED in (request.include or ())
        self._write_logprobs = write_logprobs
        self._open: _Reasoning | _Message | _Call | None = None
        self._logprobs: list[TokenLogprobs] = []  # of tokens whose text is not written yet

    def begin(self, status: str = "in_progress") -> list[Event]:
        kinds = ("response.queued",) if status == "queued" else ("response.in_progress",)
        response = self.response(status)
        return [self._event(kind, response=response) for kind in ("response.created", *kinds)]

    def add(self, delta: AnswerDelta) -> list[Event]:
        self._logprobs += delta.answer_logprobs
        found: list[Event] = []
        for event in delta.events:
            match event:
                case Reasoning(text=text):
                    found += self._item(_Reasoning, found).add(text)
                case Content(text=text):
                    message = self._item(_Message, found)
                    found += message.add(text, self._write_logprobs(self._logprobs) if self._logprobs else [])
                    self._logprobs.clear()
                case CallBegin():
                    self._close(found)
                    tool = self._named.get(event.name, NamedTool(event.name, None, is_custom=False))
                    call = self._open = _Call(self._event, len(self.items), tool, event.id)
                    found += call.begin()
                case CallArguments(text=text):
                    assert isinstance(self._open, _Call)
                    found += self._open.add(text)
                case CallEnd():
                    is_cut = (
                        delta.finish_reason == "length" and isinstance(self._open, _Call) and not self._open.is_whole
                    )
                    self._close(found, "incomplete" if is_cut else "completed")
        return found

    def end(self, finish_reason: str | None, usage: dict[str, Any]) -> list[Event]:
        is_complete = finish_reason == "stop"
        found: list[Event] = []
        self._close(found, "completed" if is_complete else "incomplete")
        status = "completed" if is_complete else "incomplete"
        return [*found, self._event(f"response.{status}", response=self.response(status, usage))]

    def failed(self, error: ApiError) -> list[Event]:
        found: list[Event] = []
        self._close(found, "incomplete")
        return [*found, self._event("response.failed", response=self.response("failed", error=error))]

    def response(
        self, status: str, usage: dict[str, Any] | None = None, error: ApiError | None = None
    ) -> dict[str, Any]:
        """The response object as it is now."""
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._head,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None if error is None else error_object(error),
            "incomplete_details": reason,
            "output": list(self.items),
            "usage": usage,
        }

    def _item(self, kind: Any, found: list[Event]) -> Any:
        """The open item, if it is of this kind, or a new one."""
        if not isinstance(self._open, kind):
            self._close(found)
            options = (self._has_summary, self._has_encrypted) if kind is _Reasoning else ()
            self._open = kind(self._event, len(self.items), *options)
            found += self._open.begin()
        return self._open

    def _close(self, found: list[Event], status: str = "completed") -> None:
        if self._open is not None:
            found += self._open.end(status)
            self.items.append(self._open.item)
            self._open = None

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event


def error_object(error: ApiError) -> dict[str, Any]:
    code = "rate_limit_exceeded" if error.status == 429 else "server_error" if error.status >= 500 else "invalid_prompt"
    return {"code": code, "message": error.message, "param": error.param, "type": error.kind}


def frames(events: list[Event]) -> bytes:
    return b"".join(event_frame(event["type"], event) for event in events)


class _Item:
    def __init__(self, new: Callable[..., Event], index: int, prefix: str, fields: dict[str, Any]) -> None:
        self.item: dict[str, Any] = {"id": f"{prefix}_{uuid.uuid4().hex}", **fields, "status": "in_progress"}
        self._new = new
        self._place = {"output_index": index, "item_id": self.item["id"]}
        self._pieces: list[str] = []

    def _event(self, kind: str, **fields: Any) -> Event:
        return self._new(f"response.{kind}", **self._place, **fields)

    def _added(self) -> Event:
        item = {name: list(value) if isinstance(value, list) else value for name, value in self.item.items()}
        return self._new("response.output_item.added", output_index=self._place["output_index"], item=item)

    def _done(self, status: str) -> Event:
        self.item["status"] = status
        return self._new("response.output_item.done", output_index=self._place["output_index"], item=self.item)


class _Reasoning(_Item):
    """has_summary: the text is the summary as well. has_encrypted: for clients that send only that back."""

    def __init__(self, new: Callable[..., Event], index: int, has_summary: bool, has_encrypted: bool) -> None:
        super().__init__(new, index, "rs", {"type": "reasoning", "summary": [], "content": []})
        self._has_summary, self._has_encrypted = has_summary, has_encrypted

    def begin(self) -> list[Event]:
        found = [self._added(), self._event("reasoning_part.added", content_index=0, part=_reasoning_part(""))]
        if self._has_summary:
            found.append(self._event("reasoning_summary_part.added", summary_index=0, part=_summary_part("")))
        return found

    def add(self, text: str) -> list[Event]:
        self._pieces.append(text)
        found = [self._event("reasoning_text.delta", content_index=0, delta=text)]
        if self._has_summary:
            found.append(self._event("reasoning_summary_text.delta", summary_index=0, delta=text))
        return found

    def end(self, status: str) -> list[Event]:
        text = "".join(self._pieces)
        self.item["content"] = [_reasoning_part(text)]
        found = [
            self._event("reasoning_text.done", content_index=0, text=text),
            self._event("reasoning_part.done", content_index=0, part=_reasoning_part(text)),
        ]
        if self._has_summary:
            self.item["summary"] = [_summary_part(text)]
            found += [
                self._event("reasoning_summary_text.done", summary_index=0, text=text),
                self._event("reasoning_summary_part.done", summary_index=0, part=_summary_part(text)),
            ]
        if self._has_encrypted:
            self.item["encrypted_content"] = opaque(text)
        return [*found, self._done(status)]


class _Message(_Item):
    def __init__(self, new: Callable[..., Event], index: int) -> None:
        super().__init__(new, index, "msg", {"type": "message", "role": "assistant", "content": []})
        self._logprobs: list[dict[str, Any]] = []

    def begin(self) -> list[Event]:
        return [self._added(), self._event("content_part.added", content_index=0, part=_text_part("", []))]

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        self._pieces.append(text)
        self._logprobs += logprobs
        return [self._event("output_text.delta", content_index=0, delta=text, logprobs=logprobs)]

    def end(self, status: str) -> list[Event]:
        text = "".join(self._pieces)
        part = _text_part(text, self._logprobs)
        self.item["content"] = [part]
        return [
            self._event("output_text.done", content_index=0, text=text, logprobs=self._logprobs),
            self._event("content_part.done", content_index=0, part=part),
            self._done(status),
        ]


class _Call(_Item):
    """Of a function, with arguments in JSON; or of a custom tool, with one text."""

    def __init__(self, new: Callable[..., Event], index: int, tool: NamedTool, call_id: str) -> None:
        names = {"call_id": call_id, "name": tool.name}
        if tool.namespace is not None:
            names["namespace"] = tool.namespace
        self._value = "input" if tool.is_custom else "arguments"
        self._kind = "custom_tool_call_input" if tool.is_custom else "function_call_arguments"
        kind, prefix = ("custom_tool_call", "ctc") if tool.is_custom else ("function_call", "fc")
        super().__init__(new, index, prefix, {"type": kind, **names, self._value: ""})
        self._input = JsonInput() if tool.is_custom else None

    @property
    def is_whole(self) -> bool:
        """Whether the arguments ended before the answer did."""
        if self._input is not None:
            return self._input.has_ended
        try:
            json.loads("".join(self._pieces))
        except ValueError:
            return False
        return True

    def begin(self) -> list[Event]:
        return [self._added()]

    def add(self, text: str) -> list[Event]:
        return self._written(self._input.feed(text) if self._input else text)

    def end(self, status: str) -> list[Event]:
        found = self._written(self._input.finish()) if self._input else []
        whole = self.item[self._value] = "".join(self._pieces)
        return [*found, self._event(f"{self._kind}.done", **{self._value: whole}), self._done(status)]

    def _written(self, text: str) -> list[Event]:
        if not text:
            return []
        self._pieces.append(text)
        return [self._event(f"{self._kind}.delta", delta=text)]


def _reasoning_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def _summary_part(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


def _text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
