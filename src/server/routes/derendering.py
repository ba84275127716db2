"""Answers that are made of given token ids: of a chat, or of a text completion; complete, or one chunk of a stream.

The client keeps the state between two chunks. Requests are already checked: see derender_checks.py.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from ...engine.api import SamplingParams, TokenLogprobs
from ...formats.events import CallBegin
from ...text.generated_sequence import Delta
from ..answers.given_tokens import GivenTokens
from ..answers.parts import Answer
from ..answers.reading import AnswerReader, Reading
from ..logprobs import LOWEST
from ..protocol.chat import ChatRequest, completion
from ..protocol.completions import CompletionRequest
from ..protocol.completions import completion as text_completion
from ..protocol.completions import head as text_head
from ..protocol.derender import (
    MAX_STATE_CONTEXT,
    Alternative,
    DerenderChatRequest,
    DerenderCompletionRequest,
    Generated,
    GeneratedChoice,
    ScoredToken,
    StreamState,
)
from ..protocol.fields import SamplingFields
from ..service import Service
from .answering import END_TOKENS
from .chat_writer import ChatWriter
from .completion_writer import CompletionWriter
from .usage import counted


class ChatJob:
    """One request for a chat's answer, which has been checked."""

    def __init__(
        self,
        service: Service,
        body: DerenderChatRequest,
        given: Generated,
        asked: ChatRequest,
        reading: Reading,
        prompt: list[int],
        model: str,
    ) -> None:
        """asked: the request that was generated. prompt: as far as it is known."""
        self._service = service
        self._body = body
        self._given = given
        self._asked = asked
        self._reading = reading
        self._prompt = prompt
        self._model = model
        self._readers: dict[int, AnswerReader] = {}
        self._has_parser = reading.format is not None
        self._writer = ChatWriter(
            service,
            asked,
            num_top=_num_top(body.chat_request is None, asked.top_logprobs),
            num_calls=lambda index: self._readers[index].num_calls,
            prompt=given.prompt_token_ids,
        )
        self._has_logprobs = body.chat_request is None or bool(asked.logprobs)

    @property
    def num_repeated(self) -> int:
        """Tokens of earlier chunks."""
        return len(self._body.stream_state.output_token_ids) if self._body.stream_state else 0

    def whole(self) -> dict[str, Any]:
        answers, num_reasoning = [], 0
        for choice in self._given.choices:
            sampling = _ending(self._asked, choice)
            tokens = self._tokens(choice.index, sampling)
            delta = self._taken(tokens, choice)
            if isinstance(choice.stop_reason, str) and not tokens.is_cut:
                # Another server has found it where the answer is not content, such as in the reasoning.
                delta = self._taken(self._tokens(choice.index, sampling, stops_in_text=True), choice)
            answer = Answer(choice.index)
            answer.add(delta.answer)
            answers.append(answer)
            num_reasoning += self._readers[choice.index].num_reasoning_tokens
        generated = sum(len(choice.token_ids or ()) for choice in self._given.choices)
        has_reasoning = self._reading.has_reasoning
        details = {"reasoning_tokens": num_reasoning} if has_reasoning else None
        counts = counted(self._body.prompt_tokens or 0, generated, details)
        choices = [self._writer.choice(answer) for answer in answers]
        found = completion(_id(self._given, "chatcmpl-"), int(time.time()), self._model, choices, counts)
        return {**found, **_prompt_fields(self._asked, self._given), **_passed_on(self._given)}

    def chunk(self) -> dict[str, Any]:
        given, state = self._given, self._body.stream_state
        found: dict[str, Any] = {
            "id": _id(given, "chatcmpl-"),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": self._model,
            "choices": [],
        }
        for choice in given.choices:
            before = state or StreamState()
            tokens = self._tokens(choice.index, _sampling(self._asked))
            if self._has_parser:
                for start, end in pairwise(accumulate(before.output_chunk_lens, initial=0)):
                    tokens.repeat(before.output_token_ids[start:end])
            else:
                tokens.repeat(before.prev_tokens[before.read_offset :])
            token_ids = choice.token_ids or []
            delta = tokens.take(
                token_ids,
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                logprobs=_logprobs(choice) if self._has_logprobs else None,
            )
            delta.answer.index = choice.index
            found["choices"] = [self._writer.chunk(delta.answer, is_first=not before.role_sent)]
            if not before.role_sent:
                found |= _prompt_fields(self._asked, given)
            state = StreamState(role_sent=True)
            if self._has_parser:
                state.output_token_ids = before.output_token_ids + token_ids
                state.output_chunk_lens = before.output_chunk_lens + ([len(token_ids)] if token_ids else [])
                state.tools_streamed = self._readers[choice.index].num_calls > 0
                begun = [event.id for event in delta.answer.events if isinstance(event, CallBegin)]
                state.last_tool_call_ids = before.last_tool_call_ids + begun
            else:
                earlier = self._prompt[-END_TOKENS:] if self._body.stream_state is None else before.prev_tokens
                state.prev_tokens, state.read_offset = tokens.needed([*earlier, *token_ids])
        return {"chunk": {**found, **_usage_of(given), **_passed_on(given)}, "stream_state": _dumped(state)}

    def _taken(self, tokens: GivenTokens, choice: GeneratedChoice) -> Delta:
        """All tokens of a complete choice."""
        return tokens.take(
            choice.token_ids or [],
            finish_reason=choice.finish_reason or "stop",
            stop_reason=choice.stop_reason,
            logprobs=_logprobs(choice) if self._has_logprobs else None,
        )

    def _tokens(self, index: int, sampling: SamplingParams, *, stops_in_text: bool = False) -> GivenTokens:
        service, reading, state = self._service, self._reading, self._body.stream_state
        self._readers[index] = reader = reading.reader(replace(sampling, stop=()) if stops_in_text else sampling)
        return GivenTokens(
            service.need_tokenizer(),
            sampling,
            service.engine_info.eos_token_ids,
            prompt=self._prompt if self._has_parser or state is None else _context(state),
            kept_ids=service.special_ids(reading.format),
            reader=reader,
            stops_in_text=stops_in_text,
            hides_tokens=self._has_parser and not reading.shows_reasoning,
        )


