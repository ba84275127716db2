"""What `LLM.generate` returns: one RequestOutput per prompt, with one CompletionOutput per sequence of it.

SequenceCollector makes them from the engine's outputs; text and stop strings: text/generated_sequence.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ..engine.api import EngineOutput, EngineRequest, FinishReason, TokenLogprobs
from ..text.draft_metrics import DraftMetrics
from ..text.generated_sequence import Delta, GeneratedSequence, GenerationFailed, join
from ..text.tokenizer import Tokenizer
from .adapters import LoRARequest


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int  # 1 is the most likely
    decoded_token: str | None  # None without a tokenizer


@dataclass(slots=True)
class CompletionOutput:
    index: int
    text: str = ""  # empty without a tokenizer
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None  # of the generated tokens, with SamplingParams.logprobs
    logprobs: list[dict[int, Logprob]] | None = None  # per generated token: by token id, the sampled one first
    finish_reason: str | None = None  # stop or length
    stop_reason: int | str | None = None  # the stop token id or stop string that the parameters named
    spec_decode_metrics: DraftMetrics | None = None  # of its drafts; None where nothing is drafted


@dataclass(slots=True)
class RequestMetrics:
    """Seconds since `generate` was called."""

    first_token_s: float | None = None
    finished_s: float | None = None


@dataclass(slots=True)
class RequestOutput:
    request_id: str
    prompt: str | None  # None where token ids were given
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    lora_request: LoRARequest | None = None  # the adapter that the prompt was given

    @property
    def finished(self) -> bool:
        return all(output.finish_reason is not None for output in self.outputs)


class Collector(Protocol):
    def take(self, output: EngineOutput, clock: Callable[[], float]) -> bool:
        """Returns whether the sequence is finished. Raises RuntimeError if the engine ended it early."""
        ...


class OneOutput:
    """Keeps the output of a request for one token."""

    def __init__(self) -> None:
        self.output: EngineOutput | None = None

    def take(self, output: EngineOutput, clock: Callable[[], float]) -> bool:
        """See Collector.take."""
        if output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise RuntimeError(f"the engine ended a beam: {output.error or output.finish_reason.value}")
        self.output = output
        return True


class SequenceCollector:
    """Takes the engine's outputs of one sequence and writes them into its RequestOutput."""

    def __init__(
        self, result: RequestOutput, request: EngineRequest, tokenizer: Tokenizer | None, *, has_drafts: bool = False
    ) -> None:
        self._result, self._has_drafts = result, has_drafts
        self._tokenizer = tokenizer
        self._sequence = GeneratedSequence(len(result.outputs), request, tokenizer)
        self._deltas: list[Delta] = []
        self._completion = CompletionOutput(self._sequence.index)
        result.outputs.append(self._completion)

    def take(self, output: EngineOutput, clock: Callable[[], float]) -> bool:
        """See Collector.take."""
        result = self._result
        try:
            delta = self._sequence.take(output)
        except GenerationFailed as failure:
            raise RuntimeError(f"request {result.request_id}: {failure}") from None
        self._deltas.append(delta)
        if delta.token_ids and result.metrics.first_token_s is None:
            result.metrics.first_token_s = clock()
        if delta.finish_reason is None:
            return False
        self._complete(join(self._deltas))
        result.metrics.finished_s = clock()
        return True

    def _complete(self, whole: Delta) -> None:
        result, completion = self._result, self._completion
        result.num_cached_tokens = max(result.num_cached_tokens, self._sequence.num_cached)
        if whole.prompt_logprobs is not None and result.prompt_logprobs is None:
            result.prompt_logprobs = [
                None if entry is None else self._by_token_id(entry) for entry in whole.prompt_logprobs
            ]
        completion.text, completion.token_ids = whole.text, whole.token_ids
        completion.finish_reason, completion.stop_reason = whole.finish_reason, whole.stop_reason
        if self._has_drafts:
            completion.spec_decode_metrics = DraftMetrics.of(self._sequence.drafts)
        if whole.logprobs is not None:
            completion.logprobs = [self._by_token_id(entry) for entry in whole.logprobs]
            completion.cumulative_logprob = sum(entry.logprobs[0] for entry in whole.logprobs)

    def _by_token_id(self, entry: TokenLogprobs) -> dict[int, Logprob]:
        """The token itself first, then the top ones: their rank is their index among the top."""
        by_token_id: dict[int, Logprob] = {}
        for index, (token_id, logprob) in enumerate(zip(entry.token_ids, entry.logprobs, strict=True)):
            rank = entry.rank if index == 0 else index
            text = None if self._tokenizer is None else self._tokenizer.token_text(token_id)
            by_token_id.setdefault(token_id, Logprob(logprob, rank, text))
        return by_token_id
