"""Generation: the sequences of one HTTP request, run by the engine and put into words.

Knows tokens, text, counts and times; how they are written on the wire is the routes' affair.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from ..engine.api import EngineDead, EngineOutput, EngineRequest, FinishReason, QueueFull, TokenLogprobs
from ..engine.client import EngineClient, EngineState
from .metrics import Metrics
from .protocol.errors import ApiError, internal_error, queue_full, unavailable
from .text.detokenizer import TextStream
from .text.tokenizer import Tokenizer


@dataclass(slots=True)
class Delta:
    """What one sequence got."""

    index: int  # of the sequence, in the order of the requests
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None  # one per token id
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: str | None = None  # stop or length, with the last delta
    stop_reason: int | str | None = None  # the stop token id or stop string that the request named


class _Sequence:
    def __init__(self, index: int, request: EngineRequest, tokenizer: Tokenizer | None, keeps_output: bool) -> None:
        self.index = index
        self.request = request
        self.num_generated = 0
        self.num_cached = 0
        self.finish_reason: str | None = None
        self.last_at: float | None = None
        self.kept: list[Delta] | None = [] if keeps_output else None
        self._text = TextStream(tokenizer, request.sampling, request.prompt_token_ids) if tokenizer else None

    def take(self, output: EngineOutput) -> Delta:
        """An engine's output as a delta. Raises ApiError where the engine gave up on the sequence."""
        if output.finish_reason is FinishReason.ERROR:
            raise internal_error(output.error or "the engine could not go on with this request", "engine_error")
        if output.finish_reason is FinishReason.ABORT:
            raise unavailable("the server is shutting down", code="server_shutting_down", retry_after_s=1)
        self.num_cached = max(self.num_cached, output.num_cached_tokens)
        delta = Delta(
            self.index,
            token_ids=output.token_ids,
            logprobs=output.logprobs,
            prompt_logprobs=output.prompt_logprobs,
            finish_reason=output.finish_reason.value if output.finish_reason else None,
            stop_reason=output.stop_reason,
        )
        if self._text is not None:
            shown = self._text.add(
                output.token_ids,
                finished=output.finish_reason is not None,
                ends_with_stop_token=output.finish_reason is FinishReason.STOP,
            )
            delta.text = shown.text
            if shown.stop is not None:
                delta.finish_reason, delta.stop_reason = "stop", shown.stop
                delta.token_ids = output.token_ids[: shown.num_tokens]
                delta.logprobs = output.logprobs and output.logprobs[: shown.num_tokens]
        self.num_generated += len(delta.token_ids)
        self.finish_reason = delta.finish_reason
        if self.kept is not None:
            self.kept.append(Delta(self.index, delta.text, delta.token_ids))
        return delta

    @property
    def output(self) -> str | list[int]:
        """What was generated so far, of a generation that keeps it; ids where there is no tokenizer."""
        whole = join(self.kept or [Delta(self.index)])
        return whole.text if self._text is not None else whole.token_ids


def join(deltas: Sequence[Delta]) -> Delta:
    """One sequence's deltas as one."""
    whole = Delta(deltas[0].index)
    for delta in deltas:
        whole.token_ids += delta.token_ids
        if delta.logprobs is not None:
            whole.logprobs = (whole.logprobs or []) + delta.logprobs
        if delta.prompt_logprobs is not None:
            whole.prompt_logprobs = (whole.prompt_logprobs or []) + delta.prompt_logprobs
        whole.finish_reason, whole.stop_reason = delta.finish_reason, delta.stop_reason
    whole.text = "".join(delta.text for delta in deltas)
    return whole


