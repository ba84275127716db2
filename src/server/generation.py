"""Generation: runs the sequences of one HTTP request in the engine and merges their deltas.

The routes write deltas as responses; request_metrics.py counts them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence, Set
from contextlib import aclosing
from typing import Any

from ..engine.api import EngineDead, EngineOutput, EngineRequest, InvalidRequest, QueueFull, StoredBlocks, VerifiedDraft
from ..engine.client.engine_client import EngineClient
from ..text.generated_sequence import Delta, GeneratedSequence, GenerationFailed, Reader, join
from ..text.tokenizer import Tokenizer
from .engine_errors import generation_failed, refused, stopped_during_request
from .observe.metrics import Metrics
from .observe.request_metrics import Charge, RequestMetrics, no_charge
from .observe.tracing import Phases
from .prefill_servers import PrefillServers
from .protocol.errors import internal_error, queue_full

SENT_PER_TURN = 16  # sequences given to the engine in one iteration of the event loop


class _Sequence(GeneratedSequence):
    """A sequence of an HTTP request. Keeps its output if the request log will need it."""

    def __init__(
        self,
        index: int,
        request: EngineRequest,
        tokenizer: Tokenizer | None,
        kept_ids: Set[int],
        keeps_output: bool,
        reader: Reader | None,
    ) -> None:
        super().__init__(index, request, tokenizer, kept_ids, reader)
        self._kept: list[Delta] | None = [] if keeps_output else None

    def take(self, output: EngineOutput) -> Delta:
        """Raises ApiError if the engine ended the sequence early."""
        try:
            delta = super().take(output)
        except GenerationFailed as failure:
            raise generation_failed(failure) from None
        if self._kept is not None:
            self._kept.append(Delta(self.index, delta.text, delta.token_ids))
        return delta

    @property
    def output(self) -> str | list[int]:
        """The text generated so far, or token ids without a tokenizer. Empty unless `keeps_output`."""
        whole = join(self._kept or [Delta(self.index)])
        return whole.text if self.has_text else whole.token_ids


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
        kept_ids: Set[int] = frozenset(),
        readers: Sequence[Reader] = (),
        keeps_output: bool = False,
        arrived_at: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        charge: Charge = no_charge,
        prefill_servers: PrefillServers | None = None,
    ) -> None:
        """
        requests: one per sequence, in the order of the prompts: `n` for each prompt.
        kept_ids: special tokens that are part of the texts.
        readers: one per sequence; without them texts are not read.
        keeps_output: keep what `outputs` returns.
        arrived_at: by `clock`; None is now.
        charge: called with each number of tokens that the request uses.
        prefill_servers: compute the prompts first; None: this server's engine does.
        """
        self._client = client
        self._metrics = RequestMetrics(metrics, clock, arrived_at, charge)
        self._sequences = [
            _Sequence(index, request, tokenizer, kept_ids, keeps_output, readers[index] if readers else None)
            for index, request in enumerate(requests)
        ]
        self._prefill_servers = prefill_servers
        self._prefilling = [asyncio.Lock() for _ in range(num_prompts if prefill_servers else 0)]
        self._per_prompt = len(requests) // num_prompts

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Deltas of all sequences, as they arrive. Closing the iterator aborts the sequences that still run.

        Raises ApiError if the engine stops, fails or its queue is full, and InvalidRequest from the engine.
        """
        outputs, outcome = self._run(), "abort"
        try:
            async with aclosing(outputs):
                async for delta in outputs:
                    yield delta
        except GeneratorExit:
            raise
        except QueueFull as error:
            outcome = "error"
            self._metrics.rejected()
            raise queue_full("the queue is full", error.retry_after_s) from None
        except InvalidRequest as error:
            outcome = "error"
            raise refused(error) from None
        except EngineDead:
            outcome = "error"
            rank = self._sequences[0].request.rank  # the same for all
            raise stopped_during_request(self._client.state_of(rank)) from None
        except Exception:
            outcome = "error"
            raise
        finally:
            self._metrics.end(self._sequences, self._per_prompt, outcome)

    async def whole(self) -> list[Delta]:
        """One complete delta for each sequence, in order."""
        parts: list[list[Delta]] = [[] for _ in self._sequences]
        async with aclosing(self.deltas()) as deltas:
            async for delta in deltas:
                parts[delta.index].append(delta)
        return [join(part) for part in parts]

    @property
    def prompts(self) -> list[list[int]]:
        return [sequence.request.inputs.prompt_token_ids for sequence in self._firsts]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(sequence.request.inputs.prompt_token_ids) for sequence in self._firsts)

    @property
    def num_cached_tokens(self) -> int:
        return sum(sequence.num_cached for sequence in self._firsts)

    @property
    def num_newly_cached_tokens(self) -> int:
        return sum(sequence.num_newly_cached for sequence in self._firsts)

    @property
    def num_generated_tokens(self) -> int:
        return sum(sequence.num_generated for sequence in self._sequences)

    @property
    def drafts(self) -> list[list[VerifiedDraft]]:
        """The verified drafts of each sequence, in the order of its steps."""
        return [sequence.drafts for sequence in self._sequences]

    @property
    def outputs(self) -> list[tuple[str | list[int], str]]:
        """(output, finish reason) of each sequence; the reason is `unfinished` if it was aborted."""
        return [(sequence.output, sequence.finish_reason or "unfinished") for sequence in self._sequences]

    @property
    def stored(self) -> StoredBlocks | None:
        """Blocks of the first prompt that other engines can read, once it is finished."""
        return self._sequences[0].stored

    @property
    def phases(self) -> Phases | None:
        """Times of the first sequence, for a trace."""
        return self._metrics.phases(self._sequences)

    @property
    def log_fields(self) -> dict[str, Any]:
        """Fields for the access log line of the request."""
        reasons = sorted({sequence.finish_reason or "unfinished" for sequence in self._sequences})
        fields: dict[str, Any] = {
            "finish": ",".join(reasons),
            "prompt_tokens": self.num_prompt_tokens,
            "cached_tokens": self.num_cached_tokens,
            "generated_tokens": self.num_generated_tokens,
        }
        first_token_s = self._metrics.first_token_s
        return fields if first_token_s is None else {**fields, "first_token_s": first_token_s}

    @property
    def _firsts(self) -> list[_Sequence]:
        """First sequence of each prompt."""
        return self._sequences[:: self._per_prompt]

    def _run(self) -> AsyncGenerator[Delta, None]:
        return self._one(self._sequences[0]) if len(self._sequences) == 1 else self._merged()

    def _take(self, sequence: _Sequence, output: EngineOutput) -> Delta:
        delta = sequence.take(output)
        is_first = sequence.index % self._per_prompt == 0  # of its prompt
        self._metrics.add(sequence, delta, counts_prompt=is_first)
        return delta

    async def _one(self, sequence: _Sequence) -> AsyncGenerator[Delta, None]:
        begun = None if self._prefill_servers is None else await self._prefill(self._prefill_servers, sequence)
        outputs = self._client.generate(sequence.request)
        try:
            async for output in outputs:
                if begun is not None:
                    begun(output.num_cached_tokens)
                    begun = None
                delta = self._take(sequence, output)
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            await close(outputs)
        raise internal_error("the engine ended this request without a reason", "engine_error")

    async def _prefill(self, servers: PrefillServers, sequence: _Sequence) -> Callable[[int], None] | None:
        """Prefill each prompt once: its first sequence asks, the others wait. Returns as `PrefillServers.prefill`."""
        number = sequence.index // self._per_prompt
        first, begun = self._firsts[number], None
        async with self._prefilling[number]:
            if sequence is first:
                begun = await servers.prefill(sequence.request)
        sequence.request.source = first.request.source
        return begun

    async def _merged(self) -> AsyncGenerator[Delta, None]:
        """Deltas of all sequences in order of arrival. Reads at most one delta ahead of each sequence."""
        streams = [self._one(sequence) for sequence in self._sequences]
        waiting: dict[asyncio.Task[Delta | None], int] = {}
        done: set[asyncio.Task[Delta | None]] = set()
        task: asyncio.Task[Delta | None] | None = None
        try:
            for index, stream in enumerate(streams):
                waiting[asyncio.ensure_future(_next(stream))] = index
                if index % SENT_PER_TURN == SENT_PER_TURN - 1:
                    await asyncio.sleep(0)  # other requests run between: encoding a thousand prompts takes long
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
            # The error of a task refers to this frame: with a reference back to the task, all sequences of a failed
            # request would stay until the garbage collector finds them.
            task = None
            done.clear()
            while waiting:
                await _cancel([waiting.popitem()[0] for _ in range(min(SENT_PER_TURN, len(waiting)))])
            for stream in streams:
                await close(stream)


async def _next(stream: AsyncIterator[Delta]) -> Delta | None:
    return await anext(stream, None)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def close(stream: AsyncIterator[Any]) -> None:
    """EngineClient.generate returns any iterator; iterators that hold resources, such as generators, have `aclose`."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
