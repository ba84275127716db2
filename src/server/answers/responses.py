"""An answer in the form of the Responses API: items, and the events that announce them.

One item is open at a time. A complete response is made of the same items, so that it has the ids of the stream.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from ...engine.api import TokenLogprobs
from ...formats.events import CallArguments, CallBegin, CallEnd, Content, Reasoning
from ..protocol.errors import ApiError
from ..protocol.response_items import opaque
from ..protocol.response_tools import NamedTool
from ..protocol.responses import ENCRYPTED, ResponsesRequest
from ..protocol.stream import event_frame
from .json_input import JsonInput, is_json
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
        self._named = request.known_tools.named
        self._has_summary = bool(request.reasoning and request.reasoning.has_summary)
        self._has_encrypted = ENCRYPTED in (request.include or ())
        self._write_logprobs = write_logprobs
        self._open: _Reasoning | _Message | _Call | None = None
        self._cuts_call = False

    def begin(self, status: str = "in_progress") -> list[Event]:
        """status: `in_progress`, or `queued`; then `proceed` follows."""
        response = self.response(status)
        return [response_event(kind, response) for kind in ("created", status)]

    def proceed(self) -> list[Event]:
        return [response_event("in_progress", self.response("in_progress"))]

    def add(self, delta: AnswerDelta) -> list[Event]:
        self._cuts_call = delta.cuts_call
        found: list[Event] = []
        for event, logprobs in zip(delta.events, delta.event_logprobs, strict=True):
            match event:
                case Reasoning(text=text):
                    found += self._item(_Reasoning, found).add(text)
                case Content(text=text):
                    message = self._item(_Message, found)
                    found += message.add(text, self._write_logprobs(logprobs) if logprobs else [])
                case CallBegin():
                    self._close(found)
                    tool = self._named.get(event.name, NamedTool(event.name, None, is_custom=False))
                    call = self._open = _Call(len(self.items), tool, event.id)
                    found += call.begin()
                case CallArguments(text=text):
                    assert isinstance(self._open, _Call)
                    found += self._open.add(text)
                case CallEnd():
                    self._close(found, "incomplete" if self._is_cut(delta) else "completed")
        return found

    def _is_cut(self, delta: AnswerDelta) -> bool:
        """Whether the open call, which ends, is not whole."""
        if not isinstance(self._open, _Call):
            return False
        if not self._open.is_custom:
            return not self._open.is_whole
        if delta.finish_reason is None:
            return False
        return delta.cuts_call or (delta.finish_reason == "length" and not self._open.is_whole)

    def end(self, finish_reason: str | None, usage: dict[str, Any], extra: dict[str, Any] | None = None) -> list[Event]:
        """extra: further fields of the response object."""
        is_complete = finish_reason == "stop" and not self._cuts_call
        found: list[Event] = []
        self._close(found, "completed" if is_complete else "incomplete")
        status = "completed" if is_complete else "incomplete"
        reason = "max_output_tokens" if finish_reason == "length" else None
        response = {**self.response(status, usage, reason=reason), **(extra or {})}
        return [*found, response_event(status, response)]

    def failed(self, error: ApiError) -> list[Event]:
        found: list[Event] = []
        self._close(found, "incomplete")
        return [*found, response_event("failed", self.response("failed", error=error))]

    def response(
        self,
        status: str,
        usage: dict[str, Any] | None = None,
        *,
        error: ApiError | None = None,
        reason: str | None = None,
    ) -> dict[str, Any]:
        """The response object as it is now. reason: why it is incomplete."""
        return {
            **self._head,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None if error is None else error_object(error),
            "incomplete_details": {"reason": reason} if status == "incomplete" else None,
            "output": list(self.items),
            "usage": usage,
        }

    def _item(self, kind: Any, found: list[Event]) -> Any:
        """The open item, if it is of this kind, or a new one."""
        if not isinstance(self._open, kind):
            self._close(found)
            options = (self._has_summary, self._has_encrypted) if kind is _Reasoning else ()
            self._open = kind(len(self.items), *options)
            found += self._open.begin()
        return self._open

    def _close(self, found: list[Event], status: str = "completed") -> None:
        if self._open is not None:
            found += self._open.end(status)
            self.items.append(self._open.item)
            self._open = None


def error_object(error: ApiError) -> dict[str, Any]:
    code = "rate_limit_exceeded" if error.status == 429 else "server_error" if error.status >= 500 else "invalid_prompt"
    return {"code": code, "message": error.message, "param": error.param, "type": error.kind}


class EventFrames:
    """Numbers and encodes the events of one stream."""

    def __init__(self) -> None:
        self._num = 0

    def encode(self, events: Iterable[Event]) -> list[bytes]:
        found = []
        for event in events:
            kind = event["type"]
            found.append(event_frame(kind, {"type": kind, "sequence_number": self._num, **event}))
            self._num += 1
        return found


def error_event(error: ApiError) -> bytes:
    """The last frame of a stream whose response goes on, or has ended long ago."""
    fields = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
    return event_frame("error", {**fields, "sequence_number": 0})


def response_event(kind: str, response: dict[str, Any]) -> Event:
    return {"type": f"response.{kind}", "response": response}


def _event(kind: str, **fields: Any) -> Event:
    return {"type": kind, **fields}


class _Item:
    def __init__(self, index: int, prefix: str, fields: dict[str, Any]) -> None:
        self.item: dict[str, Any] = {"id": f"{prefix}_{uuid.uuid4().hex}", **fields, "status": "in_progress"}
        self._place = {"output_index": index, "item_id": self.item["id"]}
        self._pieces: list[str] = []

    def _event(self, kind: str, **fields: Any) -> Event:
        return _event(f"response.{kind}", **self._place, **fields)

    def _added(self) -> Event:
        item = {name: list(value) if isinstance(value, list) else value for name, value in self.item.items()}
        return _event("response.output_item.added", output_index=self._place["output_index"], item=item)

    def _done(self, status: str) -> Event:
        self.item["status"] = status
        return _event("response.output_item.done", output_index=self._place["output_index"], item=self.item)


class _Reasoning(_Item):
    """has_summary: the text is the summary as well. has_encrypted: for clients that send only that back."""

    def __init__(self, index: int, has_summary: bool, has_encrypted: bool) -> None:
        super().__init__(index, "rs", {"type": "reasoning", "summary": [], "content": []})
        self._has_summary, self._has_encrypted = has_summary, has_encrypted

    def begin(self) -> list[Event]:
        found = [self._added(), self._event("content_part.added", content_index=0, part=_reasoning_part(""))]
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
            self._event("content_part.done", content_index=0, part=_reasoning_part(text)),
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
    def __init__(self, index: int) -> None:
        super().__init__(index, "msg", {"type": "message", "role": "assistant", "content": []})
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
    """A call of a function, with arguments in JSON; or of a custom tool, with one text."""

    def __init__(self, index: int, tool: NamedTool, call_id: str) -> None:
        names = {"call_id": call_id, "name": tool.name}
        if tool.namespace is not None:
            names["namespace"] = tool.namespace
        self._value = "input" if tool.is_custom else "arguments"
        self._kind = "custom_tool_call_input" if tool.is_custom else "function_call_arguments"
        kind, prefix = ("custom_tool_call", "ctc") if tool.is_custom else ("function_call", "fc")
        super().__init__(index, prefix, {"type": kind, **names, self._value: ""})
        self._input = JsonInput() if tool.is_custom else None

    @property
    def is_custom(self) -> bool:
        return self._input is not None

    @property
    def is_whole(self) -> bool:
        """Whether the arguments ended before the answer did."""
        return is_json("".join(self._pieces)) if self._input is None else self._input.has_ended

    def begin(self) -> list[Event]:
        return [self._added()]

    def add(self, text: str) -> list[Event]:
        return self._written(self._input.feed(text) if self._input else text)

    def end(self, status: str) -> list[Event]:
        found = self._written(self._input.finish()) if self._input else []
        whole = self.item[self._value] = "".join(self._pieces)
        name = {"name": self.item["name"]} if self._input is None else {}
        return [*found, self._event(f"{self._kind}.done", **name, **{self._value: whole}), self._done(status)]

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
