"""Rendered here, generated as token ids, and made an answer here: what the routes that do all of it answer."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stoker.formats.format import Format
from stoker.formats.registry import find, find_reasoning
from stoker.text.tokenizer import Tokenizer

from ..fakes import FakeEngine
from ..formats.test_contract import TOOLS, TRANSCRIPTS, Transcript
from ..slow_cases import slow
from ..tiny_tokenizer import TEMPLATE
from .deployment import MODEL, Served, events

CONTEXT = 4096
CHAT, TEXT, GENERATE = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
MESSAGES = [{"role": "user", "content": "Hello"}]
FUNCTIONS = [{"type": "function", "function": {"name": name, "parameters": each}} for name, each in TOOLS.items()]
REASONING = "<think>\nLet me see 日本.\n</think>\n\nIt is wärm 😀 STOP and more."
QUICK = ["hermes", "hermes-in-unclosed-reasoning", "qwen3_coder", "mistral-list", "kimi_k2", "harmony"]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def serving(folder: Path, token_ids: list[int], format: Format | None, **options: Any) -> Served:
    engine = FakeEngine(script=lambda _: token_ids, max_model_len=CONTEXT, num_blocks=CONTEXT)
    model = {"max_model_len": CONTEXT, **options.pop("model", {})}
    return Served(folder, engine, answer_format=format, model=model, **options)


def format_of(transcript: Transcript) -> Format:
    format = find(transcript.name)
    if transcript.reasoning_parser is None:
        return format
    return dataclasses.replace(format, reasoning=find_reasoning(transcript.reasoning_parser))


def generated(served: Served, path: str, body: dict[str, Any], *, stream: bool = False) -> tuple[Any, Any]:
    """What /render makes of a request, and what is generated from that: for a stream a list of chunks."""
    rendered = served.post(f"{path}/render", body).json()
    one = rendered[0] if isinstance(rendered, list) else rendered
    answer = served.post(GENERATE, {**one, "stream": stream})
    assert answer.status_code == 200, answer.text
    return one, [json.loads(each) for each in events(answer.text) if each != "[DONE]"] if stream else answer.json()


def derendered(served: Served, path: str, body: dict[str, Any]) -> Any:
    rendered, answer = generated(served, path, body)
    sent: dict[str, Any] = {"prompt_tokens": len(rendered["token_ids"]), "prompt_token_ids": rendered["token_ids"]}
    sent |= {"chat_request": body} if path == CHAT else {"completion_request": body}
    sent |= {"generate_response": answer} if path == CHAT else {"generate_responses": [answer]}
    found = served.post(f"{path}/derender", sent)
    assert found.status_code == 200, found.text
    return found.json()


def comparable(answer: Any, *, of_hidden: bool = False) -> Any:
    """Without what differs from answer to answer. of_hidden: log-probabilities beside hidden reasoning."""
    choices = json.loads(json.dumps(answer["choices"]))
    for choice in choices:
        for call in choice["message"].get("tool_calls", ()):
            if re.fullmatch("call_[0-9a-f]{32}|[0-9A-Za-z]{9}", call["id"]):  # random ones
                call["id"] = ""
        if of_hidden:
            choice["logprobs"] = None
        choice.pop("prompt_token_ids", None)
    return choices, answer["usage"]


def streamed(served: Served, body: dict[str, Any], cuts: Sequence[int]) -> dict[str, Any]:
    """The answer as chunks of the tokens between the cuts, each decoded by itself, put together as a client does."""
    rendered, answer = generated(served, CHAT, body)
    (choice,) = answer["choices"]
    ids = choice["token_ids"]
    entries = choice["logprobs"] and choice["logprobs"]["content"]
    state, whole = None, {"calls": {}, "content": "", "reasoning": "", "token_ids": [], "logprobs": []}
    bounds = [0, *cuts, len(ids)]
    for start, end in pairwise(bounds):
        is_last = end == len(ids) and start == bounds[-2]
        chunk = {
            "request_id": answer["request_id"],
            "choices": [
                {
                    "index": 0,
                    "token_ids": ids[start:end],
                    "logprobs": entries and {"content": entries[start:end]},
                    "finish_reason": choice["finish_reason"] if is_last else None,
                    "stop_reason": choice["stop_reason"] if is_last else None,
                }
            ],
        }
        sent = {"stream": True, "generate_chunk": chunk, "stream_state": state, "chat_request": body,
                "prompt_token_ids": rendered["token_ids"]}  # fmt: skip
        response = served.post(f"{CHAT}/derender", sent)
        assert response.status_code == 200, response.text
        found, state = response.json()["chunk"], response.json()["stream_state"]
        assert (found["id"], found["object"]) == (answer["request_id"], "chat.completion.chunk")
        (piece,) = found["choices"]
        delta = piece["delta"]
        assert ("role" in delta) == (start == 0 and bounds.index(start) == 0 and whole.get("role") is None)
        whole["role"] = whole.get("role") or delta["role"]
        for name in ("content", "reasoning"):
            whole[name] += delta.get(name) or ""
        for call in delta.get("tool_calls", ()):
            known = whole["calls"].setdefault(call["index"], call)
            if known is not call:
                assert "id" not in call
                known["function"]["arguments"] += call["function"]["arguments"]
        whole["token_ids"] += piece.get("token_ids", [])
        whole["logprobs"] += (piece["logprobs"] or {"content": []})["content"]
        whole["finish_reason"], whole["stop_reason"] = piece["finish_reason"], piece.get("stop_reason")
    return whole


def decode(served: Served, path: str = CHAT, **body: Any) -> Any:
    return served.post(f"{path}/derender", body)


def check_streamed(found: dict[str, Any], choice: dict[str, Any]) -> None:
    message = choice["message"]
    assert (found["content"] or None) == (message["content"] or None)
    assert (found["reasoning"] or None) == message["reasoning"]
    calls = [found["calls"][index]["function"] for index in sorted(found["calls"])]
    assert calls == [each["function"] for each in message.get("tool_calls", ())]
    assert found["token_ids"] == (choice["token_ids"] or [])
    assert found["logprobs"] == (choice["logprobs"] or {"content": []})["content"]
    assert (found["finish_reason"], found["stop_reason"]) == (choice["finish_reason"], choice["stop_reason"])


@pytest.mark.parametrize("names", [QUICK, slow([*TRANSCRIPTS])], ids=["some", "all"])
def test_every_format_is_read_as_its_own_route_reads_it(folder: Path, tokenizer: Tokenizer, names: list[str]):
    for name in names:
        transcript = TRANSCRIPTS[name]
        template = TEMPLATE + "<think>\n" if transcript.thinks else None
        served = serving(folder, tokenizer.encode(transcript.text), format_of(transcript), chat_template=template)
        body = {"model": MODEL, "messages": MESSAGES, "tools": FUNCTIONS, "return_token_ids": True}
        coupled = served.post(CHAT, body).json()
        assert comparable(derendered(served, CHAT, body)) == comparable(coupled), name
        size = 1 + len(coupled["choices"][0]["token_ids"]) // 3
        check_streamed(streamed(served, body, [size, 2 * size]), coupled["choices"][0])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprobs": True, "top_logprobs": 2},
        {"logprobs": True},
        {"stop": ["STOP", "see"]},
        {"stop": ["STOP"], "include_stop_str_in_output": True, "min_tokens": 5},
        {"stop": ["wärm", "me"], "min_tokens": 60},
        {"stop_token_ids": [42], "include_stop_str_in_output": True},
        {"stop_token_ids": [42]},
        {"include_reasoning": False},
        {"include_reasoning": False, "logprobs": True},
        {"separate_reasoning": False},
        {"max_tokens": 9},
        {"ignore_eos": True, "max_tokens": 90},
        {"n": 2},
        {"tools": FUNCTIONS},
        {"tools": FUNCTIONS, "tool_choice": "none"},
        {"skip_special_tokens": False},
        {"return_tokens_as_token_ids": True, "logprobs": True, "top_logprobs": 1},
    ],
)
@pytest.mark.parametrize("text", [slow(REASONING), slow("Hello " + CALL), REASONING + CALL])
def test_fields_of_a_request_have_the_effect_that_they_have_on_its_own_route(
    folder: Path, tokenizer: Tokenizer, text: str, fields: dict[str, Any]
):
    served = serving(folder, tokenizer.encode(text), find("hermes"), model={"max_logprobs": 20})
    body = {"model": MODEL, "messages": MESSAGES, "return_token_ids": True, **fields}
    is_hidden = fields.get("include_reasoning") is False
    coupled = served.post(CHAT, body).json()
    assert comparable(derendered(served, CHAT, body)) == comparable(coupled, of_hidden=is_hidden)


@pytest.mark.parametrize("fields", [{"logprobs": True, "top_logprobs": 1}, slow({"stop_token_ids": [42]})])
@pytest.mark.parametrize("format", ["hermes", slow(None)])
@pytest.mark.parametrize("stride", [9, slow(1)])
def test_an_answer_is_the_same_at_every_split_of_its_tokens(
    folder: Path, tokenizer: Tokenizer, format: str | None, fields: dict[str, Any], stride: int
):
    served = serving(folder, tokenizer.encode(REASONING + CALL), format and find(format))
    body = {"model": MODEL, "messages": MESSAGES, "tools": FUNCTIONS, "return_token_ids": True, **fields}
    if format is None:
        del body["tools"]
    (choice,) = served.post(CHAT, body).json()["choices"]
    for cut in range(0, len(choice["token_ids"]) + 1, stride):
        check_streamed(streamed(served, body, [cut]), choice)
    check_streamed(streamed(served, body, range(1, len(choice["token_ids"]))), choice)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprobs": 2, "max_tokens": 30},
        {"logprobs": 0},
        {"stop": ["STOP"], "max_tokens": 90},
        {"stop": "see", "include_stop_str_in_output": True, "max_tokens": 90, "min_tokens": 3},
        {"stop_token_ids": [42], "max_tokens": 90},
        {"n": 2, "max_tokens": 90},
    ],
)
def test_a_text_completion_is_the_same(folder: Path, tokenizer: Tokenizer, fields: dict[str, Any]):
    served = serving(folder, tokenizer.encode(REASONING), find("hermes"))
    body = {"model": MODEL, "prompt": "Hello", "return_token_ids": True, **fields}
    coupled = served.post(TEXT, body).json()
    found = derendered(served, TEXT, body)
    assert found["choices"] == [{**choice, "prompt_token_ids": None} for choice in coupled["choices"]]
    assert found["usage"] == coupled["usage"]
    assert found["object"] == "text_completion"


def test_a_text_completion_is_the_same_at_every_split(folder: Path, tokenizer: Tokenizer):
    served = serving(folder, tokenizer.encode("wärm 😀 日本語"), None)
    body = {"model": MODEL, "prompt": "Hello", "logprobs": 1, "max_tokens": 90}
    (coupled,) = served.post(TEXT, body).json()["choices"]
    rendered, answer = generated(served, TEXT, body)
    (choice,) = answer["choices"]
    entries = choice["logprobs"]["content"]
    for cut in range(len(choice["token_ids"]) + 1):
        state, text, offsets, tokens = None, "", [], []
        for part, reason in ((slice(0, cut), None), (slice(cut, None), "stop")):
            ids, scores = choice["token_ids"][part], {"content": entries[part]}
            chunk = {"choices": [{"index": 0, "token_ids": ids, "logprobs": scores, "finish_reason": reason}]}
            sent = {"stream": True, "generate_chunk": chunk, "stream_state": state, "completion_request": body,
                    "prompt_token_ids": rendered["token_ids"]}  # fmt: skip
            found = decode(served, TEXT, **sent).json()
            state, (piece,) = found["stream_state"], found["chunk"]["choices"]
            text += piece["text"]
            offsets += piece["logprobs"]["text_offset"]
            tokens += piece["logprobs"]["tokens"]
        assert text == coupled["text"]
        assert (offsets, tokens) == (coupled["logprobs"]["text_offset"], coupled["logprobs"]["tokens"])


def test_several_prompts_are_one_answer(folder: Path, tokenizer: Tokenizer):
    served = serving(folder, tokenizer.encode("Hi"), None)
    one = {"request_id": "cmpl-1", "choices": [{"token_ids": tokenizer.encode("Hi")}], "kv_transfer_params": {"a": 1}}
    other = {**one, "kv_transfer_params": {"a": 2}}
    found = decode(served, TEXT, generate_responses=[one, one], prompt_tokens=[3, 4]).json()
    assert [choice["text"] for choice in found["choices"]] == ["Hi", "Hi"]
    assert [choice["index"] for choice in found["choices"]] == [0, 1]
    assert (found["id"], found["usage"]["prompt_tokens"], found["kv_transfer_params"]) == ("cmpl-1", 7, {"a": 1})
    found = decode(served, TEXT, generate_responses=[one, other]).json()
    assert "kv_transfer_params" not in found
    assert decode(served, TEXT, generate_responses=[one, one], prompt_tokens=[3]).status_code == 400
    assert decode(served, TEXT, generate_responses=[]).json()["error"]["param"] == "generate_responses"


def test_an_answer_of_another_server_is_decoded_without_its_request(folder: Path, tokenizer: Tokenizer):
    """Only what the body says is known: all log-probabilities are shown, and `stop` is the finish reason."""
    served = serving(folder, [], None)
    token_ids = [*tokenizer.encode("Hi"), 2]
    scores = {"content": [{"token": f"token_id:{each}", "logprob": -0.5, "rank": 1} for each in token_ids]}
    choice = {"token_ids": token_ids, "logprobs": scores, "routed_experts": None}
    response = {"request_id": "a", "choices": [choice], "metrics": {"x": 1}, "prompt_logprobs": [None]}
    found = decode(served, generate_response=response).json()
    assert found["choices"][0]["message"]["content"] == "Hi"
    assert found["choices"][0]["finish_reason"] == "stop"
    names = [each["token"] for each in found["choices"][0]["logprobs"]["content"]]
    assert names == [tokenizer.token_text(each) for each in token_ids]
    assert (found["metrics"], found["prompt_logprobs"]) == ({"x": 1}, [None])


def test_a_stop_string_that_another_server_found_in_the_reasoning_ends_it_there(folder: Path, tokenizer: Tokenizer):
    served = serving(folder, [], find("hermes"))
    choice = {"token_ids": tokenizer.encode("<think>\nLet me STOP"), "finish_reason": "stop", "stop_reason": "STOP"}
    found = decode(served, chat_request={"messages": MESSAGES}, generate_response={"choices": [choice]}).json()
    (shown,) = found["choices"]
    assert (shown["message"]["reasoning"].strip(), shown["message"]["content"]) == ("Let me", "")
    assert (shown["finish_reason"], shown["stop_reason"]) == ("stop", "STOP")
    assert found["usage"]["completion_tokens"] == len(choice["token_ids"])


def test_a_long_body_is_decoded(folder: Path, tokenizer: Tokenizer):
    """It is read in another process, which keeps what is decoded, and of the request what its answer depends on."""
    served = serving(folder, [], find("hermes"))
    token_ids = tokenizer.encode(REASONING + " word" * 500)
    scores = {"content": [{"token_id": each, "logprob": -0.5, "rank": 1, "top_logprobs": []} for each in token_ids]}
    body = {"messages": [{"role": "user", "content": "Hello " * 5000}], "tools": FUNCTIONS, "logprobs": True}
    choice = {"token_ids": token_ids, "logprobs": scores}
    found = decode(served, chat_request=body, generate_response={"choices": [choice]}).json()["choices"][0]
    assert found["message"]["reasoning"] == "Let me see 日本."
    assert len(found["logprobs"]["content"]) == len(token_ids)


def test_what_cannot_be_decoded_is_refused_before_anything_is(folder: Path, tokenizer: Tokenizer):
    served = serving(folder, [], find("hermes"), model={"max_model_len": 64, "max_logprobs": 2})
    asked = {"messages": MESSAGES}
    token = {"token_id": 5, "logprob": -1.0, "rank": 1}

    def answer(choice: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {"chat_request": asked, "generate_response": {"choices": [choice], **fields}}

    def chunk(choice: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {"chat_request": asked, "stream": True, "generate_chunk": {"choices": [choice]}, **fields}

    place = "generate_response.choices[0]"
    for body, param in (
        ({"chat_request": asked}, "generate_response"),
        ({"generate_response": {"choices": []}}, "chat_request"),
        (answer({"token_ids": [5] * 65}), f"{place}.token_ids"),
        (answer({"token_ids": [-1]}), f"{place}.token_ids[0]"),
        (answer({"token_ids": [400]}), f"{place}.token_ids"),
        (answer({"token_ids": [5], "logprobs": {"content": [token] * 65}}), f"{place}.logprobs.content"),
        (
            answer({"token_ids": [5], "logprobs": {"content": [{**token, "top_logprobs": [token] * 3}]}}),
            f"{place}.logprobs.content[0].top_logprobs",
        ),
        (answer({}, prompt_token_ids=[5] * 65), "generate_response.prompt_token_ids"),
        (answer({}, output_mode="text"), "generate_response.output_mode"),
        ({"chat_request": asked, "generate_response": {"choices": [{}] * 129}}, "generate_response.choices"),
        ({**answer({}), "stream_state": {}}, "stream_state"),
        ({**answer({}), "chat_request": {**asked, "n": 0}}, "chat_request.n"),
        ({**answer({}), "chat_request": {**asked, "best_of": 3}}, "chat_request.best_of"),
        ({"chat_request": asked, "stream": True}, "generate_chunk"),
        (chunk({}, chat_request={**asked, "stop": ["x"]}), "chat_request.stop"),
        (chunk({}, generate_chunk={"choices": [{}, {}]}), "generate_chunk.choices"),
        (
            chunk({}, stream_state={"output_token_ids": [5, 5], "output_chunk_lens": [1]}),
            "stream_state.output_chunk_lens",
        ),
        (
            chunk({"token_ids": [5]}, stream_state={"output_token_ids": [5] * 64, "output_chunk_lens": [64]}),
            "generate_chunk",
        ),
        (chunk({}, stream_state={"prev_tokens": [5], "read_offset": 2}), "stream_state.read_offset"),
    ):
        found = decode(served, **body)
        assert (found.status_code, found.json()["error"]["param"]) == (400, param), found.text
    assert decode(served, **answer({}), model="other").json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("named", "asked", "shown"), [(None, "alias", "alias"), (None, "other", MODEL), ("alias", "other", "alias")]
)
def test_the_model_is_the_named_one_or_that_of_the_request(folder: Path, named: str | None, asked: str, shown: str):
    """The server that generates may serve it under another name."""
    served = serving(folder, [], find("hermes"))
    request = {"model": asked, "messages": MESSAGES}
    found = decode(served, model=named, chat_request=request, generate_response={"choices": [{"token_ids": [5]}]})
    assert found.json()["model"] == shown


def test_a_state_without_a_parser_stays_small(folder: Path, tokenizer: Tokenizer):
    served = serving(folder, [], None)
    state = None
    for _ in range(20):
        chunk = {"choices": [{"token_ids": tokenizer.encode("wärm ") * 10}]}
        state = decode(served, stream=True, generate_chunk=chunk, stream_state=state).json()["stream_state"]
    assert len(state["prev_tokens"]) < 20
    assert state["output_token_ids"] == []


def test_a_chunk_of_usage_is_passed_on_and_a_finish_reason_alone_ends_the_text(folder: Path, tokenizer: Tokenizer):
    served = serving(folder, [], None)
    begun = tokenizer.encode("😀")[:1]
    first = decode(served, stream=True, generate_chunk={"choices": [{"token_ids": begun}]}).json()
    assert first["chunk"]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    ending = {"choices": [{"token_ids": [], "finish_reason": "length"}]}
    last = decode(served, stream=True, generate_chunk=ending, stream_state=first["stream_state"]).json()
    assert last["chunk"]["choices"][0]["delta"] == {"content": "\ufffd"}
    assert last["chunk"]["choices"][0]["finish_reason"] == "length"
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
    found = decode(served, stream=True, generate_chunk=usage, stream_state=last["stream_state"]).json()
    assert (found["chunk"]["choices"], found["chunk"]["usage"]) == ([], usage["usage"])
    assert found["stream_state"] == last["stream_state"]


def test_generated_tokens_come_with_their_text_or_message(folder: Path, tokenizer: Tokenizer):
    """`output_mode` was refused as unknown to this server, and before that ignored."""
    served = serving(folder, tokenizer.encode(REASONING + CALL), find("hermes"))
    body = {"model": MODEL, "messages": MESSAGES, "tools": FUNCTIONS, "logprobs": True}
    rendered = served.post(f"{CHAT}/render", body).json()
    (choice,) = served.post(GENERATE, {**rendered, "output_mode": "text"}).json()["choices"]
    assert choice["text"] == REASONING + CALL
    assert choice["logprobs"]["content"][0]["token"] == tokenizer.token_text(choice["token_ids"][0])
    chunks = events(served.post(GENERATE, {**rendered, "output_mode": "text", "stream": True}).text)
    texts = [json.loads(each)["choices"][0]["text"] for each in chunks if each != "[DONE]"]
    assert "".join(texts) == REASONING + CALL
    (choice,) = served.post(GENERATE, {**rendered, "output_mode": "derender"}).json()["choices"]
    (coupled,) = served.post(CHAT, body).json()["choices"]
    for shown in (choice, coupled):
        shown["message"]["tool_calls"][0]["id"] = ""
    assert (choice["message"], choice["finish_reason"]) == (coupled["message"], "tool_calls")
    refused = served.post(GENERATE, {**rendered, "output_mode": "derender", "stream": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "output_mode")


def test_a_stop_string_is_held_back_in_a_stream_of_texts(folder: Path, tokenizer: Tokenizer):
    served = serving(folder, tokenizer.encode("Hello STOP more"), None)
    body = {"token_ids": [5], "stop": ["STOP"], "output_mode": "text", "stream": True}
    chunks = [json.loads(each) for each in events(served.post(GENERATE, body).text) if each != "[DONE]"]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello "
    assert chunks[-1]["choices"][0]["stop_reason"] == "STOP"


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_ended_by_its_id(folder: Path, stream: bool):
    """A router that has lost interest has no connection to close: it may be another process."""
    served = Served(folder, FakeEngine(pace=lambda: asyncio.Event().wait()))

    async def run() -> None:
        async with served.client() as client:
            body = {"token_ids": [5], "request_id": "mine", "stream": stream}
            generating = asyncio.ensure_future(client.post(GENERATE, json=body))
            while not served.engine.open_requests:
                await asyncio.sleep(0)
            answer = await client.post("/inference/v1/abort_requests", json={"request_ids": ["other", "mine"]})
            assert answer.json() == {"status": "ok", "aborted": ["mine"]}
            ended = await generating
            assert (ended.status_code, ended.json()["error"]["code"]) == (409, "request_aborted")
        assert len(served.engine.aborted) == 1

    asyncio.run(run())


def test_a_null_for_the_variables_of_the_template_is_none(served: Served):
    """Before, an explicit null was a 500."""
    assert served.chat(chat_template_kwargs=None).status_code == 200


@pytest.mark.parametrize("n", [2, slow(1)])
def test_the_chunks_of_a_stream_are_decoded_as_they_are(folder: Path, tokenizer: Tokenizer, n: int):
    served = serving(folder, tokenizer.encode(REASONING + CALL), find("hermes"))
    body = {"model": MODEL, "messages": MESSAGES, "tools": FUNCTIONS, "n": n, "logprobs": True, "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    coupled = served.post(CHAT, {**body, "stream": False, "stream_options": None}).json()
    rendered, chunks = generated(served, CHAT, body, stream=True)
    states: dict[int, Any] = {}
    contents: dict[int, str] = dict.fromkeys(range(n), "")
    usages = []
    for chunk in chunks:
        index = chunk["choices"][0]["index"] if chunk["choices"] else None
        sent = {"stream": True, "generate_chunk": chunk, "stream_state": states.get(index), "chat_request": body}
        found = decode(served, **sent, prompt_token_ids=rendered["token_ids"]).json()
        states[index] = found["stream_state"]
        usages.append(found["chunk"].get("usage"))
        for choice in found["chunk"]["choices"]:
            contents[choice["index"]] += choice["delta"].get("content") or ""
    assert list(contents.values()) == [choice["message"]["content"] for choice in coupled["choices"]]
    counts = ("prompt_tokens", "completion_tokens")
    assert [usages[-1][name] for name in counts] == [coupled["usage"][name] for name in counts]
    assert states.keys() == {*range(n), None}
