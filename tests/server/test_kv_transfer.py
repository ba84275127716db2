"""`kv_transfer_params`: what a request asks the engine for, and what the answer says to the decode server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.engine.api import StoredBlocks

from .deployment import MODEL, Served, events

PROMPT = list(range(5, 45))  # two full blocks of 16
MESSAGES = [{"role": "user", "content": "Hello " * 9}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": MESSAGES, "max_tokens": 3},
    "/v1/completions": {"model": MODEL, "prompt": PROMPT, "max_tokens": 3},
    "/inference/v1/generate": {"model": MODEL, "token_ids": PROMPT, "sampling_params": {"max_tokens": 3}},
}
ON_EACH_ROUTE = pytest.mark.parametrize("path", ROUTES)
ASK = {  # as llm-d's router sends it
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
NAMES = ["00" * 32, "1f" * 16]
GIVEN = {"do_remote_prefill": True, "remote_block_ids": NAMES, "remote_host": "10.0.0.4", "remote_port": 5600}


def serving(folder: Path, **transfer: Any) -> Served:
    return Served(folder, kv_transfer={"kv_connector": "TcpConnector", **transfer})


def send(served: Served, path: str, params: Any, **fields: Any) -> Any:
    return served.post(path, {**ROUTES[path], "kv_transfer_params": params, **fields})


@ON_EACH_ROUTE
def test_the_answer_to_a_prompt_for_others_names_its_blocks(folder: Path, path: str):
    served = serving(folder)
    answer = send(served, path, ASK)
    assert answer.status_code == 200, answer.text
    (request,) = served.engine.requests
    assert request.is_for_others
    assert request.source is None
    stored = served.engine.stored(request)
    assert len(stored.hashes) >= 2
    assert answer.json()["kv_transfer_params"] == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "10.0.0.4:5600",
        "remote_block_ids": [name.hex() for name in stored.hashes],
        "remote_host": "10.0.0.4",
        "remote_port": 5600,
        "tp_size": 1,
    }


@ON_EACH_ROUTE
def test_the_salt_of_a_prompt_for_others_is_the_root_text_of_the_server_that_reads(folder: Path, path: str):
    """`PrefillServers` sends it. A salt of a client that looks like one has another root."""
    served = serving(folder)
    for params, root in (ASK, "epoch 3 x"), (None, "epoch 0 epoch 3 x"):
        assert send(served, path, params, cache_salt="epoch 3 x").status_code == 200
        assert served.engine.requests[-1].inputs.scope.root_text == root


@ON_EACH_ROUTE
def test_what_a_prefill_server_answers_is_what_a_decode_server_reads(folder: Path, path: str):
    prefill, decode = serving(folder, kv_role="kv_producer"), serving(folder, kv_role="kv_consumer")
    answer = send(decode, path, send(prefill, path, ASK).json()["kv_transfer_params"])
    assert answer.status_code == 200, answer.text
    assert answer.json().get("kv_transfer_params") is None
    (request,) = decode.engine.requests
    assert not request.is_for_others
    assert request.source == prefill.engine.stored(prefill.engine.requests[0])


@ON_EACH_ROUTE
def test_an_answer_that_reads_blocks_may_be_a_stream(folder: Path, path: str):
    served = serving(folder)
    *chunks, done = events(send(served, path, GIVEN, stream=True).text)
    assert done == "[DONE]"
    assert not any("kv_transfer_params" in json.loads(chunk) for chunk in chunks)
    source = StoredBlocks(tuple(map(bytes.fromhex, NAMES)), "10.0.0.4", 5600)
    assert [request.source for request in served.engine.requests] == [source]


@ON_EACH_ROUTE
@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"do_remote_decode": False, "do_remote_prefill": False},
        {"do_remote_decode": None, "remote_block_ids": NAMES},
        {"remote_request_id": "r"},
    ],
)
@pytest.mark.parametrize("connector", [None, "TcpConnector"])
@pytest.mark.quick_cases(10)
def test_a_request_that_asks_for_nothing_gets_nothing(folder: Path, path: str, params: Any, connector: str | None):
    served = serving(folder, kv_connector=connector)
    answer = send(served, path, params)
    assert answer.status_code == 200, answer.text
    assert answer.json().get("kv_transfer_params") is None
    (request,) = served.engine.requests
    assert not request.is_for_others
    assert request.source is None


def test_a_prompt_can_be_read_and_kept_for_others(folder: Path):
    served = serving(folder)
    answer = send(served, "/v1/completions", {**GIVEN, "do_remote_decode": True})
    assert answer.json()["kv_transfer_params"]["remote_block_ids"]
    (request,) = served.engine.requests
    assert request.is_for_others
    assert request.source is not None


def test_fields_of_other_engines_are_ignored_and_absent_blocks_are_none(folder: Path):
    served = serving(folder)
    params = [
        {**GIVEN, "remote_block_ids": [], "tp_size": 4, "remote_request_id": "r", "remote_engine_id": "e"},
        {**GIVEN, "remote_block_ids": None},
        {**GIVEN, "remote_host": None, "remote_port": None},
        {**GIVEN, "remote_port": 5600.0},
    ]
    for each in params:
        assert send(served, "/v1/completions", each).status_code == 200
    names = tuple(map(bytes.fromhex, NAMES))
    sources = [None, None, StoredBlocks(names), StoredBlocks(names, "10.0.0.4", 5600)]
    assert [request.source for request in served.engine.requests] == sources


def test_the_answer_to_a_prompt_without_a_whole_block_has_no_hashes(folder: Path):
    served = serving(folder)
    params = send(served, "/v1/completions", ASK, prompt=PROMPT[:15]).json()["kv_transfer_params"]
    assert params["remote_block_ids"] == []
    assert send(served, "/v1/completions", params).status_code == 200


@ON_EACH_ROUTE
@pytest.mark.parametrize(
    ("transfer", "params", "param", "words"),
    [
        ({"kv_connector": None}, ASK, "kv_transfer_params", "moves no KV blocks"),
        ({"kv_connector": None}, GIVEN, "kv_transfer_params", "moves no KV blocks"),
        ({"kv_role": "kv_consumer"}, ASK, "kv_transfer_params.do_remote_decode", "is a `kv_consumer`"),
        ({"kv_role": "kv_producer"}, GIVEN, "kv_transfer_params.do_remote_prefill", "is a `kv_producer`"),
        ({"prefill_servers": ("http://a",)}, GIVEN, "kv_transfer_params.do_remote_prefill", "of its `prefill_servers`"),
    ],
)
def test_a_server_does_not_do_the_work_of_the_other_role(
    folder: Path, path: str, transfer: dict[str, Any], params: dict[str, Any], param: str, words: str
):
    served = serving(folder, **transfer)
    answer = send(served, path, params)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, "unsupported_parameter")
    assert words in error["message"]
    assert served.engine.requests == []


@ON_EACH_ROUTE
@pytest.mark.parametrize(
    ("params", "fields", "param"),
    [
        (ASK, {"stream": True}, "stream"),
        (ASK, {"n": 2}, "kv_transfer_params"),
        (ASK, {"n": 2, "use_beam_search": True}, "kv_transfer_params"),
        (GIVEN, {"n": 2, "use_beam_search": True}, "kv_transfer_params"),
    ],
)
def test_a_form_of_answer_that_has_no_one_prompt_is_refused(
    folder: Path, path: str, params: dict[str, Any], fields: dict[str, Any], param: str
):
    if path == "/inference/v1/generate" and "use_beam_search" in fields:
        fields = {"sampling_params": {"max_tokens": 3, **fields}}
    answer = send(serving(folder), path, params, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("params", [ASK, GIVEN])
def test_several_prompts_are_refused(folder: Path, params: dict[str, Any]):
    answer = send(serving(folder), "/v1/completions", params, prompt=[PROMPT, PROMPT])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "kv_transfer_params")
    assert send(serving(folder), "/v1/completions", params, prompt=[PROMPT]).status_code == 200


def test_several_answers_may_read_the_same_blocks(folder: Path):
    served = serving(folder)
    assert send(served, "/v1/completions", GIVEN, n=3).status_code == 200
    assert len({request.source for request in served.engine.requests}) == 1
    assert len(served.engine.requests) == 3


@ON_EACH_ROUTE
@pytest.mark.parametrize(
    ("params", "place"),
    [
        ([1], ""),
        ("do_remote_decode", ""),
        ({"do_remote_decode": "true"}, ".do_remote_decode"),
        ({**GIVEN, "remote_block_ids": [1, 2]}, ".remote_block_ids[0]"),  # as another engine names blocks
        ({**GIVEN, "remote_block_ids": [NAMES[0], "block"]}, ".remote_block_ids[1]"),
        ({**GIVEN, "remote_block_ids": ["AB"]}, ".remote_block_ids[0]"),
        ({**GIVEN, "remote_block_ids": ["a"]}, ".remote_block_ids[0]"),
        ({**GIVEN, "remote_block_ids": ["ab cd"]}, ".remote_block_ids[0]"),
        ({**GIVEN, "remote_block_ids": [""]}, ".remote_block_ids[0]"),
        ({**GIVEN, "remote_block_ids": ["00" * 33]}, ".remote_block_ids[0]"),
        ({**GIVEN, "remote_block_ids": NAMES[0]}, ".remote_block_ids"),
        ({**GIVEN, "remote_host": "a" * 256}, ".remote_host"),
        ({**GIVEN, "remote_port": 65536}, ".remote_port"),
        ({**GIVEN, "remote_port": -1}, ".remote_port"),
        ({**GIVEN, "remote_port": "5600"}, ".remote_port"),
    ],
)
@pytest.mark.quick_cases(20)
def test_a_wrong_value_is_named(folder: Path, path: str, params: Any, place: str):
    served = serving(folder)
    answer = send(served, path, params)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"kv_transfer_params{place}"), answer.text
    assert served.engine.requests == []


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_other_routes_do_not_ignore_it(folder: Path, path: str):
    body = (
        {"model": MODEL, "input": "Hello"}
        if path == "/v1/responses"
        else {"model": MODEL, "messages": MESSAGES, "max_tokens": 3}
    )
    answer = serving(folder).post(path, {**body, "kv_transfer_params": ASK})
    assert answer.status_code == 400
    assert "kv_transfer_params" in answer.text
