"""Checks of requests to the /derender routes, which refuse before anything is decoded.

What a client sends is limited by what one request to this deployment can generate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..protocol.derender import Alternative, DerenderChatRequest, DerenderCompletionRequest, Generated, StreamState
from ..protocol.errors import ApiError, bad_request, unsupported
from ..protocol.fields import SamplingFields
from ..sampling import not_in_vocabulary
from ..service import Service

Body = DerenderChatRequest | DerenderCompletionRequest


def checked_answers(
    service: Service, body: Body, answers: Sequence[Generated] | None, name: str
) -> Sequence[Generated]:
    """The answers that the body has to decode: complete answers, or with `stream` one chunk.

    name: of the field of the answers. Raises ApiError for what is missing, too long, or not for this kind of request.
    """
    if not body.stream:
        if body.generate_chunk is not None or body.stream_state is not None:
            raise unsupported("generate_chunk" if body.generate_chunk else "stream_state", " without `stream: true`")
        if answers is None:
            raise missing(name)
        for index, answer in enumerate(answers):
            _check(service, answer, name if isinstance(body, DerenderChatRequest) else f"{name}[{index}]")
        return answers
    if answers is not None:
        raise unsupported(name, " with `stream: true`: send `generate_chunk`")
    chunk = body.generate_chunk
    if chunk is None:
        raise missing("generate_chunk")
    if len(chunk.choices) > 1:
        message = "a chunk has one choice: send several one after the other, each with its own state"
        raise bad_request(message, code="array_above_max_length", param="generate_chunk.choices")
    param, request = body.original
    if isinstance(request, SamplingFields) and request.stop:
        raise unsupported(
            f"{param}.stop", " with `stream`: the server that generates ends the text (`output_mode: text`)"
        )
    _check(service, chunk, "generate_chunk")
    if body.stream_state is not None:
        _check_state(service, body.stream_state, chunk)
    return [chunk]


def _check(service: Service, given: Generated, param: str) -> None:
    """Raises ApiError for more than one request can generate, before anything is decoded."""
    context, max_top = service.max_model_len, service.resolved.model.max_logprobs
    for index, choice in enumerate(given.choices):
        place = f"{param}.choices[{index}]"
        token_ids = choice.token_ids or []
        check_ids(service, token_ids, f"{place}.token_ids")
        if choice.logprobs is None or choice.logprobs.content is None:
            continue
        entries, place = choice.logprobs.content, f"{place}.logprobs.content"
        _check_length(entries, context, place)
        if len(entries) != len(token_ids):
            raise bad_request(f"`{place}` has {len(entries)} entries for {len(token_ids)} tokens", param=place)
        for position, entry in enumerate(entries):
            top = entry.top_logprobs or []
            if max_top != -1:
                _check_length(top, max(1, max_top), f"{place}[{position}].top_logprobs", "`model.max_logprobs`")
            for alternative in (entry, *top):
                _check_id(service, alternative, f"{place}[{position}]")
    _check_length(given.prompt_logprobs or (), context, f"{param}.prompt_logprobs")
    check_ids(service, given.prompt_token_ids or [], f"{param}.prompt_token_ids")


def _check_state(service: Service, state: StreamState, chunk: Generated) -> None:
    check_ids(service, state.prev_tokens, "stream_state.prev_tokens")
    check_ids(service, state.logprob_context_token_ids, "stream_state.logprob_context_token_ids")
    check_ids(service, state.output_token_ids, "stream_state.output_token_ids")
    if not state.prefix_offset <= state.read_offset <= len(state.prev_tokens):
        message = f"`stream_state.read_offset` must be from `prefix_offset` to {len(state.prev_tokens)}"
        raise bad_request(message, param="stream_state.read_offset")
    if sum(state.output_chunk_lens) != len(state.output_token_ids):
        num = len(state.output_token_ids)
        message = f"`stream_state.output_chunk_lens` adds up to {sum(state.output_chunk_lens)}, not to {num} tokens"
        raise bad_request(message, param="stream_state.output_chunk_lens")
    num_new = sum(len(choice.token_ids or ()) for choice in chunk.choices)
    if len(state.output_token_ids) + num_new > service.max_model_len:
        raise _too_many(len(state.output_token_ids) + num_new, service.max_model_len, "generate_chunk")


def check_ids(service: Service, token_ids: Sequence[int], param: str) -> None:
    _check_length(token_ids, service.max_model_len, param)
    if token_ids and max(token_ids) >= service.model_limits.vocab_size:
        raise not_in_vocabulary(max(token_ids), service.model_limits, param)


def _check_id(service: Service, alternative: Alternative, param: str) -> None:
    token_id = alternative.id
    if token_id is None:
        raise missing(f"{param}.token_id")
    if token_id >= service.model_limits.vocab_size:
        raise not_in_vocabulary(token_id, service.model_limits, f"{param}.token_id")


def _check_length(values: Sequence[Any], limit: int, param: str, name: str = "`model.max_model_len`") -> None:
    if len(values) > limit:
        raise _too_many(len(values), limit, param, name)


def _too_many(num: int, limit: int, param: str, name: str = "`model.max_model_len`") -> ApiError:
    message = f"`{param}` has {num} entries, but this deployment allows {limit} ({name})"
    return bad_request(message, code="array_above_max_length", param=param)


def missing(param: str, why: str = "") -> ApiError:
    return bad_request(f"`{param}` is required{why}", code="missing_required_parameter", param=param)


def per_answer(value: Any, num: int, param: str, *, is_one: Callable[[Any], bool]) -> list[Any]:
    """One value for each answer; of several answers a list. Raises ApiError for another number of them."""
    values = [value] * num if value is None else [value] if is_one(value) else value
    if len(values) != num:
        raise bad_request(f"`{param}` has {len(values)} entries for {num} answers", param=param)
    return list(values)


def is_ids(value: list[Any]) -> bool:
    return not value or isinstance(value[0], int)
