"""An answer in the form of Anthropic's Messages API: content blocks, and the events that announce them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ...formats.events import CallArguments, CallBegin, CallEnd, Content, Reasoning
from ...text.chat_template import INCOMPLETE
from ...text.json_text import is_too_deep
from ..protocol.json import dump
from ..protocol.stream import event_frame
from .reading import AnswerDelta

Event = dict[str, Any]


class MessageWriter:
    """One block is open at a time. head: fields of the message that do not change."""

    def __init__(self, head: dict[str, Any]) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._head = head
        self._pieces: list[str] = []
        self._open: dict[str, Any] | None = None
        self._num_calls = 0
        self._cuts_call = False

    def begin(self, usage: dict[str, Any]) -> list[Event]:
        return [{"type": "message_start", "message": self.message(None, None, usage)}]

    def add(self, delta: AnswerDelta) -> list[Event]:
        found: list[Event] = []
        self._cuts_call = delta.cuts_call
        for event in delta.events:
            match event:
                case Reasoning(text=text):
                    self._need({"type": "thinking", "thinking": "", "signature": ""}, found)
                    found.append(self._delta({"type": "thinking_delta", "thinking": text}, text))
                case Content(text=text):
                    self._need({"type": "text", "text": ""}, found)
                    found.append(self._delta({"type": "text_delta", "text": text}, text))
                case CallBegin():
                    self._close(found)
                    self._num_calls += 1
                    self._begin({"type": "tool_use", "id": event.id, "name": event.name, "input": {}}, found)
                case CallArguments(text=text):
                    piece = self._delta({"type": "input_json_delta", "partial_json": text}, text)
                    if self._begins_object():
                        found.append(piece)
                case CallEnd():
                    self._close(found)
        return found

    def end(self, finish_reason: str | None, stop: int | str | None, usage: dict[str, Any]) -> list[Event]:
        found: list[Event] = []
        self._close(found)
        reason, sequence = self.stop_reason(finish_reason, stop)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return [*found, {"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]

    def message(self, reason: str | None, sequence: str | None, usage: dict[str, Any]) -> dict[str, Any]:
        stop = {"stop_reason": reason, "stop_sequence": sequence}
        return {**self._head, "content": list(self.blocks), **stop, "usage": usage}

    def stop_reason(self, finish_reason: str | None, stop: int | str | None) -> tuple[str, str | None]:
        """The reason, and the stop sequence if that is the reason."""
        if finish_reason == "length":
            return "max_tokens", None
        if isinstance(stop, str):
            return "stop_sequence", stop
        return ("tool_use" if self._num_calls and not self._cuts_call else "end_turn"), None

    def _need(self, block: dict[str, Any], found: list[Event]) -> None:
        if self._open is None or self._open["type"] != block["type"]:
            self._close(found)
            self._begin(block, found)

    def _begin(self, block: dict[str, Any], found: list[Event]) -> None:
        self._open, self._pieces = block, []
        found.append({"type": "content_block_start", "index": len(self.blocks), "content_block": dict(block)})

    def _delta(self, delta: dict[str, Any], text: str) -> Event:
        self._pieces.append(text)
        return {"type": "content_block_delta", "index": len(self.blocks), "delta": delta}

    def _begins_object(self) -> bool:
        """Whether the arguments can be sent as they arrive: clients build the input, an object, out of them."""
        return self._pieces[0].lstrip()[:1] == "{"

    def _close(self, found: list[Event]) -> None:
        block = self._open
        if block is None:
            return
        whole = "".join(self._pieces)
        match block["type"]:
            case "thinking":
                block["thinking"], block["signature"] = whole, _signature(whole)
                signature = {"type": "signature_delta", "signature": block["signature"]}
                found.append({"type": "content_block_delta", "index": len(self.blocks), "delta": signature})
            case "text":
                block["text"] = whole
            case _:
                block["input"] = _input(whole)
                if whole and not self._begins_object():
                    text = json.dumps(block["input"], ensure_ascii=False)
                    found.append(self._delta({"type": "input_json_delta", "partial_json": text}, text))
        found.append({"type": "content_block_stop", "index": len(self.blocks)})
        self.blocks.append(block)
        self._open = None


def frames(events: list[Event]) -> bytes:
    return b"".join(event_frame(event["type"], event) for event in events)


def _signature(text: str) -> str:
    """Clients require one and send it back. This server reads the text itself, and checks nothing."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=24).hexdigest()


def _input(arguments: str) -> dict[str, Any]:
    """The arguments of a call; as one text if they are no JSON object that a later request can have in its messages."""
    try:
        value = json.loads(arguments or "{}")
        dump(value)
    except (ValueError, RecursionError):  # they were cut off, or have NaN
        value = None
    is_accepted = isinstance(value, dict) and not is_too_deep({"messages": [{"content": [{"input": value}]}]})
    return value if is_accepted else {INCOMPLETE: arguments}
