"""Every field of the other servers' protocols is known: served, refused by its name, or listed as without effect."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from anthropic.types import message_create_params as message_params
from anthropic.types.beta import message_create_params as beta_message_params
from openai.types import completion_create_params as text_params
from openai.types.chat import ChatCompletionStreamOptionsParam
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import input_token_count_params
from openai.types.responses import response_create_params as response_params

from stoker.server.protocol.chat import ChatRequest
from stoker.server.protocol.completions import CompletionRequest
from stoker.server.protocol.fields import StreamOptions, Wire
from stoker.server.protocol.generate import GenerateRequest
from stoker.server.protocol.messages import MessagesRequest
from stoker.server.protocol.responses import ResponsesRequest
from stoker.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from stoker.server.protocol.unserved import GENERATING, UNSERVED, Route, UnservedField

from .deployment import MODEL, Served
from .known_fields import KNOWN

BODIES: tuple[type[Wire], ...] = (
    ChatRequest, CompletionRequest, GenerateRequest, TokenizeRequest, DetokenizeRequest, ResponsesRequest,
    MessagesRequest,
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
}
ROWS = [
    pytest.param(
        route,
        field,
        id=f"{route}-{field.name}",
        # what /v1/completions does not serve either is tried there in every run
        marks=[pytest.mark.slow] if route is Route.GENERATE and field is UNSERVED[Route.TEXT].get(field.name) else [],
    )
    for route, fields in UNSERVED.items()
    for field in fields.values()
]


def known(route: Route) -> frozenset[str]:
    return SERVED[route] | UNSERVED[route].keys()


@pytest.mark.parametrize("route", Route)
def test_every_field_of_the_other_servers_is_known(route: Route):
    assert KNOWN[route] - known(route) == frozenset()


def test_every_field_of_the_official_clients_is_known():
    for route, params in (
        (Route.CHAT, chat_params.CompletionCreateParamsBase),
        (Route.TEXT, text_params.CompletionCreateParamsBase),
        (Route.RESPONSES, response_params.ResponseCreateParamsBase),
        (Route.RESPONSES, input_token_count_params.InputTokenCountParams),
        (Route.MESSAGES, message_params.MessageCreateParamsBase),
        (Route.MESSAGES, beta_message_params.MessageCreateParamsBase),
    ):
        assert typing.get_type_hints(params).keys() - known(route) == set()
    nested = {f"stream_options.{name}" for name in typing.get_type_hints(ChatCompletionStreamOptionsParam)}
    assert nested - {f"stream_options.{name}" for name in StreamOptions.model_fields} <= known(Route.CHAT)


def test_a_field_is_served_or_not_and_has_a_meaning():
    for body in BODIES:
        assert body.route is not None
        assert SERVED[body.route].isdisjoint(UNSERVED[body.route])
        assert [name for name, field in body.model_fields.items() if not field.description] == []


def test_what_one_generating_route_serves_is_known_on_the_other():
    chat, text = GENERATING
    assert SERVED[chat] - known(text) == set()
    assert SERVED[text] - known(chat) == set()


@pytest.mark.parametrize(("route", "field"), ROWS)
def test_an_unserved_field_is_refused_by_its_name_or_without_effect(folder: Any, route: Route, field: UnservedField):
    """With strict_requests, so that a field which is unknown is an error too."""
    served = Served(folder, strict_requests=True)

    def status(value: Any) -> int:
        path, _, nested = field.name.partition(".")
        is_option = path == "stream_options"
        fields = {path: {nested: value}, "stream": True} if is_option else {field.name: value}
        response = served.post(str(route), {**VALID[route], **fields})
        if response.status_code != 200:
            error = response.json()["error"]
            assert (error["code"], error["param"]) == ("unsupported_parameter", field.name)
            assert error["message"] == f"`{field.name}` is not supported here: {field.reason}"
        return response.status_code

    assert status(None) == 200
    assert status("something else") == (200 if field.off is None else 400)
    for value in field.off or ():
        assert status(value) == 200


def test_a_number_is_not_taken_for_a_switch_that_is_off(served: Served):
    assert served.chat(use_beam_search=0).status_code == 400
    assert served.chat(length_penalty=True).status_code == 400
    assert served.chat(length_penalty=1.0).status_code == 200


def test_an_unknown_field_is_counted_and_the_request_is_served(served: Served):
    assert served.chat(no_such_field=1, metadata={"a": "b"}, max_tokens=2).status_code == 200
    assert served.metric('stoker_unknown_request_fields_total{route="/v1/chat/completions"}') == 1
