"""A whole answer: its parts in the order in which the model wrote them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...engine.api import TokenLogprobs
from ...formats.events import CallArguments, CallBegin, CallEnd, Content, Reasoning
from .reading import AnswerDelta


@dataclass(slots=True)
class Part:
    """Reasoning or text; or a call, whose text is the JSON of its arguments."""

    kind: type[Reasoning] | type[Content] | type[CallBegin]
    pieces: list[str] = field(default_factory=list)
    call_id: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class Answer:
    index: int  # of the sequence
    parts: list[Part] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    cuts_call: bool = False

    def add(self, delta: AnswerDelta) -> None:
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += delta.logprobs
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        self.cuts_call = delta.cuts_call
        for event in delta.events:
            match event:
                case CallBegin():
                    self.parts.append(Part(CallBegin, call_id=event.id, name=event.name))
                case CallArguments(text=text):
                    self.parts[-1].pieces.append(text)
                case Reasoning(text=text) | Content(text=text):
                    if not self.parts or self.parts[-1].kind is not type(event):
                        self.parts.append(Part(type(event)))
                    self.parts[-1].pieces.append(text)
                case CallEnd():
                    pass

    @property
    def content(self) -> str:
        return self._joined(Content)

    @property
    def reasoning(self) -> str:
        return self._joined(Reasoning)

    @property
    def calls(self) -> list[Part]:
        return [part for part in self.parts if part.kind is CallBegin]

    def _joined(self, kind: type) -> str:
        return "".join(part.text for part in self.parts if part.kind is kind)
