"""The jobs of the server's isolated processes, and the process: `python -m stoker.server.request_jobs`.

compile, render: as text/template_jobs.py, also with the body of a request, which has the messages.
grammar: what an answer must obey, as a grammar that can be compiled.
parse: the body of a request, as its protocol model; what the server does not need of it stays here.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from ..engine.api import InvalidRequest
from ..isolated.isolation import JobModule
from ..isolated.process import answer_jobs
from ..isolated.wire import pack, packed_ids
from ..text import template_jobs
from ..text.chat_template import LimitExceeded
from ..text.length import TextLimit
from ..text.user_text import ControlTokens, UserText
from .agents.normalise import normalised
from .protocol import json
from .protocol.chat import ChatRequest, Conversation, Dialogue, with_earlier
from .protocol.completions import CompletionRequest
from .protocol.derender import DerenderChatRequest, DerenderCompletionRequest
from .protocol.errors import ApiError, bad_request
from .protocol.generate import AbortRequest, GenerateRequest
from .protocol.messages import CountTokensRequest, MessagesRequest
from .protocol.pooling import ClassifyRequest, EmbeddingRequest, PoolingRequest, RerankRequest, ScoreRequest
from .protocol.pooling_dialects import (
    CohereEmbedRequest,
    TeiDecodeRequest,
    TeiEmbedRequest,
    TeiPredictRequest,
    TeiSimilarityRequest,
    TeiTokensRequest,
)
from .protocol.responses import ResponsesRequest
from .protocol.tokenize import DetokenizeRequest, TokenizeRequest
from .protocol.wire import Wire

MODELS: dict[str, type[Wire]] = {
    model.__name__: model
    for model in (
        ChatRequest,
        CompletionRequest,
        GenerateRequest,
        AbortRequest,
        DerenderChatRequest,
        DerenderCompletionRequest,
        TokenizeRequest,
        DetokenizeRequest,
        ResponsesRequest,
        MessagesRequest,
        CountTokensRequest,
        EmbeddingRequest,
        PoolingRequest,
        ClassifyRequest,
        ScoreRequest,
        RerankRequest,
        CohereEmbedRequest,
        TeiEmbedRequest,
        TeiTokensRequest,
        TeiPredictRequest,
        TeiSimilarityRequest,
        TeiDecodeRequest,
    )
}
MAX_NAMES, MAX_NAME_CHARS = 256, 100  # of unknown fields, in an answer
_TOKEN_IDS = frozenset({"prompt", "tokens", "token_ids", "allowed_token_ids"})  # fields that can be long lists of them
# What is decoded: lists of token ids and of log-probabilities, which have their own limits.
_TO_DECODE = frozenset(
    {"generate_response", "generate_responses", "generate_chunk", "stream_state", "prompt_token_ids"}
)
_TEXTS = frozenset({"messages", "instructions"})  # fields of which the text of a prompt is kept


class RequestJobs(template_jobs.TemplateJobs):
    def __init__(self, time_limit_s: float) -> None:
        super().__init__(time_limit_s)
        self._functions |= {"parse": self._parse, "has": self._has, "grammar": self._grammar}

    def answer(self, job: dict[str, Any], body: bytes) -> dict[str, Any]:
        try:
            return super().answer(job, body)
        except ApiError as error:
            return {"kind": "error", "status": error.status, "message": error.message, "param": error.param,
                    "code": error.code, "has_own_names": error.has_own_names}  # fmt: skip

    def _render(self, job: dict[str, Any], body: bytes) -> dict[str, Any]:
        """The prompt, and what the rules removed from the messages.

        With a body, its messages follow those of the job; its tools, documents and variables replace those of the job.
        """
        if not body:
            return super()._render(job, body)
        request = json.read(MODELS[job["model"]], body)
        assert isinstance(request, Dialogue)
        with _own_names(request, num_earlier=len(job["messages"])):
            return self._rendered_conversation(job, request.conversation())

    def _rendered_conversation(self, job: dict[str, Any], conversation: Conversation) -> dict[str, Any]:
        variables = job["variables"]
        messages, tools, removed = normalised(
            with_earlier(job["messages"], conversation.plain_messages()), conversation.plain_tools(), job["rules"]
        )
        given = {
            **(conversation.chat_template_kwargs or {}),
            "tools": variables["tools"] and tools,
            "documents": variables["documents"] and conversation.documents,
        }
        variables = {name: given.get(name, value) for name, value in variables.items()}
        control, answers = ControlTokens(job["control"]), ControlTokens(job["answers"])
        given = {name: variables[name] for name in variables if name in given}
        user_text = UserText(control, answers, messages, **given)
        rendered = self._rendered(job, user_text.messages, {**variables, **user_text.given}, user_text.mark)
        return {**rendered, "removed": removed}

    def _parse(self, job: dict[str, Any], body: bytes) -> dict[str, Any]:
        """What the server needs of a request."""
        request = json.read(MODELS[job["model"]], body, job["max_values"])
        with _own_names(request):
            request.refuse_unsupported()
        if job["limit"] is not None:
            for text in request.texts_to_encode:
                TextLimit(*job["limit"]).check(text, param="prompt")
        unknown = request.unknown_fields
        shown = [name[:MAX_NAME_CHARS] for name in unknown[:MAX_NAMES]]
        kept, more = request.essentials(), {name: getattr(request, name) for name in job["keep"]}
        _check_size({name: value for name, value in kept.items() if name not in type(request).content_fields})
        _check_values(more, 2 * json.MAX_ITEMS)  # such as all items of a conversation
        kept |= more
        fields = {name: _packed(name, value) for name, value in kept.items()}
        skipped = (
            [kind[:MAX_NAME_CHARS] for kind in request.skipped[:MAX_NAMES]] if isinstance(request, Dialogue) else []
        )
        return {"fields": fields, "unknown": shown, "num_unknown": len(unknown), "skipped": skipped}

    def _has(self, job: dict[str, Any], body: bytes) -> list[str]:
        """Choose the names that the object in the body has as fields."""
        fields = json.parse(body)
        return [name for name in job["names"] if name in fields]

    def _grammar(self, job: dict[str, Any], _: bytes) -> str:
        """The grammar of an answer. Imported here: the other jobs need no grammars."""
        return import_module(".grammars.build", __package__).build(job)  # type: ignore[no-any-return]


def _check_size(kept: Mapping[str, Any]) -> None:
    """Limit the size of a request before the server gets it: there each value costs time of all requests. Raises
    ApiError.

    All fields of all dialects are limited, also new ones. Lists of token ids have their own limit, and the context
    limits the texts of a prompt.
    """
    _check_values(
        {name: value for name, value in kept.items() if name not in _TOKEN_IDS | _TO_DECODE}, json.MAX_KEPT_VALUES
    )
    sizes = {name: len(pack(value)) for name, value in kept.items() if name not in _TOKEN_IDS | _TO_DECODE | _TEXTS}
    _limit(sizes, json.MAX_KEPT_BYTES, "bytes")


def _check_values(kept: Mapping[str, Any], limit: int) -> None:
    _limit({name: json.num_values(value) for name, value in kept.items()}, limit, "values")


def _limit(sizes: Mapping[str, int], limit: int, unit: str) -> None:
    if sum(sizes.values()) > limit:
        name = max(sizes, key=sizes.__getitem__)
        message = f"`{name}` is too large: the fields of a request that are not its prompt have at most {limit} {unit}"
        raise bad_request(message, code="json_too_large", param=name)


@contextlib.contextmanager
def _own_names(request: Wire, num_earlier: int = 0) -> Iterator[None]:
    """Errors of the block get the names of the request's dialect. num_earlier: messages that are not in the body."""
    try:
        yield
    except LimitExceeded:
        raise
    except (ApiError, InvalidRequest) as error:
        names = request.names if isinstance(request, Dialogue) else None
        if names is None:
            raise
        raise (names.without_places() if num_earlier else names).error(error) from None


def _packed(name: str, value: Any) -> Any:
    """Long lists of token ids are encoded and decoded as a block."""
    if name == "prompt":
        return [packed_ids(prompt) if isinstance(prompt, list) else prompt for prompt in value]
    return packed_ids(value) if name in _TOKEN_IDS else value


def _error_of(answer: Mapping[str, Any]) -> Exception:
    if answer["kind"] != "error":
        return template_jobs.error_of(answer)
    error = ApiError(answer["status"], answer["message"], code=answer["code"], param=answer["param"])
    error.has_own_names = answer["has_own_names"]
    return error


REQUEST_JOBS = JobModule(f"{__package__}.request_jobs", _error_of)

if __name__ == "__main__":
    sys.exit(answer_jobs(sys.argv, RequestJobs))
