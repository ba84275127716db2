"""What the server gives to isolated processes: long bodies, grammars, and templates that can take long."""

from __future__ import annotations

import asyncio
from json import dumps
from pathlib import Path
from typing import Any

import pytest
from tests.slow_cases import slow_but
from tests.unit.text.test_template import BOMB, NESTED

from stoker.isolated import isolation
from stoker.isolated.isolation import NUM_PROCESSES
from stoker.server import constraints, endpoint
from stoker.server.protocol import json
from stoker.server.routes import invocations

from ..tiny_tokenizer import TEMPLATE, write_tokenizer
from .deployment import MODEL, Served

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.slow
def test_templates_of_requests_delay_neither_probes_nor_other_requests(folder: Path):
    served = Served(folder, trust_request_chat_template=True)
    ordinary = {"model": MODEL, "messages": HELLO, "max_tokens": 1}
    long = {**ordinary, "messages": [{"role": "user", "content": "x" * 100_000}]}

    async def run() -> None:
        async with served.client() as client:
            bombs = [
                asyncio.ensure_future(
                    client.post(
                        "/v1/chat/completions", json={**ordinary, "chat_template": NESTED + "{{ ns.a == ns.b }}"}
                    )
                )
                for _ in range(NUM_PROCESSES)
            ]
            renderer = served.service.need_renderer()
            while renderer._processes_of_requests._idle:  # until all have begun
                await asyncio.sleep(0.01)
            assert (await client.get("/health")).status_code == 200
            assert (await client.post("/v1/chat/completions", json=ordinary)).status_code == 200
            response = await client.post("/v1/chat/completions", json=long)
            assert response.json()["error"]["code"] == "context_length_exceeded"
            assert not any(bomb.done() for bomb in bombs)
            for bomb in bombs:
                bomb.cancel()
            await asyncio.gather(*bombs, return_exceptions=True)

    asyncio.run(run())


# (path, body) of more than 64 KiB
LONG = {
    "completion": ("/v1/completions", {"prompt": "x", "user": "y" * 70_000, "max_tokens": 3}),
    "token ids": ("/v1/completions", {"prompt": [[5] * 400] * 100, "max_tokens": 1}),
    "ids beyond 32 bits": ("/v1/completions", {"prompt": [[5] * 400] * 99 + [[2**70]], "max_tokens": 1}),
    "too long": ("/v1/completions", {"prompt": "x" * 70_000}),
    "unsupported": ("/v1/completions", {"prompt": "x" * 70_000, "response_format": {"type": "xml"}}),
    "wrong type": ("/v1/completions", {"prompt": "x" * 70_000, "n": "2"}),
    "options": (
        "/v1/completions",
        {"prompt": "x", "user": "y" * 70_000, "stop": ["a"], "logit_bias": {"5": 1}, "stream_options": None, "n": 2,
         "response_format": {"type": "text"}, "echo": True},
    ),
    "chat": (
        "/v1/chat/completions",
        {"messages": [*HELLO, {"role": "user", "content": "b", "x": "y" * 70_000}], "chat_template_kwargs": {"k": 1},
         "tools": [{"type": "function", "function": {"name": "f", "description": "d"}}], "tool_choice": "auto"},
    ),
    "continued chat": (
        "/v1/chat/completions",
        {"messages": [*HELLO, {"role": "assistant", "content": "b", "x": "y" * 70_000}], "echo": True,
         "continue_final_message": True, "add_generation_prompt": False},
    ),
    "chat too long": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 70_000}]}),
    "roles": ("/v1/chat/completions", {"messages": [{"role": "", "content": "x" * 70_000}]}),
    "tokenize": ("/tokenize", {"messages": [{**HELLO[0], "x": "y" * 70_000}], "return_token_strs": True}),
    "detokenize": ("/detokenize", {"tokens": [5] * 50_000}),
    "invocations": ("/invocations", {"messages": [{**HELLO[0], "x": "y" * 70_000}]}),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(LONG, *list(LONG)[::4]))
