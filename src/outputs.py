"""What `LLM.generate` returns: one RequestOutput per prompt, one CompletionOutput per sequence of it; and how these
come together from the engine's outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .engine.api import EngineOutput, EngineRequest, FinishReason, TokenLogprobs
from .server.text.detokenizer import TextStream
from .server.text.tokenizer import Tokenizer


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
    logprobs: list[dict[int, Logprob]] | None = None  # per generated token: by token id, the drawn one first
    finish_reason: str | None = None  # stop or length
    stop_reason: int | str | None = None  # the stop token id or stop string that the parameters named


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

    @property
    def finished(self) -> bool:
        return all(output.finish_reason is not None for output in self.outputs)


class SequenceCollector:
    """Takes the engine's outputs of one sequence and writes them into its RequestOutput."""

    def __init__(self, result: RequestOutput, request: EngineRequest, tokenizer: Tokenizer | None) -> None:
        self._result = result
        self._tokenizer = tokenizer
        self._sequence = CompletionOutput(index=len(result.outputs))
        result.outputs.append(self._sequence)
        self._text: TextStream | None = None
        if tokenizer is not None and request.sampling.detokenize:
            self._text = TextStream(tokenizer, request.sampling, request.prompt_token_ids)

    def take(self, output: EngineOutput, clock: Callable[[], float]) -> bool:
        """Whether the sequence is over. Raises RuntimeError if the engine gave up on it."""
        result, sequence = self._result, self._sequence
        if output.finish_reason is FinishReason.ERROR:
            raise RuntimeError(f"request {result.request_id}: {output.error}")
        result.num_cached_tokens = max(result.num_cached_tokens, output.num_cached_tokens)
        if output.prompt_logprobs is not None and result.prompt_logprobs is None:
            result.prompt_logprobs = [None if entry is None else self._named(entry) for entry in output.prompt_logprobs]
        if output.token_ids and result.metrics.first_token_s is None:
            result.metrics.first_token_s = clock()
        kept, finish = len(output.token_ids), output.finish_reason and output.finish_reason.value
        stop_reason: int | str | None = output.stop_reason
        if self._text is not None:
            ends_with_stop = output.finish_reason is FinishReason.STOP
            delta = self._text.add(output.token_ids, finished=finish is not None, ends_with_stop_token=ends_with_stop)
            sequence.text += delta.text
            if delta.stop is not None:
                kept, finish, stop_reason = delta.num_tokens, "stop", delta.stop
        sequence.token_ids += output.token_ids[:kept]
        if output.logprobs is not None:
            self._add_logprobs(output.logprobs[:kept])
        if finish is not None:
            sequence.finish_reason, sequence.stop_reason = finish, stop_reason
            result.metrics.finished_s = clock()
        return finish is not None

    def _add_logprobs(self, entries: list[TokenLogprobs]) -> None:
        sequence = self._sequence
        sequence.logprobs = (sequence.logprobs or []) + [self._named(entry) for entry in entries]
        sequence.cumulative_logprob = (sequence.cumulative_logprob or 0.0) + sum(e.logprobs[0] for e in entries)

    def _named(self, entry: TokenLogprobs) -> dict[int, Logprob]:
        """By token id: the token itself, then the top ones, whose ranks are their places among the top."""
        named: dict[int, Logprob] = {}
        for place, (token_id, logprob) in enumerate(zip(entry.token_ids, entry.logprobs, strict=True)):
            rank = entry.rank if place == 0 else place
            text = None if self._tokenizer is None else self._tokenizer.token_text(token_id)
            named.setdefault(token_id, Logprob(logprob, rank, text))
        return named