class Generation:
    """All sequences of one HTTP request. Iterate `deltas` once, to its end or within `aclosing`."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer | None,
        requests: Sequence[EngineRequest],
        metrics: Metrics,
        *,
        num_prompts: int = 1,
        keeps_output: bool = False,
        arrived_at: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        requests: one per sequence, those of one prompt side by side: prompts x n.
        keeps_output: `outputs` will be asked for.
        arrived_at: by `clock`; now, if it is not known.
        """
        self._client = client
        self._metrics = metrics
        self._clock = clock
        self._arrived_at = clock() if arrived_at is None else arrived_at
        self._sequences = [_Sequence(index, request, tokenizer, keeps_output) for index, request in enumerate(requests)]
        self._per_prompt = len(requests) // num_prompts
        self.first_token_s: float | None = None

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Deltas of all sequences as they come. Leaving early aborts what still runs.

        Raises ApiError: the engine is gone, full, or gave up; InvalidRequest as the engine raises it.
        """
        outputs = self._one(self._sequences[0]) if len(self._sequences) == 1 else self._merged()
        outcome = "abort"
        try:
            async with aclosing(outputs):
                async for delta in outputs:
                    yield delta
        except GeneratorExit:
            raise
        except QueueFull as error:
            outcome = "error"
            raise queue_full("the queue is full", error.retry_after_s) from None
        except EngineDead:
            outcome = "error"
            raise engine_gone(self._client.state) from None
        except Exception:
            outcome = "error"
            raise
        finally:
            self._count_end(outcome)

    async def whole(self) -> list[Delta]:
        """Every sequence complete, in order."""
        parts: list[list[Delta]] = [[] for _ in self._sequences]
        async with aclosing(self.deltas()) as deltas:
            async for delta in deltas:
                parts[delta.index].append(delta)
        return [join(part) for part in parts]

    @property
    def prompts(self) -> list[list[int]]:
        return [sequence.request.prompt_token_ids for sequence in self._firsts]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(sequence.request.prompt_token_ids) for sequence in self._firsts)

    @property
    def num_cached_tokens(self) -> int:
        return sum(sequence.num_cached for sequence in self._firsts)

    @property
    def num_generated_tokens(self) -> int:
        return sum(sequence.num_generated for sequence in self._sequences)

    @property
    def outputs(self) -> list[tuple[str | list[int], str]]:
        """What each sequence generated and why it ended, or where it was when it was left."""
        return [(sequence.output, sequence.finish_reason or "unfinished") for sequence in self._sequences]

    @property
    def facts(self) -> dict[str, Any]:
        """For the log line of the finished request."""
        reasons = sorted({sequence.finish_reason or "unfinished" for sequence in self._sequences})
        facts: dict[str, Any] = {
            "finish": ",".join(reasons),
            "prompt_tokens": self.num_prompt_tokens,
            "cached_tokens": self.num_cached_tokens,
            "generated_tokens": self.num_generated_tokens,
        }
        return facts if self.first_token_s is None else {**facts, "first_token_s": self.first_token_s}

    @property
    def _firsts(self) -> list[_Sequence]:
        """One sequence of each prompt."""
        return self._sequences[:: self._per_prompt]

    async def _one(self, sequence: _Sequence) -> AsyncGenerator[Delta, None]:
        outputs = self._client.generate(sequence.request)
        try:
            async for output in outputs:
                delta = sequence.take(output)
                self._count(sequence, delta)
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            await _close(outputs)
        raise internal_error("the engine ended this request without a reason", "engine_error")

    async def _merged(self) -> AsyncGenerator[Delta, None]:
        """The next delta of any sequence; a sequence waits for its consumer, so nothing piles up here."""
        streams = [self._one(sequence) for sequence in self._sequences]
        waiting: dict[asyncio.Task[Delta | None], int] = {}
        try:
            for index, stream in enumerate(streams):
                waiting[asyncio.ensure_future(_next(stream))] = index
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=waiting.__getitem__):
                    index = waiting.pop(task)
                    delta = task.result()
                    if delta is None:
                        continue
                    yield delta
                    waiting[asyncio.ensure_future(_next(streams[index]))] = index
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            for stream in streams:
                await _close(stream)

    def _count(self, sequence: _Sequence, delta: Delta) -> None:
        now = self._clock()
        if not delta.token_ids:
            return
        if sequence.last_at is None:
            if self.first_token_s is None:
                self.first_token_s = now - self._arrived_at
                self._metrics.time_to_first_token.observe(self.first_token_s)
            if sequence in self._firsts:
                self._metrics.prompt_tokens.inc(len(sequence.request.prompt_token_ids))
                self._metrics.cached_tokens.inc(sequence.num_cached)
                self._metrics.request_prompt_tokens.observe(len(sequence.request.prompt_token_ids))
        else:  # a delta of several tokens stands for as many equal steps
            self._metrics.inter_token_latency.observe((now - sequence.last_at) / len(delta.token_ids))
        sequence.last_at = now
        self._metrics.generated(len(delta.token_ids))

    def _count_end(self, outcome: str) -> None:
        for sequence in self._sequences:
            self._metrics.finished(sequence.finish_reason or outcome)
            self._metrics.request_generation_tokens.observe(sequence.num_generated)
        if all(sequence.finish_reason for sequence in self._sequences):
            self._metrics.request_latency.observe(self._clock() - self._arrived_at)


def engine_gone(state: EngineState) -> ApiError:
    if state is EngineState.DEAD:
        return unavailable("the engine has stopped and will not come back", code="engine_dead")
    if state is EngineState.STALLED:
        return unavailable("the engine makes no progress", code="engine_stalled")
    message = "the engine stopped while this request was under way, and is being started again"
    return unavailable(message, code="engine_restarting")


async def _next(stream: AsyncIterator[Delta]) -> Delta | None:
    return await anext(stream, None)


async def _close(stream: AsyncIterator[Any]) -> None:
    """The protocol asks for an iterator; those that hold something, as generators do, have `aclose`."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
