"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple

from ...engine.api import EngineRequest
from ...text.generated_sequence import Delta
from ..endpoint import Call
from ..protocol.completions import MAX_PROMPTS, CompletionRequest, completion, head
from ..protocol.errors import bad_request, unsupported
from ..protocol.json import MAX_VALUES
from ..protocol.stream import ChunkWriter
from ..sampling import ModelLimits, check_prompt, num_logprobs, sampling_params, truncation
from ..service import new_ids
from .completion_writer import CompletionWriter
from .generating import generation_of
from .request_log import log_arrival, log_end
from .transferring import transfer_fields, transfer_of
from .usage import metrics, usage

DEFAULT_MAX_TOKENS = 16  # OpenAI's, on this route


async def completions(call: Call) -> None:
    service = call.service
    body = await call.body(CompletionRequest, max(MAX_VALUES, MAX_PROMPTS * service.max_model_len))
    model = await call.named_model(body.model)
    service.check_ready()
    if body.stream:
        await call.stream(_frames(call, body, model))
        return
    async with call.running():
        job = await _Job.start(call, body)
        try:
            deltas = await job.generation.whole()
        finally:
            log_end(call, job.generation)
        best = _best(deltas, body.num_sampled, body.n or 1)

        def build() -> dict[str, Any]:
            choices = [job.writer.choice(delta) for delta in best]
            answer = completion(job.head(model), choices, usage(job.generation, service.settings))
            return {**answer, **transfer_fields(body, job.generation), **metrics(job.generation, service.settings)}

        await call.answer_sized(sum(map(job.writer.num_items, best)), build)


class Prepared(NamedTuple):
    """The requests as they are sent to the engine, one for each prompt. num_top: None without log-probabilities."""

    requests: list[EngineRequest]
    response_id: str
    num_top: int | None


async def prepare(call: Call, body: CompletionRequest) -> Prepared:
    """Encode and check the request."""
    service = call.service
    limits = service.model_limits
    n = body.num_sampled
    if len(body.prompt) * n > service.max_queued_requests:
        message = f"{len(body.prompt)} prompts x n={n} exceed the queue's limit of {service.max_queued_requests}"
        raise bad_request(message, code="array_above_max_length", param="prompt")
    if body.echo and service.tokenizer is None:
        raise unsupported("echo", ": this deployment has no tokenizer (`model.skip_tokenizer_init`)")
    num_top = num_logprobs(body.logprobs, limits, "logprobs")
    num_prompt_logprobs = num_logprobs(body.prompt_logprobs, limits, "prompt_logprobs")
    if body.echo and num_top is not None:
        num_prompt_logprobs = max(num_prompt_logprobs or 0, num_top)
    prompts = await _encode(call, body, limits)

    def check() -> None:
        for prompt in prompts:
            check_prompt(prompt, limits, param="prompt")

    await call.sized(sum(map(len, prompts)), check)
    sampling = sampling_params(
        body,
        service.sampling_defaults,
        limits,
        prompts=prompts,
        max_tokens=body.max_tokens,
        default_max_tokens=service.sampling_defaults.get("max_tokens", DEFAULT_MAX_TOKENS),
        n=n,
        logprobs=0 if num_top is None and n > (body.n or 1) else num_top,  # the best are found by them
        prompt_logprobs=num_prompt_logprobs,
        tokenizer=service.tokenizer,
        constraint=await service.constraints.checked(body.output_grammar),
    )
    transfer = transfer_of(call, body, len(prompts))
    response_id, engine_id = new_ids("cmpl-", call.request_id or body.request_id, call.unique_id)
    requests = [
        EngineRequest(
            request_id=engine_id if len(prompts) == 1 else f"{engine_id}-{index}",
            inputs=call.inputs(prompt, sampling, body),
            priority=body.priority or 0,
            rank=call.rank,
            **transfer._asdict(),
        )
        for index, prompt in enumerate(prompts)
    ]
    return Prepared(requests, response_id, num_top)


class _Job:
    """One request: its generation, and what writes its choices."""

    def __init__(self, call: Call, body: CompletionRequest, prepared: Prepared) -> None:
        """Prepare the generation. Nothing has been sent to the engine yet."""
        self.generation = generation_of(call, body, prepared.requests)
        self.writer = CompletionWriter(call.service, body, self.generation.prompts, prepared.num_top)
        self._response_id = prepared.response_id

    @classmethod
    async def start(cls, call: Call, body: CompletionRequest) -> _Job:
        prepared = await prepare(call, body)
        log_arrival(call, body, prepared.requests, body.prompt)
        return cls(call, body, prepared)

    def head(self, model: str) -> dict[str, Any]:
        return head(self._response_id, int(time.time()), model)


def _best(deltas: list[Delta], num_sampled: int, n: int) -> list[Delta]:
    """Choose, of the sequences of each prompt, the `n` with the highest mean log-probability, best first."""
    if num_sampled == n:
        return deltas
    chosen: list[Delta] = []
    for start in range(0, len(deltas), num_sampled):
        ranked = sorted(deltas[start : start + num_sampled], key=_mean_logprob, reverse=True)
        chosen += ranked[:n]
    return [replace(delta, index=index) for index, delta in enumerate(chosen)]


def _mean_logprob(delta: Delta) -> float:
    values = [entry.logprobs[0] for entry in delta.logprobs or ()]
    return sum(values) / len(values) if values else 0.0


async def _encode(call: Call, body: CompletionRequest, limits: ModelLimits) -> list[list[int]]:
    prompts: list[list[int]] = []
    cut = truncation(body, limits)
    for prompt in body.prompt:
        if not isinstance(prompt, str):
            prompts.append(prompt if cut is None else cut.of(prompt))
            continue
        tokenizer = call.service.need_tokenizer()
        prompts.append(
            await tokenizer.encode_async(
                prompt, limits.context, param="prompt", add_special_tokens=body.add_special_tokens, cut=cut
            )
        )
        await asyncio.sleep(0)  # let other requests run: a thousand short prompts take as long as a long one
    return prompts


async def _frames(call: Call, body: CompletionRequest, model: str) -> AsyncGenerator[bytes, None]:
    service = call.service
    job = await _Job.start(call, body)
    is_forced = service.settings.enable_force_include_usage
    has_usage, in_every_chunk = body.wants_usage or is_forced, body.wants_continuous_usage or is_forced
    writer = ChunkWriter(job.head(model), has_usage=has_usage)
    seen: set[int] = set()
    try:
        async with aclosing(job.generation.deltas()) as deltas:
            async for delta in deltas:
                is_first = delta.index not in seen
                seen.add(delta.index)
                if in_every_chunk or job.writer.needs_whole_choice(delta, is_first=is_first):
                    counts = usage(job.generation, service.settings) if in_every_chunk else None
                    size = job.writer.num_items(delta, is_first=is_first)
                    yield await call.sized(
                        size, functools.partial(job.writer.frame, writer, delta, is_first, counts, size)
                    )
                elif delta.text:
                    yield writer.completion_text(delta.index, delta.text)
    finally:
        log_end(call, job.generation)
    if has_usage:
        yield writer.usage(usage(job.generation, service.settings), metrics(job.generation, service.settings))
