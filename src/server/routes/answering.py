"""One request in the words of the chat route, being answered: rendered, checked, generated, read.

Every dialect of the API that has messages is converted to a ChatRequest before, and writes AnswerDeltas in its own
form after. Whether it is streamed makes no difference here.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple

from ...engine.api import EngineRequest
from ...formats.initial import starts_in_reasoning
from ..answers.parts import Answer
from ..answers.reading import AnswerDelta, Reading, new_call_id
from ..endpoint import Call
from ..protocol.chat import ChatRequest
from ..protocol.errors import bad_request
from ..sampling import check_prompt, num_logprobs, sampling_params, truncation
from ..service import Service, new_ids
from .constraining import constraint_of
from .generating import generation_of
from .rendering import rendered
from .request_log import log_arrival, log_end
from .session_prefix import note_prefix
from .transferring import transfer_of

END_TOKENS = 64  # of a prompt, which show whether it opens the reasoning


class Prepared(NamedTuple):
    """A request as it is sent to the engine. text: the rendered prompt. num_top: of `top_logprobs`."""

    request: EngineRequest
    text: str
    response_id: str
    num_top: int
    reading: Reading


async def prepare(
    call: Call,
    body: ChatRequest,
    *,
    prefix: str = "chatcmpl-",
    has_own_id: bool = False,
    earlier: Sequence[dict[str, Any]] = (),
) -> Prepared:
    """Render and check the request.

    prefix: of the answer's id. has_own_id: that id is never the client's id of the request, which may be repeated.
    earlier: messages of earlier requests, which this one continues.
    """
    service = call.service
    limits = service.model_limits
    choice = body.choice
    if choice.mode == "none" and service.settings.exclude_tools_when_tool_choice_none:
        body.tools = None
    num_top = num_logprobs(body.top_logprobs, limits, "top_logprobs") or 0
    prompt_logprobs = num_logprobs(body.prompt_logprobs, limits, "prompt_logprobs")
    text, prompt = await rendered(
        call,
        body,
        max_tokens=limits.context,
        add_special_tokens=body.add_special_tokens,
        cut=truncation(body, limits),
        earlier=earlier,
    )
    check_prompt(prompt, limits, param="messages")
    reading = reading_of(service, body, text)
    constraint = await constraint_of(service, body, reading)
    sampling = sampling_params(
        body,
        service.sampling_defaults,
        limits,
        prompts=[prompt],
        max_tokens=body.max_completion_tokens or body.max_tokens,
        max_tokens_param="max_completion_tokens" if body.max_completion_tokens else "max_tokens",
        logprobs=num_top if body.logprobs else None,
        prompt_logprobs=prompt_logprobs,
        tokenizer=service.tokenizer,
        constraint=constraint,
        reasoning=service.constraints.reasoning(
            service.answer_format,
            prompt_text=text,
            continued=body.messages[-1].text if body.continue_final_message else "",
            has_constraint=constraint is not None,
            budget=body.thinking_budget,
        ),
    )
    response_id, engine_id = new_ids(prefix, call.request_id or body.request_id, call.unique_id)
    request = EngineRequest(
        request_id=engine_id,
        inputs=call.inputs(prompt, sampling, body),
        priority=body.priority or 0,
        rank=call.rank,
        prediction=await _predicted(service, body),
        **transfer_of(call, body)._asdict(),
    )
    if has_own_id:
        response_id = prefix + call.unique_id
    return Prepared(request, text, response_id, num_top, reading)


async def _predicted(service: Service, body: ChatRequest) -> list[int]:
    """The tokens of the text that the request predicts; none for an engine that drafts nothing. Raises ApiError."""
    if body.prediction is None:
        return []
    tokenizer, limit, param = service.need_tokenizer(), service.model_limits.context, "prediction.content"
    token_ids = await tokenizer.encode_async(body.prediction.text, limit, param=param, add_special_tokens=False)
    if len(token_ids) > limit:
        message = f"the prediction has {len(token_ids)} tokens, more than the model's context of {limit}"
        raise bad_request(message, code="context_length_exceeded", param=param)
    has_drafts = service.resolved.speculative.method is not None and not body.use_beam_search
    return token_ids if has_drafts else []


def reading_of(service: Service, body: ChatRequest, prompt_text: str) -> Reading:
    """How the answer to a request is read. prompt_text: the prompt, or its end."""
    format = service.answer_format if service.tokenizer is not None else None
    field = service.settings.reasoning_field
    is_separate = body.has_separate_reasoning
    if is_separate is None:
        is_separate = field != "inline"
    if format is not None and not is_separate:
        format = replace(format, reasoning=None)
    must_call = body.choice.mode in ("required", "named")
    if format is not None and service.constraints.in_reasoning and (must_call or body.output_grammar is not None):
        format = replace(format, reasoning=None)  # the grammar begins with the first token: all of it is the answer
    continued = body.messages[-1].text if body.continue_final_message else ""
    return Reading(
        format=format,
        tools={tool.function.name: tool.function.parameters or {} for tool in body.tools or ()},
        reads_calls=body.choice.reads_calls and format is not None and format.calls is not None,
        must_call=must_call,
        starts_in_reasoning=format is not None and starts_in_reasoning(format, prompt_text, continued=continued),
        shows_reasoning=body.include_reasoning is not False and field != "none",
        streams_reasoning=body.stream_reasoning is not False,
    )


class Answering:
    """A prepared request, given to the engine when `deltas` or `answers` is iterated. One of them, once."""

    def __init__(
        self, call: Call, body: ChatRequest, prepared: Prepared, new_id: Callable[[], str] = new_call_id
    ) -> None:
        """new_id: makes the ids of calls, where the model's format has no rule for them."""
        service = call.service
        reading = prepared.reading
        self.response_id = prepared.response_id
        self.created = int(time.time())
        self.reading = reading
        self.request = prepared.request
        self.num_top = prepared.num_top
        kept = service.special_ids(reading.format)
        self._readers = [reading.reader(prepared.request.inputs.sampling, new_id) for _ in range(body.n or 1)]
        self.generation = generation_of(call, body, [prepared.request], kept, self._readers)
        self._call = call
        self._has_prediction = body.prediction is not None

    @classmethod
    async def start(
        cls, call: Call, body: ChatRequest, new_id: Callable[[], str] = new_call_id, **options: Any
    ) -> Answering:
        """Prepare an answer. Nothing has been sent to the engine yet. options: of `prepare`."""
        prepared = await prepare(call, body, **options)
        await note_prefix(call, body, prepared.request.inputs.prompt_token_ids)
        log_arrival(call, body, [prepared.request], [prepared.text])
        return cls(call, body, prepared, new_id)

    async def deltas(self) -> AsyncGenerator[AnswerDelta, None]:
        try:
            async with aclosing(self.generation.deltas()) as deltas:
                async for delta in deltas:
                    yield delta.answer
        finally:
            log_end(self._call, self.generation)

    async def answers(self) -> list[Answer]:
        """Answers of all sequences, in their order."""
        found = [Answer(index) for index in range(len(self._readers))]
        async with aclosing(self.deltas()) as deltas:
            async for delta in deltas:
                found[delta.index].add(delta)
        return found

    def num_calls(self, index: int) -> int:
        """Number of calls so far, in one answer."""
        return self._readers[index].num_calls

    @property
    def output_details(self) -> dict[str, int]:
        """Counts for `completion_tokens_details`, of all answers: what the model and the request have to do with."""
        details: dict[str, int] = {}
        if (num_reasoning := self.num_reasoning_tokens) is not None:
            details["reasoning_tokens"] = num_reasoning
        if self._has_prediction:
            found = [draft for drafts in self.generation.drafts for draft in drafts if draft.is_predicted]
            num_accepted = sum(draft.num_accepted for draft in found)
            details["accepted_prediction_tokens"] = num_accepted
            details["rejected_prediction_tokens"] = sum(draft.num_tokens for draft in found) - num_accepted
        return details

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Number of reasoning tokens in all answers; None for a model that is not known to reason."""
        if not self.reading.has_reasoning:
            return None
        return sum(reader.num_reasoning_tokens for reader in self._readers)


async def rendered_for_counting(call: Call, body: ChatRequest, earlier: Sequence[dict[str, Any]]) -> int:
    """The number of tokens of the prompt."""
    limit = call.service.model_limits.context
    prompt = await rendered(call, body, max_tokens=limit, add_special_tokens=False, earlier=earlier)
    return len(prompt.token_ids)