class CompletionJob:
    """One request for a text completion, which has been checked."""

    def __init__(
        self,
        service: Service,
        body: DerenderCompletionRequest,
        given: Sequence[Generated],
        prompts: Sequence[list[int] | None],
        num_prompt_tokens: int,
        model: str,
    ) -> None:
        self._service = service
        self._body = body
        self._given = given
        self._prompts = prompts
        self._num_prompt_tokens = num_prompt_tokens
        self._model = model
        request = body.completion_request
        self._asked = request or CompletionRequest(prompt=[""])
        wants_logprobs = request is None or request.logprobs is not None
        self._num_top = _num_top(request is None, self._asked.logprobs) if wants_logprobs else None

    def whole(self) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        for given, prompt in zip(self._given, self._prompts, strict=True):
            for choice in given.choices:
                tokens = self._tokens(_ending(self._asked, choice), prompt or given.prompt_token_ids)
                delta = tokens.take(
                    choice.token_ids or [],
                    finish_reason=choice.finish_reason or "stop",
                    stop_reason=choice.stop_reason,
                    logprobs=_logprobs(choice),
                )
                shown = {**self._writer(given).choice(delta), "index": len(choices)}
                choices.append({**shown, **_prompt_fields(self._asked, given)})
        generated = sum(len(choice.token_ids or ()) for given in self._given for choice in given.choices)
        counts = counted(self._num_prompt_tokens, generated)
        head = text_head(_id(self._given[0], "cmpl-"), int(time.time()), self._model)
        passed = _passed_on(self._given[0])
        if any(given.kv_transfer_params != self._given[0].kv_transfer_params for given in self._given):
            passed.pop("kv_transfer_params", None)
        return {**text_completion(head, choices, counts), **passed}

    def chunk(self) -> dict[str, Any]:
        (given,), state = self._given, self._body.stream_state
        found: dict[str, Any] = {**text_head(_id(given, "cmpl-"), int(time.time()), self._model), "choices": []}
        for choice in given.choices:
            before, token_ids, is_first = state or StreamState(), choice.token_ids or [], state is None
            prompt = (self._prompts[0] or given.prompt_token_ids or []) if is_first else []
            tokens = self._tokens(_sampling(self._asked), prompt if is_first else _context(before))
            tokens.repeat(before.prev_tokens[before.read_offset :])
            delta = tokens.take(
                token_ids,
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                logprobs=_logprobs(choice),
            )
            writer = self._writer(given)
            writer.resume(0, before.logprob_context_token_ids, before.logprob_text_offset)
            shown = {**writer.choice(delta, is_first=is_first), "index": choice.index}
            found["choices"] = [{**shown, **(_prompt_fields(self._asked, given) if is_first else {})}]
            state = StreamState(logprob_text_offset=writer.offset(0))
            state.prev_tokens, state.read_offset = tokens.needed(
                [*(prompt[-END_TOKENS:] if is_first else before.prev_tokens), *token_ids]
            )
            state.logprob_context_token_ids = [*before.logprob_context_token_ids, *token_ids][-MAX_STATE_CONTEXT:]
        return {"chunk": {**found, **_usage_of(given), **_passed_on(given)}, "stream_state": _dumped(state)}

    def _tokens(self, sampling: SamplingParams, prompt: Sequence[int] | None) -> GivenTokens:
        end_ids = self._service.engine_info.eos_token_ids
        return GivenTokens(self._service.need_tokenizer(), sampling, end_ids, prompt=prompt or ())

    def _writer(self, given: Generated) -> CompletionWriter:
        return CompletionWriter(self._service, self._asked, [given.prompt_token_ids or []], self._num_top)


