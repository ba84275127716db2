"""POST .../derender: token ids that /inference/v1/generate returned become the answer that their request gets.

Complete, or as a stream: one chunk in, one chunk out, where the client keeps the state between them. Routers that have
rendered a request here, and generated its answer elsewhere, read it with these routes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ..endpoint import Call
from ..protocol.chat import ChatRequest, Message
from ..protocol.completions import MAX_PROMPTS
from ..protocol.derender import DerenderChatRequest, DerenderCompletionRequest, Generated
from ..protocol.errors import ApiError
from ..protocol.fields import SamplingFields
from ..protocol.json import MAX_VALUES
from .answering import END_TOKENS, reading_of
from .derender_checks import Body, check_ids, checked_answers, is_ids, missing, per_answer
from .derendering import ChatJob, CompletionJob
from .rendering import rendered


async def derender_chat(call: Call) -> None:
    service = call.service
    body = await call.body(DerenderChatRequest, MAX_VALUES + MAX_PROMPTS * service.max_model_len)
    request = body.chat_request
    model = await _model(call, body)
    if request is None and service.answer_format is not None:
        raise missing("chat_request", ": this server reads reasoning and calls, which depend on it")
    response = body.generate_response
    (given,) = checked_answers(service, body, None if response is None else [response], "generate_response")
    if request is not None and request.choice.mode == "none" and service.settings.exclude_tools_when_tool_choice_none:
        request.tools = None
    prompt = body.prompt_token_ids or given.prompt_token_ids or []
    check_ids(service, prompt, "prompt_token_ids")
    asked = request or ChatRequest(messages=[Message(role="user", content="")])
    reading = reading_of(service, asked, await _prompt_text(call, asked, prompt))
    job = ChatJob(service, body, given, asked, reading, prompt, model)
    work = job.chunk if body.stream else job.whole
    await call.answer_sized(_num_items([given]) + job.num_repeated, work)


async def derender_completion(call: Call) -> None:
    service = call.service
    body = await call.body(DerenderCompletionRequest, MAX_VALUES + MAX_PROMPTS * service.max_model_len)
    model = await _model(call, body)
    given = checked_answers(service, body, body.generate_responses, "generate_responses")
    prompts = per_answer(body.prompt_token_ids, len(given), "prompt_token_ids", is_one=is_ids)
    for prompt in prompts:
        check_ids(service, prompt or [], "prompt_token_ids")
    counts = per_answer(body.prompt_tokens, len(given), "prompt_tokens", is_one=lambda value: isinstance(value, int))
    job = CompletionJob(service, body, given, prompts, sum(count or 0 for count in counts), model)
    await call.answer_sized(_num_items(given), job.chunk if body.stream else job.whole)


async def _prompt_text(call: Call, asked: ChatRequest, prompt: Sequence[int]) -> str:
    """The end of the prompt, which shows whether it opens the reasoning; without its ids, of one that is as short."""
    service = call.service
    format = service.answer_format
    if format is None or format.reasoning is None:
        return ""
    if prompt:
        return service.need_tokenizer().decode(prompt[-END_TOKENS:], skip_special_tokens=False)
    if asked.continue_final_message:
        return asked.messages[-1].text
    if service.renderer is None or not service.renderer.has_template:
        return ""
    short = asked.model_copy(
        update={"messages": [Message(role="user", content="Hello")], "tools": None, "documents": None}
    )
    limit = service.model_limits.context
    return (await rendered(call, short, max_tokens=limit, add_special_tokens=False)).text


async def _model(call: Call, body: Body) -> str:
    """The model that is named; else the request's, which another server may have served under another name."""
    _, request = body.original
    if body.model is None and isinstance(request, SamplingFields) and request.model is not None:
        with contextlib.suppress(ApiError):
            return await call.checked_model(request.model)
    return await call.checked_model(body.model)


def _num_items(given: Sequence[Generated]) -> int:
    num = 0
    for choice in (choice for each in given for choice in each.choices):
        entries = choice.logprobs.content if choice.logprobs is not None else None
        num += len(choice.token_ids or ()) + sum(1 + len(entry.top_logprobs or ()) for entry in entries or ())
    return num
