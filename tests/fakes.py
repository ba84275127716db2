"""Fakes that behave: an engine without a model, whose every token can be foretold."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np

from stoker.engine.api import (
    AdapterError,
    AdapterRef,
    EngineDead,
    EngineInfo,
    EngineOutput,
    EngineRequest,
    EngineStats,
    FinishReason,
    PoolingParams,
    ProfileError,
    QueueFull,
    StoredBlocks,
    TokenLogprobs,
    Vectors,
    VerifiedDraft,
)
from stoker.engine.client.engine_client import EngineState
from stoker.engine.client.pooled_call import OnOutput, no_listener


def next_token(prefix: list[int], vocab_size: int, seed: int | None = None) -> int:
    """What the fake model says after `prefix`: a keyed hash of it, so the same whatever runs beside it."""
    data = repr((prefix, seed)).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") % vocab_size


TOKEN_TASKS = ("token_embed", "token_classify", "sparse")


def token_vector(token_id: int, width: int) -> list[float]:
    """What the fake model makes of one token: numbers from -1 to 1."""
    data = hashlib.blake2b(repr((token_id, width)).encode(), digest_size=2 * width).digest()
    return [int.from_bytes(data[2 * index : 2 * index + 2], "big") / 32767.5 - 1 for index in range(width)]


class FakeEngine:
    """An EngineClient. Steps when its clock says so, dies on command, fills up, and remembers what was aborted.

    script: request -> the tokens to generate, in place of the hash chain.
    pace: awaited before each token; by default it only lets other tasks run.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 400,
        max_model_len: int = 512,
        num_blocks: int = 64,
        block_size: int = 16,
        max_queued: int = 1024,
        eos_token_ids: tuple[int, ...] = (2,),
        tokens_per_output: int = 1,
        script: Callable[[EngineRequest], list[int]] | None = None,
        pace: Callable[[], object] | None = None,
    ) -> None:
        self.state = EngineState.READY
        self.reason = ""
        self.requests: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.finished: list[str] = []
        self.num_cached_tokens = self.num_newly_cached_tokens = 0
        self.num_waiting = 0  # of other clients, as `stats` shows them
        self.queued_s: float | None = 0.25
        self.drafts: list[VerifiedDraft] | None = None  # of the steps of each output
        self.sleep_level = 0
        self.widths = {"embed": 8, "token_embed": 4, "classify": 3, "token_classify": 2, "sparse": 1}  # of heads
        self.pooling_error: str | None = None  # of texts that are pooled
        self.adapters: dict[str, AdapterRef] = {}  # that are loaded, by digest
        self.adapter_error: AdapterError | EngineDead | None = None  # of the next load
        self._is_profiling = False
        self._running: dict[str, asyncio.Event] = {}
        self._max_queued = max_queued
        self._tokens_per_output = tokens_per_output
        self._script = script
        self._pace = pace or (lambda: asyncio.sleep(0))
        self._info = EngineInfo(
            model="fake", max_model_len=max_model_len, vocab_size=vocab_size, num_blocks=num_blocks,
            block_size=block_size, max_cached_len=min(max_model_len, num_blocks * block_size),
            max_num_seqs=8, max_num_batched_tokens=64, eos_token_ids=eos_token_ids,
            weights_bytes=0, kv_cache_bytes=0, dtype="float32", device="cpu", kernels={}, phases={},
        )  # fmt: skip

    @property
    def has_started(self) -> bool:
        return self.state is not EngineState.STARTING

    @property
    def info(self) -> EngineInfo:
        if self.state is EngineState.STARTING:
            raise RuntimeError("not started")
        return self._info

    @property
    def stats(self) -> EngineStats:
        used = sum(len(request.inputs.prompt_token_ids) // self._info.block_size + 1 for request in self.open_requests)
        return EngineStats(
            num_running=len(self._running),
            num_waiting=self.num_waiting,
            num_free_blocks=self._info.num_blocks - used,
            num_blocks=self._info.num_blocks,
            num_steps=len(self.requests),
        )

    async def load_adapter(self, ref: AdapterRef) -> None:
        if self.adapter_error is not None:
            raise self.adapter_error
        self.adapters[ref.digest] = ref

    async def unload_adapter(self, digest: str) -> None:
        del self.adapters[digest]

    async def profile(self, *, is_start: bool) -> str:
        if not is_start and not self._is_profiling:
            raise ProfileError("no profile is being recorded")
        self._is_profiling = is_start
        return "" if is_start else "/profiles/1.json.gz"

    @property
    def is_available(self) -> bool:
        return self.state is EngineState.READY

    async def sleep(self, level: int, *, waits: bool = False) -> None:
        if self.state not in (EngineState.READY, EngineState.SLEEPING):
            raise EngineDead(self.reason)
        self.sleep_level = max(level, self.sleep_level)
        self.die(EngineState.SLEEPING)

    async def wake_up(self) -> None:
        self.state, self.reason, self.sleep_level = EngineState.READY, "", 0

    @property
    def open_requests(self) -> list[EngineRequest]:
        return [request for request in self.requests if request.request_id in self._running]

    def stored(self, request: EngineRequest) -> StoredBlocks:
        """What other engines can read of a prompt."""
        size = self._info.block_size
        ends = range(size, len(request.inputs.prompt_token_ids) + 1, size)
        names = (hashlib.sha256(repr(request.inputs.prompt_token_ids[:end]).encode()).digest() for end in ends)
        return StoredBlocks(tuple(names), "10.0.0.4", 5600)

    async def start(self) -> EngineInfo:
        return self._info

    async def close(self) -> None:
        self.state = EngineState.DEAD

    def state_of(self, rank: int | None) -> EngineState:
        return self.state

    def die(self, state: EngineState = EngineState.RESTARTING) -> None:
        """As kill -9: every open request fails, new ones are refused."""
        self.state, self.reason = state, "the engine process exited with signal 9"
        for died in self._running.values():
            died.set()

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineOutput]:
        self.requests.append(request)
        if self.state is not EngineState.READY:
            raise EngineDead(self.reason)
        if len(self._running) >= self._max_queued:
            raise QueueFull("the queue is full", retry_after_s=2.5)
        died = self._running[request.request_id] = asyncio.Event()
        try:
            async for output in self._outputs(request, died):
                yield output
            self.finished.append(request.request_id)
        finally:
            del self._running[request.request_id]
            if request.request_id not in self.finished:
                self.aborted.append(request.request_id)

    async def pool(self, requests: Sequence[EngineRequest], on_output: OnOutput = no_listener) -> list[EngineOutput]:
        """The vectors of each request, which depend on nothing but its tokens."""
        self.requests += requests
        if self.state is not EngineState.READY:
            raise EngineDead(self.reason)
        if len(requests) > self._max_queued:
            raise QueueFull("the queue is full", retry_after_s=2.5)
        died = asyncio.Event()
        for request in requests:
            self._running[request.request_id] = died
        try:
            await _until(self._pace(), died)
            if died.is_set():
                raise EngineDead(self.reason)
            outputs = [self._pooled(request) for request in requests]
            for index, output in enumerate(outputs):
                on_output(index, output)
            self.finished += [request.request_id for request in requests]
        finally:
            for request in requests:
                del self._running[request.request_id]
                if request.request_id not in self.finished:
                    self.aborted.append(request.request_id)
        return outputs

    def _pooled(self, request: EngineRequest) -> EngineOutput:
        task, token_ids = request.inputs.task, request.inputs.prompt_token_ids
        assert isinstance(task, PoolingParams)
        output = EngineOutput(
            request_id=request.request_id, token_ids=[], finish_reason=FinishReason.STOP, queued_s=self.queued_s,
            num_cached_tokens=self.num_cached_tokens,
        )  # fmt: skip
        if self.pooling_error is not None:
            output.finish_reason, output.error = FinishReason.ERROR, self.pooling_error
            return output
        output.vectors = {}
        for name in task.tasks:
            rows = np.array([token_vector(each, self.widths[name]) for each in token_ids], "<f4")
            found = rows if name in TOKEN_TASKS else rows[task.first :].mean(axis=0, keepdims=True)
            output.vectors[name] = Vectors(self.widths[name], found.astype("<f4").tobytes())
        return output

    async def _outputs(self, request: EngineRequest, died: asyncio.Event) -> AsyncIterator[EngineOutput]:
        sampling = request.inputs.sampling
        prefix, generated, unsent = list(request.inputs.prompt_token_ids), 0, list[int]()
        room = self._info.max_model_len - len(prefix)
        limit = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        script = self._script(request) if self._script else None
        prompt_logprobs = None
        if sampling.prompt_logprobs is not None:
            prompt_logprobs = [
                None,
                *(_logprobs(token, sampling.prompt_logprobs) for token in prefix[1:]),
            ]
        if limit == 0:
            yield EngineOutput(
                request_id=request.request_id,
                token_ids=[],
                logprobs=None if sampling.logprobs is None else [],
                prompt_logprobs=prompt_logprobs,
                finish_reason=FinishReason.LENGTH,
            )
            return
        while True:
            await _until(self._pace(), died)
            if died.is_set():
                raise EngineDead(self.reason)
            if script is not None:
                token = script[generated] if generated < len(script) else self._info.eos_token_ids[0]
            else:
                token = next_token(prefix, self._info.vocab_size, sampling.seed)
            prefix.append(token)
            unsent.append(token)
            generated += 1
            finish, stop = self._finish(request, token, generated, limit)
            if finish is None and len(unsent) < self._tokens_per_output:
                continue
            top = sampling.logprobs
            yield EngineOutput(
                request_id=request.request_id,
                token_ids=unsent,
                logprobs=None if top is None else [_logprobs(token, top) for token in unsent],
                prompt_logprobs=prompt_logprobs,
                finish_reason=finish,
                stop_reason=stop,
                num_cached_tokens=self.num_cached_tokens,
                num_newly_cached_tokens=self.num_newly_cached_tokens,
                queued_s=self.queued_s if generated == len(unsent) else None,
                drafts=None if self.drafts is None else [*self.drafts],
                stored=self.stored(request) if finish is not None and request.is_for_others else None,
            )
            unsent, prompt_logprobs = [], None
            if finish is not None:
                return

    def _finish(
        self, request: EngineRequest, token: int, generated: int, limit: int
    ) -> tuple[FinishReason | None, int | None]:
        if generated > request.inputs.sampling.min_tokens:
            if token in request.inputs.sampling.stop_token_ids:
                return FinishReason.STOP, token
            if token in self._info.eos_token_ids and not request.inputs.sampling.ignore_eos:
                return FinishReason.STOP, None
        return (FinishReason.LENGTH, None) if generated >= limit else (None, None)


def _logprobs(token: int, num_top: int) -> TokenLogprobs:
    """The token is the likeliest, its neighbours follow."""
    top = [(token + offset) % 400 for offset in range(num_top)]
    return TokenLogprobs([token, *top], [-0.5, *(-0.5 - index for index in range(num_top))], 1)


async def _until(pace: object, died: asyncio.Event) -> None:
    """Wait for `pace` or for the engine's death, whichever is first."""
    waits = [asyncio.ensure_future(pace), asyncio.ensure_future(died.wait())]  # type: ignore[call-overload]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