def _num_top(is_all: bool, wanted: int | None) -> int:
    """How many of the alternatives of each token are shown."""
    return 2**31 if is_all or wanted == -1 else wanted or 0


def _sampling(asked: SamplingFields) -> SamplingParams:
    """The parameters of a request that say how its tokens become text."""
    return SamplingParams(
        min_tokens=asked.min_tokens or 0,
        stop=tuple(asked.stop or ()),
        stop_token_ids=tuple(asked.stop_token_ids or ()),
        ignore_eos=bool(asked.ignore_eos),
        include_stop_str_in_output=bool(asked.include_stop_str_in_output),
        skip_special_tokens=asked.skip_special_tokens is not False,
    )


def _ending(asked: SamplingFields, choice: GeneratedChoice) -> SamplingParams:
    """The same parameters. If the choice names the stop string that ended it, this is the only one."""
    sampling = _sampling(asked)
    return replace(sampling, stop=(choice.stop_reason,)) if isinstance(choice.stop_reason, str) else sampling


def _logprobs(choice: GeneratedChoice) -> list[TokenLogprobs] | None:
    if choice.logprobs is None or choice.logprobs.content is None:
        return None
    return [_entry(entry, [entry, *(entry.top_logprobs or ())]) for entry in choice.logprobs.content]


def _entry(scored: ScoredToken, found: Sequence[Alternative]) -> TokenLogprobs:
    token_ids = [each.id for each in found if each.id is not None]
    logprobs = [LOWEST if each.logprob is None else each.logprob for each in found]
    return TokenLogprobs(token_ids, logprobs, scored.rank or 1)


def _context(state: StreamState) -> list[int]:
    """The tokens before the held ones."""
    return state.prev_tokens[state.prefix_offset : state.read_offset]


def _id(given: Generated, prefix: str) -> str:
    return given.request_id or f"{prefix}{uuid.uuid4().hex}"


def _prompt_fields(asked: SamplingFields, given: Generated) -> dict[str, Any]:
    """What the server that generated has said about the prompt."""
    fields: dict[str, Any] = {"prompt_token_ids": given.prompt_token_ids} if asked.return_token_ids else {}
    return fields if given.prompt_logprobs is None else {**fields, "prompt_logprobs": given.prompt_logprobs}


def _passed_on(given: Generated) -> dict[str, Any]:
    fields = {"kv_transfer_params": given.kv_transfer_params, "metrics": given.metrics}
    return {name: value for name, value in fields.items() if value is not None}


def _usage_of(chunk: Generated) -> dict[str, Any]:
    return {} if chunk.usage is None else {"usage": chunk.usage}


def _dumped(state: StreamState | None) -> dict[str, Any] | None:
    return None if state is None else state.model_dump()
