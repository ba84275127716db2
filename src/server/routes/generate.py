"""POST /inference/v1/generate: token ids in, token ids out, complete or as a stream."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ...engine.api import Constraint, EngineRequest
from ..endpoint import INLINE_ITEMS, Call
from ..generation import Generation
from ..logprobs import chat_logprobs, prompt_logprobs
from ..protocol.generate import GenerateRequest, response
from ..protocol.stream import ChunkWriter
from ..sampling import check_prompt, num_logprobs, sampling_params, truncation
from ..service import new_ids
from ..text.generated_sequence import Delta
from .generating import generation_of
from .request_log import log_arrival, log_end
from .transferring import transfer_fields, transfer_of
from .usage import usage


async def generate(call: Call) -> None:
    service = call.service
    body = await call.body(GenerateRequest)
    model = service.named_model(body.model)
    service.check_ready()
    job = _Job(call, body, await service.constraints.checked(body.output_grammar))
    if body.stream:
        await call.stream(job.frames())
        return
    async with call.running():
        try:
            deltas = await job.generation.whole()
        finally:
            log_end(call, job.generation)

        def build() -> dict[str, Any]:
            choices = [job.choice(delta) for delta in deltas]
            counts = usage(job.generation, service.settings)
            first = deltas[0].prompt_logprobs
            scored = None if first is None else prompt_logprobs(first, service.tokenizer)
            transferred = transfer_fields(body, job.generation)
            return response(job.response_id, int(time.time()), model, choices, counts, scored) | transferred

        await call.answer_sized(sum(map(job.num_items, deltas)), build)


class _Job:
    """One request: its generation, and how its choices are written."""

    def __init__(self, call: Call, body: GenerateRequest, constraint: Constraint | None) -> None:
        """Raises ApiError. Nothing has been sent to the engine yet."""
        service, limits = call.service, call.service.model_limits
        cut = truncation(body, limits)
        prompt = body.token_ids if cut is None else cut.of(body.token_ids)
        check_prompt(prompt, limits, param="token_ids")
        num_top = num_logprobs(body.logprobs, limits, "logprobs")
        sampling = sampling_params(
            body,
            service.sampling_defaults,
            limits,
            prompts=[prompt],
            max_tokens=body.max_tokens,
            logprobs=num_top,
            prompt_logprobs=num_logprobs(body.prompt_logprobs, limits, "prompt_logprobs"),
            tokenizer=service.tokenizer,
            constraint=constraint,
        )
        self.response_id, engine_id = new_ids("generate-tokens-", call.request_id or body.request_id, call.unique_id)
        request = EngineRequest(
            request_id=engine_id,
            prompt_token_ids=prompt,
            sampling=sampling,
            priority=body.priority or 0,
            cache_salt=call.cache_salt + (body.cache_salt or ""),
            rank=call.rank,
            cache_epoch=call.cache_epoch,
            **transfer_of(call, body)._asdict(),
        )
        log_arrival(call, body, [request], [prompt])
        self.generation: Generation = generation_of(call, body, [request])
        self._call = call
        self._body = body
        self._num_top = num_top or 0
        self._names = service.token_names(
            True if body.return_tokens_as_token_ids is None else body.return_tokens_as_token_ids
        )

    def choice(self, delta: Delta) -> dict[str, Any]:
        return {
            "index": delta.index,
            "logprobs": None if delta.logprobs is None else chat_logprobs(delta.logprobs, self._num_top, self._names),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "token_ids": delta.token_ids,
        }

    def num_items(self, delta: Delta) -> int:
        """How many token ids and log-probabilities `choice` writes."""
        scored = sum(1 if entry is None else len(entry.token_ids) for entry in delta.prompt_logprobs or ())
        return len(delta.token_ids) * (1 if delta.logprobs is None else 2 + self._num_top) + scored

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Chunks of token ids, the last of each choice with its finish reason; then usage, if it is requested."""
        call, body, settings = self._call, self._body, self._call.service.settings
        is_forced = settings.enable_force_include_usage
        has_usage, in_every_chunk = body.wants_usage or is_forced, body.wants_continuous_usage or is_forced
        writer = ChunkWriter({"request_id": self.response_id}, has_usage=has_usage)
        try:
            async with aclosing(self.generation.deltas()) as deltas:
                async for delta in deltas:
                    if not delta.token_ids and delta.finish_reason is None and delta.prompt_logprobs is None:
                        continue
                    counts = usage(self.generation, settings) if in_every_chunk else None
                    size = self.num_items(delta)
                    yield await call.sized(size, functools.partial(self._frame, writer, delta, counts, size))
        finally:
            log_end(call, self.generation)
        if has_usage:
            yield writer.usage(usage(self.generation, settings))

    def _frame(self, writer: ChunkWriter, delta: Delta, counts: dict[str, Any] | None, num_items: int) -> bytes:
        extra = None
        if delta.prompt_logprobs is not None:
            extra = {"prompt_logprobs": prompt_logprobs(delta.prompt_logprobs, self._call.service.tokenizer)}
        return writer.choice(self.choice(delta), counts, extra, is_long=num_items > INLINE_ITEMS)
