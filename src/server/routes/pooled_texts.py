"""What all routes that pool texts share: texts to prompts, prompts to the engine, and results to what clients get."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ...engine.api import EngineRequest, InvalidRequest, PoolingParams, RequestInputs
from ...model.pooling import PoolActivation, PoolHead, PoolTask
from ...pooled import Floats, dimensions_problem, results_of
from ...text.length import context_limit, too_long
from ...text.pool_prompts import MAX_CALL_TOKENS, PoolLimits, PoolPrompt
from ...text.tokenizer import Side, Truncation
from ..endpoint import Call
from ..pooling_run import PoolingRun
from ..protocol.errors import bad_request, unsupported
from ..protocol.pooling import InputFields, PoolingFields, TruncationFields
from ..sampling import ModelLimits, not_in_vocabulary
from ..service import Service, new_ids
from .rendering import rendered
from .request_log import log_pooling

T = TypeVar("T")
MAX_ELEMENTS = 1 << 26  # of the results of one task in a request: 256 MiB in float32, and about 1 GB as JSON


@dataclass(frozen=True, slots=True)
class Pooled:
    """The answer of the engine to one request. `results` has the arrays of each text by task, in order."""

    response_id: str
    run: PoolingRun
    results: Sequence[Mapping[str, Floats]]

    def rows(self, task: PoolTask) -> Floats:
        """The results of a task that has one vector for each text: [texts, elements]."""
        return np.concatenate([result[task] for result in self.results])

    def usage(self, service: Service) -> dict[str, Any]:
        """Token counts of the request, in OpenAI's form."""
        found: dict[str, Any] = {
            "prompt_tokens": self.run.num_prompt_tokens,
            "total_tokens": self.run.num_prompt_tokens,
        }
        if service.settings.enable_prompt_tokens_details:
            found["prompt_tokens_details"] = {"cached_tokens": self.run.num_cached_tokens}
        return found


def head_of(service: Service, task: PoolTask) -> PoolHead:
    """The head that has this task. The route has been refused if there is none, unless a field names the task.

    Raises ApiError.
    """
    pooling = service.need_pooling()
    found = pooling.head(task)
    if found is None:
        tasks = ", ".join(head.task for head in pooling.heads)
        raise bad_request(f"this model does not have the task `{task}`; it has {tasks}", param="task")
    return found


def cut_of(body: TruncationFields, service: Service) -> Truncation | None:
    """How a long prompt is cut; None if it is refused. Raises ApiError for a length beyond the context."""
    limits, num_tokens = service.model_limits, body.truncate_prompt_tokens
    if num_tokens is None:
        return None
    if num_tokens > limits.context:
        message = f"{context_limit(limits.context)}, but truncate_prompt_tokens is {num_tokens}"
        raise bad_request(message, code="context_length_exceeded", param="truncate_prompt_tokens")
    return Truncation(limits.context if num_tokens == -1 else num_tokens, body.truncation_side or side_of(service))


def side_of(service: Service) -> Side:
    """The side that the model's own files cut; right if they say nothing."""
    config = {} if service.tokenizer is None else service.tokenizer.config
    return "left" if config.get("truncation_side") == "left" else "right"


def limits_of(service: Service, cut: Truncation | None, **texts: int | None) -> PoolLimits:
    return PoolLimits(service.model_limits.context, cut, call=MAX_CALL_TOKENS, **texts)


def prefix_of(service: Service, name: str | None) -> str:
    """The text of a prompt by its name. Raises ApiError for a name that the model does not have."""
    if name is None:
        return ""
    prompts = service.need_pooling().prompts
    if name not in prompts:
        known = ", ".join(sorted(prompts)) or "none"
        raise bad_request(f"this model has no prompt named {name!r}; it has {known}", param="prompt_name")
    return prompts[name]


async def in_thread(service: Service, num_chars: int, work: Callable[[], T]) -> T:
    """The result of `work`, which encodes texts; of long ones on the tokenizer's threads."""
    tokenizer = service.need_tokenizer()
    return work() if num_chars <= tokenizer.inline_chars else await tokenizer.run(work)


async def text_prompts(
    call: Call, texts: Sequence[str], cut: Truncation | None, params: Sequence[str], *, prefix: str = "",
    add_special_tokens: bool = True,
) -> list[PoolPrompt]:  # fmt: skip
    """Raises ApiError or InvalidRequest."""
    service = call.service
    service.need_tokenizer(params[0].partition("[")[0])
    maker, limits = service.prompt_maker, limits_of(service, cut)
    return await in_thread(
        service,
        sum(map(len, texts)),
        lambda: maker.texts(texts, limits, params=params, prefix=prefix, add_special_tokens=add_special_tokens),
    )


async def input_prompts(call: Call, body: InputFields) -> tuple[list[PoolPrompt], list[str]]:
    """The prompts of `input` or `messages`, and their fields. Raises ApiError or InvalidRequest."""
    service = call.service
    limits, cut = service.model_limits, cut_of(body, service)
    if body.messages is not None:
        params = [f"messages[{index}]" for index in range(len(body.messages))]
        return [await _conversation(call, conversation, body, cut) for conversation in body.conversations], params
    inputs = body.input or []
    params = ["input"] if len(inputs) == 1 else [f"input[{index}]" for index in range(len(inputs))]
    if isinstance(inputs[0], str):
        prefix = prefix_of(service, body.prompt_name)
        adds = body.add_special_tokens is not False
        return await text_prompts(call, inputs, cut, params, prefix=prefix, add_special_tokens=adds), params
    if body.add_special_tokens is not None:
        raise unsupported("add_special_tokens", " with token ids")
    return await call.sized(sum(map(len, inputs)), lambda: id_prompts(inputs, limits, cut, params)), params


