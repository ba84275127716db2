"""POST /inference/v1/generate: token ids in, token ids out, complete or as a stream; on request with their text, or
with the message that they are. POST /inference/v1/abort_requests ends such requests.
"""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from ...engine.api import Constraint, EngineRequest, TokenLogprobs
from ...text.generated_sequence import Delta, join
from ..answers.parts import Answer
from ..answers.reading import AnswerReader
from ..endpoint import INLINE_ITEMS, Call
from ..generation import Generation
from ..logprobs import chat_logprobs, prompt_logprobs
from ..protocol.errors import ApiError, unsupported
from ..protocol.generate import AbortRequest, GenerateRequest, ParseContext, response
from ..protocol.stream import ChunkWriter
from ..sampling import check_prompt, num_logprobs, sampling_params, truncation
from ..service import new_ids
from .answering import END_TOKENS, reading_of
from .chat_writer import ChatWriter
from .generating import generation_of
from .request_log import log_arrival, log_end
from .transferring import transfer_fields, transfer_of
from .usage import usage


async def generate(call: Call) -> None:
    service = call.service
    body = await call.body(GenerateRequest)
    model = await call.named_model(body.model)
    service.check_ready()
    job = _Job(call, body, await service.constraints.checked(body.output_grammar))
    if body.stream:
        await call.stream(job.frames())
        return
    async with call.running():
        try:
            deltas = await job.whole()
        finally:
            log_end(call, job.generation)

        def build() -> dict[str, Any]:
            choices = [job.choice(delta) for delta in deltas]
            counts = usage(job.generation, service.settings)
            first = deltas[0].prompt_logprobs
            scored = None if first is None else prompt_logprobs(first, service.tokenizer)
            transferred = transfer_fields(body, job.generation)
            answer = response(job.response_id, int(time.time()), model, choices, counts, scored) | transferred
            return answer if body.output_mode is None else {**answer, "output_mode": body.output_mode}

        await call.answer_sized(sum(map(job.num_items, deltas)), build)


async def abort_requests(call: Call) -> None:
    """Ends requests of the same key; a client of this process may have left before, so that others are not an error."""
    body = await call.body(AbortRequest)
    live = call.service.live
    aborted = [name for name in body.request_ids if live.end_named((call.owner, name), _aborted)]
    await call.answer({"status": "ok", "aborted": aborted})


def _aborted() -> ApiError:
    return ApiError(409, "the request was ended by POST /inference/v1/abort_requests", code="request_aborted")


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
        given_id = call.request_id or body.request_id
        self.response_id, engine_id = new_ids("generate-tokens-", given_id, call.unique_id)
        call.abort_ids = (self.response_id,) if given_id is None else (self.response_id, given_id)
        request = EngineRequest(
            request_id=engine_id,
            inputs=call.inputs(prompt, sampling, body),
            priority=body.priority or 0,
            rank=call.rank,
            **transfer_of(call, body)._asdict(),
        )
        log_arrival(call, body, [request], [prompt])
        self._mode = body.output_mode or "tokens"
        if self._mode != "tokens" and service.tokenizer is None:
            raise unsupported("output_mode", ": this deployment has no tokenizer (`model.skip_tokenizer_init`)")
        kept: frozenset[int] = frozenset()
        self._readers: list[AnswerReader] = []
        self._writer: ChatWriter | None = None
        # Stop strings are found in what the text means, if that is known, as in a chat's own route.
        if self._mode == "derender" or (self._mode == "tokens" and body.stop and body.parse_context is not None):
            asked = (body.parse_context or ParseContext()).request()
            end = service.need_tokenizer().decode(prompt[-END_TOKENS:], skip_special_tokens=False)
            reading = reading_of(service, asked, end)
            self._readers = [reading.reader(sampling) for _ in range(body.n or 1)]
            kept = service.special_ids(reading.format)
            self._writer = ChatWriter(
                service, asked, num_top=0, num_calls=lambda index: self._readers[index].num_calls, prompt=None
            )
        self.generation: Generation = generation_of(call, body, [request], kept, self._readers)
        self._call = call
        self._body = body
        self._num_top = num_top or 0
        as_ids = body.return_tokens_as_token_ids
        self._names = service.token_names(True if as_ids is None and self._mode == "tokens" else as_ids)
        self._answers: dict[int, Answer] = {}

    async def whole(self) -> list[Delta]:
        """One complete delta for each sequence, in order."""
        parts: dict[int, list[Delta]] = {}
        async with aclosing(self.generation.deltas()) as deltas:
            async for delta in deltas:
                parts.setdefault(delta.index, []).append(delta)
                if self._readers:
                    self._answers.setdefault(delta.index, Answer(delta.index)).add(delta.answer)
        return [join(parts[index]) for index in sorted(parts)]

    def choice(self, delta: Delta) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": delta.index,
            "logprobs": None if delta.logprobs is None else self._logprobs(delta.logprobs),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "token_ids": delta.token_ids,
        }
        if self._mode == "text":
            choice["text"] = delta.text
        if self._mode == "derender" and self._writer is not None:
            read = self._writer.choice(self._answers[delta.index])
            choice |= {"message": read["message"], "finish_reason": read["finish_reason"]}
        return choice

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Log-probabilities in OpenAI's form. `logprobs: 0` lists the sampled token as most likely: routers read it.

        Each token has its id, too, for the routes that make an answer of it.
        """
        found = chat_logprobs(entries, self._num_top, self._names)
        for token, entry in zip(found["content"], entries, strict=True):
            for shown, token_id in zip(token["top_logprobs"], entry.token_ids[1:], strict=False):
                shown["token_id"] = token_id
            token |= {"token_id": entry.token_ids[0], "rank": entry.rank}
            if not self._num_top:
                names = ("token", "logprob", "bytes", "token_id")
                token["top_logprobs"] = [{name: token[name] for name in names}]
        return found

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
                    has_text = self._mode == "text" and delta.text
                    is_empty = not delta.token_ids and delta.finish_reason is None and delta.prompt_logprobs is None
                    if is_empty and not has_text:
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
