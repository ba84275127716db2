"""GeneratedSequence: one sequence as it is generated. Engine outputs go in; deltas with text come out.

Applies stop strings, which the engine does not see: text, token ids and log-probabilities end where a stop string ends.
What reads the text (answers/reading.py) applies them itself, because it knows which of the text they apply to.
Used by the server (generation.py) and by `LLM` (outputs.py). Does not know requests of several sequences, HTTP or time.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..engine.api import EngineOutput, EngineRequest, FinishReason, StoredBlocks, TokenLogprobs, VerifiedDraft
from .detokenizer import TextStream
from .tokenizer import Tokenizer


@dataclass(slots=True)
class Delta:
    """What one sequence got since its last delta."""

    index: int  # of the sequence, in the order of the requests
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None  # one per token id
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # with the first token
    finish_reason: str | None = None  # stop or length, with the last delta
    stop_reason: int | str | None = None  # the stop token id or stop string that the request named
    pieces: list[str] = field(default_factory=list, compare=False)  # the text that each token completes, then the rest
    answer: Any = field(default=None, compare=False)  # what a reader made of it

    def end(self, num_tokens: int, stop: str) -> None:
        """A stop string ended the sequence with the last of this number of tokens."""
        self.finish_reason, self.stop_reason = FinishReason.STOP.value, stop
        self.token_ids = self.token_ids[:num_tokens]
        self.logprobs = self.logprobs and self.logprobs[:num_tokens]


class Reader(Protocol):
    """What reads the deltas of one sequence and applies its stop strings."""

    def read(self, delta: Delta) -> None:
        """Sets `answer`, and calls `end` where a stop string ends the sequence."""


class GenerationFailed(Exception):
    """The engine ended the sequence early: `reason` is ERROR or ABORT, `message` the engine's, where it gave one."""

    def __init__(self, reason: FinishReason, message: str | None) -> None:
        super().__init__(message or f"the engine ended this request: {reason.value}")
        self.reason = reason
        self.message = message


_SHOWN = {FinishReason.COMPLETE: FinishReason.STOP.value}


class GeneratedSequence:
    """State of one sequence. Without a tokenizer, or with `detokenize=False`, deltas have no text."""

    def __init__(
        self,
        index: int,
        request: EngineRequest,
        tokenizer: Tokenizer | None,
        kept_ids: Set[int] = frozenset(),
        reader: Reader | None = None,
        *,
        stops_in_text: bool = False,
    ) -> None:
        """kept_ids: special tokens that are part of the text. stops_in_text: stop strings end it before it is read."""
        self.index = index
        self.request = request
        self.num_generated = 0  # tokens, up to the end of a stop string
        self.num_cached = 0  # prompt tokens from the prefix cache
        self.num_newly_cached = 0  # prompt tokens that were added to it
        self.queued_s: float | None = None  # time in the engine's queue, once the first output has arrived
        self.finish_reason: str | None = None
        self.drafts: list[VerifiedDraft] = []  # of its steps so far
        self.stored: StoredBlocks | None = None  # of a prompt that is for other engines, with the last output
        self._text: TextStream | None = None
        if tokenizer is not None and request.inputs.sampling.detokenize:
            self._text = TextStream(
                tokenizer,
                request.inputs.sampling,
                request.inputs.prompt_token_ids,
                kept_ids,
                has_stops=reader is None or stops_in_text,
            )
        self._reader = reader

    @property
    def has_text(self) -> bool:
        return self._text is not None

    def needed(self, token_ids: Sequence[int]) -> tuple[list[int], int]:
        """See TextStream.needed."""
        return ([], 0) if self._text is None else self._text.needed(token_ids)

    def take(self, output: EngineOutput) -> Delta:
        """The next output of the engine as a delta.

        A delta with a finish reason is the last one. If the output has none, a stop string ended the sequence and the
        engine still runs it: the caller aborts it. Raises GenerationFailed.
        """
        if output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise GenerationFailed(output.finish_reason, output.error)
        self.num_cached = max(self.num_cached, output.num_cached_tokens)
        self.num_newly_cached = max(self.num_newly_cached, output.num_newly_cached_tokens)
        if output.queued_s is not None:
            self.queued_s = output.queued_s
        if output.drafts is not None:
            self.drafts += output.drafts
        self.stored = output.stored
        delta = Delta(
            self.index,
            token_ids=output.token_ids,
            logprobs=output.logprobs,
            prompt_logprobs=output.prompt_logprobs,
            finish_reason=output.finish_reason and _SHOWN.get(output.finish_reason, output.finish_reason.value),
            stop_reason=output.stop_reason,
        )
        if self._text is not None:
            shown = self._text.add(
                output.token_ids,
                finished=output.finish_reason is not None,
                ends_with_stop_token=output.finish_reason is FinishReason.STOP,
            )
            delta.text, delta.pieces = shown.text, shown.pieces
            if shown.stop is not None:
                delta.end(shown.num_tokens, shown.stop)
        if self._reader is not None:
            self._reader.read(delta)
        self.num_generated += len(delta.token_ids)
        self.finish_reason = delta.finish_reason
        return delta


def join(deltas: Sequence[Delta]) -> Delta:
    """One sequence's deltas as one."""
    whole = Delta(deltas[0].index)
    for delta in deltas:
        whole.token_ids += delta.token_ids
        if delta.logprobs is not None:
            whole.logprobs = whole.logprobs or []
            whole.logprobs += delta.logprobs
        if delta.prompt_logprobs is not None:
            whole.prompt_logprobs = whole.prompt_logprobs or []
            whole.prompt_logprobs += delta.prompt_logprobs
        whole.finish_reason, whole.stop_reason = delta.finish_reason, delta.stop_reason
    whole.text = "".join(delta.text for delta in deltas)
    return whole