def test_a_long_body_is_answered_as_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """Bodies of more than 64 KiB are read in another process, of which only what is needed comes back."""
    source = TEMPLATE + "{% if tools %}{{ tools | tojson }}{% endif %}{{ k }}{{ messages[-1].x | length }}"
    served = Served(write_tokenizer(tmp_path, template=source), strict_requests=False)
    path, body = LONG[name]
    body = {"model": MODEL, **body}
    answers, prompts = [], []
    for limit in (1, 1 << 30):
        monkeypatch.setattr(endpoint, "LONG_BODY_BYTES", limit)
        monkeypatch.setattr(invocations, "LONG_BODY_BYTES", limit)
        response = served.post(path, body)
        answer = {key: value for key, value in response.json().items() if key not in ("id", "created")}
        answers.append((response.status_code, answer))
        prompts.append([request.inputs.prompt_token_ids for request in served.engine.requests])
        served.engine.requests.clear()
    assert answers[0] == answers[1]
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize("copies", [1, 3])
def test_the_server_itself_does_not_read_a_long_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: int):
    """It held the GIL for tens of milliseconds for each of them, and /health had to wait."""
    served = Served(write_tokenizer(tmp_path))
    sizes: list[int] = []
    parse = json.parse
    monkeypatch.setattr(json, "parse", lambda body, *limits: (sizes.append(len(body)), parse(body, *limits))[1])
    served.post("/v1/completions", {"model": MODEL, "prompt": "x" * 1_000_000 * copies})
    served.post("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "x" * 1_000_000}]})
    served.post("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1})
    assert max(sizes) < 1000


ENUM = {"enum": [1] * 100_000}
EMPTY = {"type": "object", "properties": {f"p{index}": {} for index in range(20_000)}}
LONG_TEXT = {"const": "x" * 3_000_000}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
# name -> (path, fields, the parameter of the error)
TOO_LARGE = {
    "values": (CHAT, {"structured_outputs": {"json": ENUM}}, "structured_outputs"),
    "properties": (CHAT, {"structured_outputs": {"json": EMPTY}}, "structured_outputs"),
    "a long constant": (CHAT, {"structured_outputs": {"json": LONG_TEXT}}, "structured_outputs"),
    "schema as text": (CHAT, {"guided_json": dumps(ENUM)}, "guided_json"),
    "schema as text within": (CHAT, {"structured_outputs": {"json": dumps(ENUM)}}, "structured_outputs.json"),
    "guided": ("/v1/completions", {"prompt": "x", "guided_json": ENUM}, "guided_json"),
    "response format": (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": ENUM}}},
                        "response_format"),
    "tag": (CHAT, {"response_format": {"type": "structural_tag", "structures": [1] * 100_000}}, "response_format"),
    "choice": (CHAT, {"structured_outputs": {"choice": ["a"] * 100_000}}, "structured_outputs"),
    "text format": (RESPONSES, {"input": "x", "text": {"format": {"type": "json_schema", "schema": ENUM}}}, "text"),
    "kept items": (RESPONSES, {"input": [{"role": "user", "content": "x", "y": [1] * 300_000}], "store": True},
                   "input"),
    "output format": (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": ENUM}}},
                      "output_config"),
    "beginning of an answer": (
        MESSAGES, {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "a", "name": "f", "input": {"a": [1] * 100_000}}]}]}, "messages"),
    "tools": (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "parameters": ENUM}}]}, "tools"),
    "processors": (CHAT, {"logits_processors": [{"qualname": "a.b", "args": [1] * 100_000}]}, "logits_processors"),
    "metadata": (MESSAGES, {"metadata": {"user_id": [1] * 100_000}}, "metadata"),
    "a label": (RESPONSES, {"input": "x", "user": "x" * 3_000_000}, "user"),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(TOO_LARGE, *list(TOO_LARGE)[::4]))
def test_large_fields_are_refused_before_the_server_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    """A schema of a million values was copied, encoded and hashed on the event loop: for seconds no probe was answered.

    In the isolated process its size is checked, whatever field it is in.
    """
    served = Served(write_tokenizer(tmp_path / "model"), responses_store=str(tmp_path / "responses"))
    path, fields, param = TOO_LARGE[name]
    received: list[int] = []
    unpack = isolation.unpack
    monkeypatch.setattr(isolation, "unpack", lambda data: (received.append(len(data)), unpack(data))[1])
    body = {"model": MODEL, "max_tokens": 1, **({"messages": HELLO} if path in (CHAT, MESSAGES) else {}), **fields}
    if path == RESPONSES:
        del body["max_tokens"]
    answer = served.post(path, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert "is too large" in answer.json()["error"]["message"]
    assert max(received) < 1000  # the refusal, and nothing of the body


def test_a_grammar_that_is_too_long_is_not_even_hashed(served: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constraints, "json", None)
    answer = served.chat(structured_outputs={"regex": "a" * 1_100_000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "grammar_too_complex")


@pytest.mark.slow
def test_a_bomb_that_waits_for_a_message_holds_nothing(folder: Path):
    """Once it had rendered a simple message, a template was rendered in the server, and could hold it for minutes."""
    served = Served(folder, chat_template=BOMB)

    def chat(content: str) -> dict[str, Any]:
        return {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 1}

    async def run() -> None:
        async with served.client() as client:
            assert (await client.post("/v1/chat/completions", json=chat("x"))).status_code == 200
            bomb = asyncio.ensure_future(client.post("/v1/chat/completions", json=chat("now")))
            await asyncio.sleep(0)
            while len(served.service.need_renderer()._processes._idle) == NUM_PROCESSES:
                await asyncio.sleep(0)
            assert (await client.get("/health")).status_code == 200
            assert not bomb.done()
            assert (await bomb).json()["error"]["message"] == "the chat template exceeded a limit: more than 2 s"

    asyncio.run(run())
