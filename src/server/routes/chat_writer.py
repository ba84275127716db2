"""ChatWriter: the choices of one chat completion, as objects of a complete answer and of chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...formats.events import CallArguments, CallBegin, CallEnd, Content, Event, Reasoning
from ..answers.parts import Answer, Part
from ..answers.reading import AnswerDelta
from ..endpoint import INLINE_ITEMS
from ..logprobs import chat_logprobs, prompt_logprobs
from ..protocol.chat import ChatRequest
from ..protocol.stream import ChunkWriter
from ..service import Service

_REASONING_FIELDS = {
    "both": ("reasoning", "reasoning_content"),
    "reasoning": ("reasoning",),
    "reasoning_content": ("reasoning_content",),
    "inline": (),
    "none": (),
}


class ChatWriter:
    """Writes the choices of one request, whatever generated their tokens."""

    def __init__(
        self,
        service: Service,
        body: ChatRequest,
        *,
        num_top: int,
        num_calls: Callable[[int], int],
        prompt: list[int] | None,
    ) -> None:
        """
        num_top: of `top_logprobs`. num_calls: so far, in the answer with an index. prompt: its ids, for
        `return_token_ids`; None if they are not known.
        """
        settings = service.settings
        # A new message has the role of `server.response_role`, a continued one keeps its own.
        self.role = settings.response_role if body.add_generation_prompt else body.messages[-1].role
        last = body.messages[-1]
        self._echoed = last.text if body.echo and last.role == self.role else ""
        self._reasoning_fields = _REASONING_FIELDS[settings.reasoning_field]
        self._body = body
        self._is_named = body.choice.mode == "named"
        self._tokenizer = service.tokenizer
        self._names = service.token_names(body.return_tokens_as_token_ids)
        self._num_top = num_top
        self._num_calls = num_calls
        self._prompt = prompt
        self._counts_before: dict[str, Any] | None = None  # usage before this delta, if each chunk shall have it

    def choice(self, answer: Answer) -> dict[str, Any]:
        """A choice of a complete response, with null for what the request did not ask for."""
        content, calls = self._echoed + answer.content, answer.calls
        message: dict[str, Any] = {
            "role": self.role,
            "content": content or ("" if not calls else None),
            "refusal": None,
        }
        message |= dict.fromkeys(self._reasoning_fields, answer.reasoning or None)
        if calls:
            message["tool_calls"] = [_call(part) for part in calls]
        return {
            "index": answer.index,
            "message": message,
            "logprobs": None if answer.logprobs is None else chat_logprobs(answer.logprobs, self._num_top, self._names),
            "finish_reason": self._finish_reason(answer, len(calls)),
            "stop_reason": answer.stop_reason,
            "token_ids": answer.token_ids if self._body.return_token_ids else None,
        }

    def _finish_reason(self, part: Answer | AnswerDelta, num_calls: int) -> str | None:
        """Finish reason as in OpenAI's API: an answer whose function the request names ends with `stop`. So does an
        answer that ended within a call, which cannot be carried out.
        """
        are_whole = part.finish_reason == "stop" and num_calls and not part.cuts_call
        return "tool_calls" if are_whole and not self._is_named else part.finish_reason

    def prompt_fields(self, part: Answer | AnswerDelta) -> dict[str, Any]:
        """What the request asked about its prompt: fields of the response, or of the first chunk of a choice."""
        fields: dict[str, Any] = {}
        if self._body.return_token_ids:
            fields["prompt_token_ids"] = self._prompt
        if part.prompt_logprobs is not None:
            fields["prompt_logprobs"] = prompt_logprobs(part.prompt_logprobs, self._tokenizer)
        return fields

    def num_items(self, part: Answer | AnswerDelta, *, is_first: bool) -> int:
        """How many tokens and log-probabilities this part adds to the answer; is_first: with `prompt_fields`."""
        num = 0
        if part.logprobs is not None or self._body.return_token_ids:
            num = len(part.token_ids) * (1 + self._num_top)
        if is_first:
            num += sum(1 if entry is None else len(entry.token_ids) for entry in part.prompt_logprobs or ())
            num += len(self._prompt or ()) if self._body.return_token_ids else 0
        return num

    def frames(
        self, writer: ChunkWriter, delta: AnswerDelta, is_first: bool, counts: dict[str, Any] | None, num_items: int
    ) -> bytes:
        """Chunks of one delta: the role before the first text, and the finish reason after the last.

        counts: usage so far, if each chunk shall have it.
        """
        is_long = num_items > INLINE_ITEMS
        frames = b""
        if counts is not None and self._counts_before is None:  # the role comes before the first token
            self._counts_before = {**counts, "completion_tokens": 0, "total_tokens": counts["prompt_tokens"]}
            if "completion_tokens_details" in counts:
                self._counts_before["completion_tokens_details"] = dict.fromkeys(counts["completion_tokens_details"], 0)
        if is_first:
            role = {"role": self.role, "content": self._echoed}
            choice: dict[str, Any] = {"index": delta.index, "delta": role, "logprobs": None, "finish_reason": None}
            frames += writer.choice(choice, self._counts_before, self.prompt_fields(delta), is_long=is_long)
        self._counts_before = counts
        # If a delta has several events, the first one has the tokens of all.
        more = self._tokens(delta)
        for event in delta.events:
            if isinstance(event, Content) and not more and counts is None:
                frames += writer.chat_text(delta.index, event.text)
            elif fields := self._delta(event):
                choice = {"index": delta.index, "delta": fields, "logprobs": None, **more, "finish_reason": None}
                frames += writer.choice(choice, counts, is_long=is_long)
                more = {}
        if more and delta.finish_reason is None:  # tokens without text, or of the end of a call
            choice = {"index": delta.index, "delta": {"content": ""}, "logprobs": None, **more, "finish_reason": None}
            frames += writer.choice(choice, counts, is_long=is_long)
        if delta.finish_reason is not None:
            reason = self._finish_reason(delta, self._num_calls(delta.index))
            choice = {"index": delta.index, "delta": {}, "logprobs": None, **more, "finish_reason": reason}
            if delta.stop_reason is not None:
                choice["stop_reason"] = delta.stop_reason
            frames += writer.choice(choice, counts)
        return frames

    def chunk(self, delta: AnswerDelta, *, is_first: bool) -> dict[str, Any]:
        """The choice of one chunk with all of a delta, its role and its finish reason included."""
        fields: dict[str, Any] = {"role": self.role, "content": self._echoed} if is_first else {}
        calls: dict[int, dict[str, Any]] = {}
        for event in delta.events:
            for name, value in self._delta(event).items():
                if name != "tool_calls":
                    fields[name] = fields.get(name, "") + value
                    continue
                (piece,) = value
                whole = calls.setdefault(piece["index"], piece)
                if whole is not piece:
                    whole["function"]["arguments"] += piece["function"]["arguments"]
        if calls:
            fields["tool_calls"] = list(calls.values())
        choice = {"index": delta.index, "delta": fields, "logprobs": None, **self._tokens(delta), "finish_reason": None}
        if delta.finish_reason is not None:
            choice["finish_reason"] = self._finish_reason(delta, self._num_calls(delta.index))
        if delta.stop_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        return choice

    def _tokens(self, delta: AnswerDelta) -> dict[str, Any]:
        """Fields of a choice: what the request asked about the tokens of a delta."""
        more: dict[str, Any] = {}
        if delta.logprobs:
            more["logprobs"] = chat_logprobs(delta.logprobs, self._num_top, self._names)
        if self._body.return_token_ids and delta.token_ids:
            more["token_ids"] = delta.token_ids
        return more

    def _delta(self, event: Event) -> dict[str, Any]:
        """The first delta of a call has its id and name; the others have pieces of its arguments only."""
        match event:
            case Content(text=text):
                return {"content": text}
            case Reasoning(text=text):
                return dict.fromkeys(self._reasoning_fields, text)
            case CallBegin():
                return {"tool_calls": [{"index": event.index, **_call_object(event.id, event.name, "")}]}
            case CallArguments():
                return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
            case CallEnd():
                return {}


def _call(part: Part) -> dict[str, Any]:
    return _call_object(part.call_id, part.name, part.text)


def _call_object(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
