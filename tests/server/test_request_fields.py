"""Every field of the other servers' protocols is known: served, refused by its name, or listed as without effect."""

from __future__ import annotations

import typing
from collections.abc import Collection
from typing import Any

import pytest
from anthropic.types import Message, ModelInfo, Usage, message_count_tokens_params
from anthropic.types import message_create_params as message_params
from anthropic.types.beta import message_create_params as beta_message_params
from anthropic.types.output_config_param import OutputConfigParam
from openai.types import (
    Batch,
    BatchUsage,
    Completion,
    CompletionUsage,
    CreateEmbeddingResponse,
    Embedding,
    FileObject,
    Model,
    batch_create_params,
    batch_list_params,
    embedding_create_params,
    file_create_params,
    file_list_params,
)
from openai.types import completion_create_params as text_params
from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionStreamOptionsParam
from openai.types.chat import completion_create_params as chat_params
from openai.types.create_embedding_response import Usage as EmbeddingUsage
from openai.types.responses import (
    Response,
    ResponseUsage,
    input_item_list_params,
    input_token_count_params,
    response_create_params,
    response_retrieve_params,
)
from openai.types.responses.response_text_config_param import ResponseTextConfigParam
from openai.types.shared_params import Reasoning

from stoker.model.pooling import PoolHead, Pooling
from stoker.server.protocol.batches import PAGE_PARAMETERS, CreateBatch, ExpiresAfter
from stoker.server.protocol.chat import ChatRequest
from stoker.server.protocol.completions import CompletionRequest
from stoker.server.protocol.derender import DerenderChatRequest, DerenderCompletionRequest
from stoker.server.protocol.fields import StreamOptions
from stoker.server.protocol.generate import AbortRequest, GenerateRequest
from stoker.server.protocol.messages import MessagesRequest, OutputConfig
from stoker.server.protocol.pooling import (
    ClassifyRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from stoker.server.protocol.pooling_dialects import (
    CohereEmbedRequest,
    TeiDecodeRequest,
    TeiEmbedRequest,
    TeiPredictRequest,
    TeiSimilarityRequest,
    TeiTokensRequest,
)
from stoker.server.protocol.responses import ReasoningOptions, ResponsesRequest, TextOptions
from stoker.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from stoker.server.protocol.unserved import GENERATING, UNSERVED, Route, UnservedField
from stoker.server.protocol.wire import Wire
from stoker.server.routes.files import FORM_FIELDS
from stoker.server.routes.stored_responses import RETRIEVE_PARAMETERS

from .deployment import MODEL, Served
from .known_fields import KNOWN

BODIES: tuple[type[Wire], ...] = (
    ChatRequest, CompletionRequest, GenerateRequest, TokenizeRequest, DetokenizeRequest, ResponsesRequest,
    MessagesRequest, DerenderChatRequest, DerenderCompletionRequest, AbortRequest, EmbeddingRequest, PoolingRequest,
    ClassifyRequest, ScoreRequest, RerankRequest, CohereEmbedRequest, TeiEmbedRequest, TeiTokensRequest,
    TeiPredictRequest, TeiSimilarityRequest, TeiDecodeRequest,
)  # fmt: skip
SERVED = {body.route: frozenset(body.model_fields) for body in BODIES}
VALID: dict[Route, dict[str, Any]] = {
    Route.CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
    Route.TEXT: {"model": MODEL, "prompt": "Hello", "max_tokens": 2},
    Route.GENERATE: {"token_ids": [5], "sampling_params": {"max_tokens": 2}},
    Route.TOKENIZE: {"prompt": "Hello"},
    Route.DETOKENIZE: {"tokens": [5]},
    Route.RESPONSES: {"model": MODEL, "input": "Hello", "max_output_tokens": 2},
    Route.MESSAGES: {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
    Route.EMBEDDINGS: {"model": MODEL, "input": "Hello"},
    Route.POOLING: {"input": "Hello"},
    Route.CLASSIFY: {"input": "Hello"},
    Route.SCORE: {"queries": "Hello", "documents": "world"},
    Route.RERANK: {"query": "Hello", "documents": ["world"]},
    Route.COHERE_EMBED: {"model": MODEL, "texts": ["Hello"]},
    Route.TEI_PREDICT: {"inputs": "Hello"},
}
LABELLING = (Route.CLASSIFY, Route.TEI_PREDICT)  # the models of most tests have no labels
HEADS = (
    PoolHead(task="embed", width=8),
    PoolHead(task="classify", width=3, modes=("cls",)),
)


def known(route: Route) -> frozenset[str]:
    return SERVED[route] | UNSERVED[route].keys()


@pytest.mark.parametrize("route", Route)
def test_every_field_of_the_other_servers_is_known(route: Route):
    assert KNOWN[route] - known(route) == frozenset()


def test_every_field_of_the_official_clients_is_known():
    for route, params in (
        (Route.CHAT, chat_params.CompletionCreateParamsBase),
        (Route.TEXT, text_params.CompletionCreateParamsBase),
        (Route.RESPONSES, response_create_params.ResponseCreateParamsBase),
        (Route.RESPONSES, input_token_count_params.InputTokenCountParams),
        (Route.MESSAGES, message_params.MessageCreateParamsBase),
        (Route.MESSAGES, beta_message_params.MessageCreateParamsBase),
        (Route.MESSAGES, message_count_tokens_params.MessageCountTokensParams),
        (Route.EMBEDDINGS, embedding_create_params.EmbeddingCreateParams),
    ):
        assert typing.get_type_hints(params).keys() - known(route) == set()
    nested = {f"stream_options.{name}" for name in typing.get_type_hints(ChatCompletionStreamOptionsParam)}
    assert nested - {f"stream_options.{name}" for name in StreamOptions.model_fields} <= known(Route.CHAT)


@pytest.mark.parametrize(
    ("params", "known_here"),
    [
        (response_create_params.StreamOptions, {"include_obfuscation"}),
        (ResponseTextConfigParam, TextOptions.model_fields.keys()),
        (Reasoning, ReasoningOptions.model_fields.keys()),
        (OutputConfigParam, OutputConfig.model_fields.keys()),
        (batch_create_params.BatchCreateParams, CreateBatch.model_fields.keys()),
        (batch_create_params.OutputExpiresAfter, ExpiresAfter.model_fields.keys()),
        (file_create_params.FileCreateParams, {"file", *(name.partition("[")[0] for name in FORM_FIELDS)}),
        (batch_list_params.BatchListParams, PAGE_PARAMETERS),
        (file_list_params.FileListParams, {*PAGE_PARAMETERS, "purpose"}),
        (response_retrieve_params.ResponseRetrieveParamsBase, {*RETRIEVE_PARAMETERS, "include"}),
        (input_item_list_params.InputItemListParams, {*PAGE_PARAMETERS, "include"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_every_part_and_parameter_of_the_official_clients_is_known(params: Any, known_here: Collection[str]):
    assert typing.get_type_hints(params).keys() - {*known_here} == set()


# What the official clients' types have and answers do not, because there is nothing to say.
NOT_RETURNED: dict[str, str] = {
    "Response": "access_programs conversation image input_transformations moderation prompt prompt_cache_diagnostics "
    "prompt_cache_options prompt_cache_retention tool_usage",
    "ChatCompletion": "metadata moderation",
    "ChatCompletionMessage": "annotations audio function_call tool_calls",  # calls only if there are any
    "CompletionUsage": "completion_tokens_details",  # of a model that is known to reason
    "Model": "shutdown_date",
    "Message": "container diagnostics stop_details",
    "Usage": "cache_creation inference_geo server_tool_use speed",
}


def test_answers_have_every_field_of_the_official_types(folder: Any, tmp_path: Any):
    """A field that a new version of the libraries has is returned, or named above."""
    served = Served(folder, responses_store="memory", files_dir=str(tmp_path))
    bodies = {route: served.post(str(route), VALID[route]).json() for route in VALID if route not in LABELLING}
    form = {"files": {"file": ("in.jsonl", b"{}")}, "data": {"purpose": "batch"}}
    file = served.request("POST", "/v1/files", **form).json()
    wanted = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = served.post("/v1/batches", {**wanted, "output_expires_after": {"anchor": "created_at", "seconds": 3600}})
    found: dict[str, str] = {}
    chat, response, message = bodies[Route.CHAT], bodies[Route.RESPONSES], bodies[Route.MESSAGES]
    for kind, answer in (
        (Response, response),
        (ResponseUsage, response["usage"]),
        (ChatCompletion, chat),
        (ChatCompletionMessage, chat["choices"][0]["message"]),
        (CompletionUsage, chat["usage"]),
        (Completion, bodies[Route.TEXT]),
        (CreateEmbeddingResponse, bodies[Route.EMBEDDINGS]),
        (Embedding, bodies[Route.EMBEDDINGS]["data"][0]),
        (EmbeddingUsage, bodies[Route.EMBEDDINGS]["usage"]),
        (Message, message),
        (Usage, message["usage"]),
        (FileObject, file),
        (Batch, batch.json()),
        (BatchUsage, batch.json()["usage"]),
        (Model, served.get("/v1/models").json()["data"][0]),
    ):
        kind.model_validate(answer)
        if missing := kind.model_fields.keys() - answer.keys():
            found[kind.__name__] = " ".join(sorted(missing))
    assert found == NOT_RETURNED


def test_models_are_listed_as_clients_of_anthropic_read_them(served: Served):
    page = served.get("/v1/models").json()
    assert (page["first_id"], page["last_id"], page["has_more"]) == (
        page["data"][0]["id"],
        page["data"][-1]["id"],
        False,
    )
    for entry in page["data"]:
        # their `capabilities` have other names than those that all other clients read
        model = ModelInfo.model_validate({**entry, "capabilities": None})
        assert (model.display_name, model.max_input_tokens) == (entry["id"], entry["max_model_len"])


def test_a_field_is_served_or_not_and_has_a_meaning():
    for body in BODIES:
        assert body.route is not None
        assert SERVED[body.route].isdisjoint(UNSERVED[body.route])
        assert [name for name, field in body.model_fields.items() if not field.description] == []


def test_what_one_generating_route_serves_is_known_on_the_other():
    chat, text = GENERATING
    assert SERVED[chat] - known(text) == set()
    assert SERVED[text] - known(chat) == set()


@pytest.mark.parametrize("route", UNSERVED)
@pytest.mark.quick_cases(1)
def test_an_unserved_field_is_refused_by_its_name_or_without_effect(folder: Any, route: Route):
    """With strict_requests, so that a field which is unknown is an error too."""
    served = Served(folder, strict_requests=True, pooling=Pooling(heads=HEADS))

    def status(field: UnservedField, value: Any) -> int:
        path, _, nested = field.name.partition(".")
        is_option = path == "stream_options"
        fields = {path: {nested: value}, "stream": True} if is_option else {field.name: value}
        response = served.post(str(route), {**VALID[route], **fields})
        if response.status_code != 200:
            error = response.json()["error"]
            assert (error["code"], error["param"]) == ("unsupported_parameter", field.name)
            assert error["message"] == f"`{field.name}` is not supported here: {field.reason}"
        return response.status_code

    for name, field in UNSERVED[route].items():
        assert status(field, None) == 200, name
        assert status(field, "something else") == (200 if field.off is None else 400), name
        for value in field.off or ():
            assert status(field, value) == 200, f"{name}: {value}"


def test_a_number_is_not_taken_for_a_switch_that_is_off(served: Served):
    assert served.chat(use_beam_search=0).status_code == 400
    assert served.chat(length_penalty=True).status_code == 400
    assert served.chat(length_penalty=1.0).status_code == 200


def test_an_unknown_field_is_counted_and_the_request_is_served(served: Served):
    assert served.chat(no_such_field=1, metadata={"a": "b"}, max_tokens=2).status_code == 200
    assert served.metric('stoker_unknown_request_fields_total{route="/v1/chat/completions"}') == 1