def id_prompts(
    inputs: Sequence[list[int]], limits: ModelLimits, cut: Truncation | None, params: Sequence[str]
) -> list[PoolPrompt]:
    """Token ids as prompts. Raises ApiError or InvalidRequest."""
    found = []
    for token_ids, param in zip(inputs, params, strict=True):
        kept = token_ids if cut is None else cut.of(token_ids)
        if len(kept) > limits.context:
            raise too_long(len(kept), limits.context, param=param, has_output=False)
        extreme = min(kept) if min(kept) < 0 else max(kept)
        if not 0 <= extreme < limits.vocab_size:
            raise not_in_vocabulary(extreme, limits, param)
        found.append(PoolPrompt(kept))
    return found


async def _conversation(call: Call, conversation: Any, body: InputFields, cut: Truncation | None) -> PoolPrompt:
    limits = call.service.model_limits
    prompt = await rendered(
        call,
        conversation,
        max_tokens=limits.context,
        add_special_tokens=bool(body.add_special_tokens),
        cut=cut,
        has_output=False,
    )
    if len(prompt.token_ids) > limits.context:
        raise too_long(len(prompt.token_ids), limits.context, param="messages", has_output=False)
    if not prompt.token_ids:
        raise bad_request("the messages have no tokens", param="messages")
    return PoolPrompt(prompt.token_ids)


async def pooled(
    call: Call, body: PoolingFields, prompts: Sequence[PoolPrompt], params: Sequence[str], tasks: Sequence[PoolTask],
    *, prefix: str,
) -> Pooled:  # fmt: skip
    """What the engine makes of these prompts, in one call of it.

    params: the field of each prompt, for errors. prefix: of the id of the answer. Raises ApiError, InvalidRequest or
    ClientGone.
    """
    service = call.service
    service.check_ready()
    num_tokens = sum(len(prompt.token_ids) for prompt in prompts)  # also of prompts that were sent as token ids
    limits_of(service, None).check_call(num_tokens, params[0].partition("[")[0])
    limits = service.model_limits
    if body.priority and not limits.has_priorities:
        raise unsupported("priority", ": this deployment serves in order of arrival; see `scheduler.scheduling_policy`")
    response_id, engine_id = new_ids(prefix, call.request_id or body.request_id, call.unique_id)
    ids = itertools.repeat(engine_id) if len(prompts) == 1 else (f"{engine_id}-{n}" for n in range(len(prompts)))
    scope, named, rank = call.salted(body.cache_salt), tuple(tasks), call.rank
    _check_whole(service, prompts, params, tasks)
    _check_results(service, prompts, params, tasks)

    def request(prompt: PoolPrompt, request_id: str) -> EngineRequest:
        task = PoolingParams(named, prompt.first, prompt.second)
        inputs = RequestInputs(prompt.token_ids, task, scope, adapter=call.adapter)
        return EngineRequest(request_id=request_id, inputs=inputs, priority=body.priority or 0, rank=rank)

    requests = await call.sized(len(prompts), lambda: list(map(request, prompts, ids)))
    run = PoolingRun(
        service.client, requests, service.metrics, arrived_at=call.arrived_at, clock=service.clock, charge=call.charge
    )
    log_pooling(call, requests)
    async with call.running():
        try:
            results = await run.results(params)
        finally:
            call.log_fields.update(run.log_fields)
    return Pooled(response_id, run, results)


def _check_whole(
    service: Service, prompts: Sequence[PoolPrompt], params: Sequence[str], tasks: Sequence[PoolTask]
) -> None:
    """Raises InvalidRequest for a prompt that does not fit in a step, if a task needs all of its tokens at once."""
    if not any(head_of(service, task).needs_all for task in tasks):
        return
    limit = service.engine_info.max_num_batched_tokens
    for prompt, param in zip(prompts, params, strict=True):
        if (num_tokens := len(prompt.token_ids)) > limit:
            named = ", ".join(tasks)
            message = (
                f"`{param}` has {num_tokens} tokens; one step, which must compute all of it for {named}, has {limit}"
            )
            raise InvalidRequest(message, param=param, code="context_length_exceeded")


def _check_results(
    service: Service, prompts: Sequence[PoolPrompt], params: Sequence[str], tasks: Sequence[PoolTask]
) -> None:
    """Raises ApiError for texts whose results would need too much memory together, before any is computed."""
    num_tokens = sum(len(prompt.token_ids) for prompt in prompts)
    for task in tasks:
        head = head_of(service, task)
        num_rows, rows = (len(prompts), "texts") if head.modes else (num_tokens, "tokens")
        if num_rows * head.width > MAX_ELEMENTS:
            message = (
                f"the results of `{task}` have {head.width} elements for each of {num_rows} {rows}; a request may ask "
                f"for {MAX_ELEMENTS} elements: send at most {MAX_ELEMENTS // head.width} {rows} in each"
            )
            raise bad_request(message, code="array_above_max_length", param=params[0].partition("[")[0])


def checked_dimensions(head: PoolHead, dimensions: int | None, param: str) -> int | None:
    """The number of elements to which vectors are cut. Raises ApiError for a number that the model cannot have."""
    if dimensions is not None and (problem := dimensions_problem(head, dimensions)) is not None:
        raise bad_request(problem, param=param)
    return dimensions


def vectors_of(
    service: Service, head: PoolHead, found: Floats, *, dimensions: int | None = None, activates: bool = True,
    activation: PoolActivation | None = None,
) -> Floats:  # fmt: skip
    """The results of one text, as `results_of` says."""
    return results_of(service.need_pooling(), head, found, dimensions, activates=activates, activation=activation)
