"""/v1/responses: the order of events, the items, what is stored, and what is refused."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import threading
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response as OpenAIResponse

from stoker.server.endpoint import LONG_BODY_BYTES
from stoker.server.protocol.lark_grammar import NotRegular
from stoker.server.protocol.lark_regex import regex_of
from stoker.server.run import check_server
from stoker.server.stored.store import Limits, SqliteStore, Stored, StoreProblem, open_store

from ..fakes import FakeEngine
from ..tiny_tokenizer import write_tokenizer
from .deployment import MODEL, Served, resolved
from .dialects import CALL, THINKS, named_events, prompts, speaking

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
PATCH_GRAMMAR = 'start: "*** Begin" LF line+ "*** End"\nline: ("+" | "-") /(.*)/ LF -> text\n%import common.LF\n'
CHANGING = ("id", "item_id", "created_at", "completed_at", "call_id")


def ask(served: Served, **fields: Any) -> Any:
    return served.post("/v1/responses", {"model": MODEL, "input": "Hi", **fields})


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_ids(each) for name, each in value.items() if name not in CHANGING}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("tokens_per_output", [1, 5, 100])
def test_every_event_is_in_order_and_the_last_one_has_the_complete_response(folder: Path, tokens_per_output: int):
    served = speaking(folder, THINKS + "Now:" + CALL, tokens_per_output=tokens_per_output)
    events = named_events(ask(served, tools=[WEATHER], stream=True).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [kind.removeprefix("response.") for kind, _ in groupby(event["type"] for event in events)]
    assert kinds == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    final = events[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call"]
    assert [event["item"] for event in events if event["type"].endswith("item.done")] == final["output"]
    for index, item in enumerate(final["output"]):
        own = [event for event in events if event.get("output_index") == index]
        assert {event.get("item_id", item["id"]) for event in own} == {item["id"]}
        text = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        assert text == (item["arguments"] if "arguments" in item else item["content"][0]["text"])
    reasoning, message, call = final["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert message["content"][0]["text"] == "Now:"
    assert (call["name"], call["arguments"]) == ("weather", '{"city": "Rome"}')
    OpenAIResponse.model_validate(final)
    whole = ask(served, tools=[WEATHER]).json()
    assert without_ids(whole) == without_ids(final)


def test_summaries_and_opaque_reasoning_are_sent_to_clients_that_ask(folder: Path):
    served = speaking(folder, THINKS + "Ok")
    fields = {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"], "store": False}
    events = named_events(ask(served, stream=True, **fields).text)
    deltas = [event["delta"] for event in events if event["type"] == "response.reasoning_summary_text.delta"]
    assert "".join(deltas) == "Let me see."
    item = events[-1]["response"]["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": "Let me see."}]
    assert "see" not in item["encrypted_content"]


def test_opaque_reasoning_calls_and_outputs_become_messages_of_the_template(folder: Path, tmp_path: Path):
    template = (
        "{% for m in messages %}[{{ m.role }}|{{ m.reasoning or '' }}|{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}|{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}]"
        "{% endfor %}"
    )
    served = speaking(write_tokenizer(tmp_path, template=template), THINKS + "Ok")
    first = ask(served, include=["reasoning.encrypted_content"]).json()
    reasoning = {**first["output"][0], "content": None, "summary": []}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        reasoning,
        {"type": "function_call", "call_id": "1", "name": "f", "namespace": "n", "arguments": '{"x":1}'},
        {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": "in"},
        {"type": "function_call_output", "call_id": "1", "output": "one"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "two"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "of another server"},
    ]
    answer = ask(served, input=items, instructions="sys")
    assert answer.status_code == 200, answer.text
    assert prompts(served)[-1] == (
        '[system||sys][user||a][assistant|Let me see.||n__f {"x": 1}|g {"input": "in"}][tool||one][tool||two]'
    )


def test_custom_tools_are_called_with_one_text(folder: Path):
    arguments = json.dumps({"input": 'a "b"\n\u00e9\U0001f600'})
    served = speaking(folder, f'<tool_call>\n{{"name": "box__patch", "arguments": {arguments}}}\n</tool_call>')
    tool = {"type": "namespace", "name": "box", "description": "", "tools": [{"type": "custom", "name": "patch"}]}
    events = named_events(ask(served, tools=[tool], stream=True).text)
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    item = events[-1]["response"]["output"][0]
    assert "".join(deltas) == item["input"] == 'a "b"\n\u00e9\U0001f600'
    assert (item["type"], item["name"], item["namespace"]) == ("custom_tool_call", "patch", "box")
    assert len(deltas) > 3


@pytest.mark.parametrize("filler", ["", "x" * LONG_BODY_BYTES])
def test_the_prompt_has_the_grammar_of_a_tool_and_not_the_pattern_made_of_it(tmp_path: Path, filler: str):
    """Before, it had both: with a grammar whose rules refer to themselves, a prompt of 12 000 tokens."""
    template = "{{ tools[0].function | tojson }}"
    served = speaking(write_tokenizer(tmp_path, template=template), "Ok")
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "a" | "(" start ")"'}
    tool = {"type": "custom", "name": "g", "description": "D", "format": grammar}
    answer = ask(served, tools=[tool], metadata={"x": filler})
    assert answer.status_code == 200, answer.text
    function = json.loads(prompts(served)[-1])
    assert function["description"] == f"D\n\nThe input obeys this Lark grammar:\n{grammar['definition']}"
    assert function["parameters"]["properties"] == {"input": {"type": "string"}}
    assert function["strict"] is True


def test_a_grammar_of_a_tool_is_a_pattern_of_its_input():
    pattern = regex_of(PATCH_GRAMMAR)
    assert re.fullmatch(pattern, "*** Begin\n+a\n-b\n*** End")
    assert not re.fullmatch(pattern, "*** Begin\na\n*** End")
    for grammar, problem in {
        'start: "(" start ")"': "without an end",
        "start: a": "no rule `a`",
        "x: /a/": "no rule `start`",
        'start: ("a"': "`)` is missing",
        'start: "a"i': "ignore the case",
        'start: "a" ->': "`->` needs a name",
        "start.": "a rule must be `name: ...`",
        f"start: {'(' * 2000}/a/{')' * 2000}": "nested too deeply",
    }.items():
        with pytest.raises(NotRegular, match=problem.replace("(", r"\(").replace(")", r"\)")):
            regex_of(grammar)


def test_rules_in_themselves_are_nested_a_few_times():
    """Lists, which refer to themselves at one end, are repeated without a limit."""
    grammar = """
start: expression
expression: term | expression ("+" | "-") term
term: factor | factor "*" term
factor: /[0-9]+/ | "(" expression ")" -> group
"""
    pattern = regex_of(grammar)
    assert len(pattern) < 1 << 14
    for text in ("1", "1+2*3", "(1+2)*(3-4)", "((1))", "+".join("12" for _ in range(100)), "*".join("7" * 50)):
        assert re.fullmatch(pattern, text), text
    for text in ("", "1+", "(1", "()", "1)", "((1)"):
        assert not re.fullmatch(pattern, text), text
    assert re.fullmatch(regex_of('start: "(" start? ")"'), "(" * 9 + ")" * 9)
    assert not re.fullmatch(regex_of('start: "(" start? ")"'), "(" * 8 + ")" * 9)
    assert re.fullmatch(regex_of("start: (/a/ start)?"), "a" * 8)


def test_tools_that_only_other_servers_run_are_skipped_and_named(folder: Path):
    answer = ask(speaking(folder, "Ok"), tools=[{"type": "web_search"}, WEATHER, {"type": "image_generation"}])
    assert answer.status_code == 200
    assert answer.headers["x-stoker-skipped-tools"] == "web_search, image_generation"
    for kind in ("a\U0001f600", "a\r\nset-cookie: b", "x " * 5000, ""):
        answer = ask(speaking(folder, "Ok"), tools=[{"type": kind}], stream=True)
        assert (answer.status_code, answer.headers["x-stoker-skipped-tools"]) == (200, "other")
    answer = ask(speaking(folder, "Ok"), tools=[{"type": f"t{number}"} for number in range(200)])
    assert len(answer.headers["x-stoker-skipped-tools"].split(", ")) == 16


def test_an_effort_that_the_template_does_not_read_is_named_in_a_header(folder: Path):
    answer = ask(speaking(folder, "Ok"), reasoning={"effort": "high", "summary": "auto"})
    assert answer.status_code == 200  # enable_thinking is a switch of this template
    assert answer.json()["reasoning"]["effort"] == "high"


@pytest.mark.parametrize(("finish", "status"), [(3, "incomplete"), (None, "completed")])
def test_the_end_of_a_response_is_its_status(folder: Path, finish: int | None, status: str):
    fields = {} if finish is None else {"max_output_tokens": finish}
    served = speaking(folder, "Hello, world!")
    events = named_events(ask(served, stream=True, **fields).text)
    response = events[-1]["response"]
    assert events[-1]["type"] == f"response.{status}"
    assert response["status"] == response["output"][-1]["status"] == status
    assert response["incomplete_details"] == ({"reason": "max_output_tokens"} if finish else None)
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@pytest.mark.parametrize(("is_shown", "expected"), [(True, (3, 2)), (False, (0, 0))])
def test_tokens_read_from_the_cache_and_written_to_it_are_counted(
    folder: Path, is_shown: bool, expected: tuple[int, int]
):
    served = speaking(folder, "Ok", enable_prompt_tokens_details=is_shown)
    served.engine.num_cached_tokens, served.engine.num_newly_cached_tokens = 3, 2
    streamed = named_events(ask(served, stream=True).text)[-1]["response"]
    for response in (ask(served).json(), streamed):
        counts = response["usage"]["input_tokens_details"]
        assert (counts["cached_tokens"], counts["cache_write_tokens"]) == expected


def test_a_call_that_the_limit_cut_off_is_incomplete(folder: Path):
    for tools in ([WEATHER], [{"type": "custom", "name": "weather"}]):
        call = '<tool_call>\n{"name": "weather", "arguments": {"input": "a long text"}}\n</tool_call>'
        served = speaking(folder, call)
        response = ask(served, tools=tools, max_output_tokens=45).json()
        assert (response["status"], response["output"][-1]["status"]) == ("incomplete", "incomplete")
        assert ask(served, tools=tools).json()["output"][-1]["status"] == "completed"


def test_a_call_that_the_limit_cut_off_in_deep_arguments_is_incomplete(folder: Path):
    served = speaking(folder, CALL.replace('"Rome"', "[" * 3000), model={"max_model_len": 100_000})
    served.engine._info = FakeEngine(max_model_len=100_000, num_blocks=10_000)._info
    tool = {"type": "function", "name": "weather", "parameters": {}}
    whole = ask(served, tools=[tool], max_output_tokens=2000).json()
    assert (whole["output"][0]["status"], whole["status"]) == ("incomplete", "incomplete")


def test_the_probe_of_a_coding_agent_is_answered(folder: Path):
    for probe in ({"input": []}, {"input": ""}):
        answer = ask(speaking(folder, "Ok"), **probe, max_output_tokens=1)
        assert answer.status_code == 200, answer.text


def test_an_engine_that_dies_ends_the_stream_with_response_failed(folder: Path):
    served = speaking(folder, "Hello, world! " * 5)
    engine = served.engine

    async def pace() -> None:
        if len(engine.requests) and engine._running and paced.append(1) is None and len(paced) > 4:
            engine.die()

    paced: list[int] = []
    engine._pace = pace
    events = named_events(ask(served, stream=True).text)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert events[-2]["type"] == "response.output_item.done"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": 7}, "input"),
        ({"input": [{"type": "x_call"}]}, "input[0].type"),
        ({"input": [{"type": "computer_call_output", "call_id": "c", "output": {}}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [{"type": "custom", "name": "x", "format": {"type": "grammar"}}]}, "tools[0].format"),
        ({"tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"conversation": "c"}, "conversation"),
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"background": True, "stream": True}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_a_wrong_field_is_a_400_with_its_place(folder: Path, fields: dict[str, Any], param: str):
    answer = ask(speaking(folder, "Ok"), **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.effect("server.responses_store")
@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_stored_response_is_continued_read_and_deleted(folder: Path, tmp_path: Path, where: str):
    store = "memory" if where == "memory" else str(tmp_path / "responses.sqlite")
    served = speaking(folder, "Fine.", responses_store=store)
    first = ask(served, input="How are you?", metadata={"a": "b"}).json()
    assert first["store"] is True
    second = ask(served, input="Really?", previous_response_id=first["id"], instructions="Be kind").json()
    assert prompts(served)[-1].startswith(
        "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nHow are you?<|im_end|>\n<|im_start|>assistant\nFine."
    )
    path = f"/v1/responses/{second['id']}"
    if where == "file":  # also after a restart
        served = speaking(folder, "Fine.", responses_store=store)
    assert served.get(path).json() == second
    items = served.get(f"{path}/input_items").json()
    (item,) = items["data"]
    assert {**item, "id": "i"} == {
        "id": "i", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "Really?"}]
    }  # fmt: skip
    assert served.request("DELETE", path).json() == {"id": second["id"], "object": "response.deleted", "deleted": True}
    assert served.get(path).status_code == 404
    unstored = ask(served, store=False).json()
    assert served.get(f"/v1/responses/{unstored['id']}").status_code == 404


@pytest.mark.slow
def test_a_long_input_is_stored_too(folder: Path):
    served = speaking(folder, "Ok", responses_store="memory", model={"max_model_len": 100_000})
    served.engine._info = FakeEngine(max_model_len=100_000, num_blocks=10_000)._info
    text = "word " * 15_000
    first = ask(served, input=text)
    assert first.status_code == 200, first.text
    items = served.get(f"/v1/responses/{first.json()['id']}/input_items").json()["data"]
    assert items[0]["content"][0]["text"] == text
    ask(served, input="And?", previous_response_id=first.json()["id"])
    ask(served, input=text, previous_response_id=first.json()["id"])
    assert [prompt.count("word word") > 1000 for prompt in prompts(served)] == [True] * 3
    assert prompts(served)[2].index("Ok") < prompts(served)[2].rindex("word")


def test_a_key_does_not_see_what_another_one_stored(folder: Path):
    served = speaking(folder, "Fine.", responses_store="memory", api_key=["one", "two"])
    headers = [{"authorization": f"Bearer {key}"} for key in ("one", "two")]
    made = served.post("/v1/responses", {"input": "Hi"}, headers=headers[0]).json()
    statuses = [served.get(f"/v1/responses/{made['id']}", headers=each).status_code for each in headers]
    assert statuses == [200, 404]


@pytest.mark.effect("server.max_stored_responses")
@pytest.mark.effect("server.max_stored_bytes")
@pytest.mark.effect("server.stored_response_ttl")
@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.quick_cases(1)
def test_the_store_is_bounded(folder: Path, tmp_path: Path, where: str):
    def kept(**options: Any) -> list[bool]:
        store = "memory" if where == "memory" else str(tmp_path / f"{sorted(options)[0]}.sqlite")
        served = speaking(folder, "Fine.", responses_store=store, **options)
        made = [ask(served).json()["id"] for _ in range(3)]
        return [served.get(f"/v1/responses/{each}").status_code == 200 for each in made]

    assert kept(max_stored_responses=2) == [False, True, True]
    assert kept(max_stored_bytes=10) == [False] * 3
    assert kept(stored_response_ttl=1e-9) == [False] * 3
    assert kept(max_stored_bytes=1 << 20) == [True] * 3


@pytest.mark.parametrize("limits", [{"num_responses": 4}, {"num_bytes": 480}], ids=str)
@pytest.mark.parametrize("where", ["file", "memory"])
def test_a_key_that_fills_the_store_removes_its_own_responses(tmp_path: Path, where: str, limits: dict[str, int]):
    path = "memory" if where == "memory" else str(tmp_path / "responses.sqlite")
    store = open_store(path, Limits(**{"num_responses": 99, "num_bytes": 1 << 20, "ttl_s": 60, **limits}))

    def put(owner: str, name: str) -> None:
        assert store.put(owner, Stored({"id": name, "output": [], "text": "x" * 60}, [], 0))

    put("quiet", "q")
    for number in range(9):
        put("busy", f"b{number}")
    put("busy", "b7")  # again: it is the newest
    if where == "file":
        store.close()
        store = open_store(path, Limits(**{"num_responses": 99, "num_bytes": 1 << 20, "ttl_s": 60, **limits}))
    put("busy", "b9")
    assert store.get("quiet", "q") is not None
    assert [name for name in (f"b{number}" for number in range(10)) if store.get("busy", name)] == ["b7", "b8", "b9"]
    assert store.delete("busy", "b9")
    put("busy", "c")
    assert store.get("busy", "b8") is not None  # the room of what was deleted is used again
    store.close()


@pytest.mark.parametrize("where", ["private", "memory"])
def test_events_are_left_out_if_they_do_not_fit_beside_the_response(tmp_path: Path, where: str):
    path = tmp_path / where
    store = open_store("memory" if where == "memory" else str(path), Limits(num_responses=9, num_bytes=200, ttl_s=60))
    assert where == "memory" or path.stat().st_mode & 0o777 == 0o600
    stored = Stored({"id": "a", "output": []}, [], 0)
    for events in (b"x" * 100, b"x" * 200):
        assert store.put("key", stored, events)
        assert store.events("key", "a") == (events if len(events) == 100 else None)
        assert store.events("other", "a") is None
        assert store.get("key", "a") == stored
    store.close()


def test_a_response_in_the_background_is_read_when_it_is_complete_or_cancelled(folder: Path):
    held = asyncio.Event()
    served = speaking(folder, "Fine.", responses_store="memory")
    served.engine._pace = held.wait

    async def run() -> list[str]:
        async with served.client() as client:
            body = {"model": MODEL, "input": "Hi", "background": True}
            first, second = [(await client.post("/v1/responses", json=body)).json() for _ in range(2)]
            cancelled = await client.post(f"/v1/responses/{first['id']}/cancel")
            held.set()
            for _ in range(1000):
                found = (await client.get(f"/v1/responses/{second['id']}")).json()
                if found["status"] not in ("queued", "in_progress"):
                    break
                await asyncio.sleep(0.01)
            return [
                first["status"],
                cancelled.json()["status"],
                found["status"],
                found["output"][0]["content"][0]["text"],
            ]

    assert asyncio.run(run()) == ["queued", "cancelled", "completed", "Fine."]


def test_a_response_in_the_background_over_its_time_has_failed(folder: Path):
    served = speaking(folder, "Fine.", responses_store="memory", request_timeout="50ms")
    served.engine._pace = asyncio.Event().wait  # which is never set

    async def run() -> dict[str, Any]:
        async with served.client() as client:
            body = {"model": MODEL, "input": "Hi", "background": True}
            found = (await client.post("/v1/responses", json=body)).json()
            while found["status"] in ("queued", "in_progress"):
                await asyncio.sleep(0.01)
                found = (await client.get(f"/v1/responses/{found['id']}")).json()
            return found

    found = asyncio.run(run())
    assert found["status"] == "failed"
    assert "0.05 s, its time limit" in found["error"]["message"]
    assert len(served.engine.aborted) == 1


def test_the_stream_of_a_response_in_the_background_can_be_left_and_continued(folder: Path):
    text = "Fine. " * 60
    held = asyncio.Event()
    served = speaking(folder, text, responses_store="memory", api_key=["one", "two"])
    one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
    num_steps = 0

    async def pace() -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps > 5:
            await held.wait()

    served.engine._pace = pace

    async def run() -> tuple[str, list[str], list[int]]:
        async with served.client() as client:
            body = {"input": "Hi", "background": True, "stream": True}
            left = asyncio.ensure_future(client.post("/v1/responses", json=body, headers=one))
            while num_steps <= 5:
                await asyncio.sleep(0.001)
            left.cancel()
            ((_, response_id),) = served.service.background._running
            path = f"/v1/responses/{response_id}"
            now = (await client.get(path, headers=one)).json()["status"]
            following = asyncio.ensure_future(client.get(f"{path}?stream=true", headers=one))
            await asyncio.sleep(0)
            held.set()
            texts = [(await following).text]
            for after in (-1, 3, 130, 10_000):
                texts.append((await client.get(f"{path}?stream=true&starting_after={after}", headers=one)).text)
            wrong = [(two, "stream=true"), (one, "stream=true&starting_after=x")]
            return now, texts, [(await client.get(f"{path}?{query}", headers=key)).status_code for key, query in wrong]

    status, (whole, *again), refused = asyncio.run(run())
    events = named_events(whole)
    assert status == "in_progress"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == text
    assert len(events) > 256  # in several blocks
    assert [named_events(each) for each in again] == [events, events[4:], events[131:], []]
    assert refused == [404, 400]
    assert served.service.background.log_memory._num_bytes == 0


def test_a_cancelled_stream_in_the_background_ends_and_logs_are_bounded(folder: Path):
    def ended(**options: Any) -> tuple[str, list[str]]:
        """The status at the end, and the types of the last events of two readers."""
        served = speaking(folder, "Fine. " * 60, responses_store="memory", **options)
        held = asyncio.Event()
        served.engine._pace = held.wait

        async def run() -> tuple[str, list[str]]:
            async with served.client() as client:
                body = {"input": "Hi", "background": True, "stream": True}
                first = asyncio.ensure_future(client.post("/v1/responses", json=body))
                while not served.engine.requests:
                    await asyncio.sleep(0.001)
                ((_, response_id),) = served.service.background._running
                path = f"/v1/responses/{response_id}"
                if options:
                    held.set()
                else:
                    await client.post(f"{path}/cancel")
                texts = [(await first).text, (await client.get(f"{path}?stream=true")).text]
                while served.service.background._running:
                    await asyncio.sleep(0.001)
                last = [json.loads(text.rpartition("data: ")[2] or text).get("type", "error") for text in texts]
                return (await client.get(path)).json()["status"], last

        return asyncio.run(run())

    assert ended() == ("cancelled", ["response.queued"] * 2)
    assert ended(max_stored_bytes=6000) == ("completed", ["error"] * 2)


@pytest.mark.parametrize(("name", "cause"), [("absent/store", "no such file"), ("text", "not a database")])
def test_a_store_that_cannot_be_opened_is_said_before_the_weights_load(
    folder: Path, tmp_path: Path, name: str, cause: str
):
    (tmp_path / "text").write_text("not SQLite " * 100)
    with pytest.raises(StoreProblem, match=f"`server.responses_store`: .*: .*{cause}"):
        check_server(resolved(folder, responses_store=str(tmp_path / name)))


def test_a_response_in_the_background_that_cannot_be_stored_has_failed(folder: Path, tmp_path: Path):
    """It was shown as queued until it expired."""
    served = speaking(folder, "Fine.", responses_store=str(tmp_path / "store"))
    store = served.service.responses
    assert isinstance(store, SqliteStore)
    put = store.put

    def is_full(owner: str, stored: Stored, events: bytes | None = None) -> bool:
        if stored.response["status"] == "completed":
            raise sqlite3.OperationalError("database or disk is full")
        return put(owner, stored, events)

    store.put = is_full  # type: ignore[method-assign]

    async def run() -> dict[str, Any]:
        async with served.client() as client:
            body = {"model": MODEL, "input": "Hi", "background": True}
            found = (await client.post("/v1/responses", json=body)).json()
            while served.service.background._running:
                await asyncio.sleep(0.001)
            return (await client.get(f"/v1/responses/{found['id']}")).json()

    found = asyncio.run(run())
    assert (found["status"], "could not store it" in found["error"]["message"]) == ("failed", True)


def test_the_log_of_a_response_that_is_cancelled_twice_ends(folder: Path):
    """The second one came while the response was stored: the streams of its events never ended."""
    served = speaking(folder, "Fine.", responses_store="memory")
    served.engine._pace = asyncio.Event().wait  # which is never set
    storing = threading.Event()

    async def run() -> list[str]:
        async with served.client() as client:
            body = {"input": "Hi", "background": True, "stream": True}
            following = asyncio.ensure_future(client.post("/v1/responses", json=body))
            while not served.engine.requests:
                await asyncio.sleep(0.001)
            (running,) = served.service.background._running.values()
            served.service.writer.submit(storing.wait)
            running.task.cancel()
            while running.response()["status"] != "cancelled":
                await asyncio.sleep(0.001)
            running.task.cancel()
            await asyncio.sleep(0.01)
            storing.set()
            events = named_events((await asyncio.wait_for(following, 60)).text)
            return [event["type"] for event in events]

    assert asyncio.run(run()) == ["response.created", "response.queued"]
    assert served.service.background.log_memory._num_bytes == 0


def test_the_id_of_a_response_is_its_own(folder: Path):
    """It was the client's id of the request: one that is repeated replaced the stored response."""
    served = speaking(folder, "Fine.", responses_store="memory")
    made = [
        served.post("/v1/responses", {"input": "Hi", "request_id": "a"}, headers={"x-request-id": "trace-1"}).json()
        for _ in range(2)
    ]
    assert made[0]["id"] != made[1]["id"]
    assert served.get(f"/v1/responses/{made[0]['id']}").json() == made[0]


def test_a_stored_response_is_read_as_it_is(folder: Path):
    served = speaking(folder, "Fine.", responses_store="memory")
    error = served.get(f"/v1/responses/{ask(served).json()['id']}?include=x").json()["error"]
    assert error["message"].startswith("`include` is not supported here: ")


def test_a_number_in_a_query_may_have_any_length(folder: Path):
    served = speaking(folder, "Fine.", responses_store="memory")
    path = f"/v1/responses/{ask(served).json()['id']}"
    for query in ("?stream=true&starting_after=", "/input_items?limit="):
        assert served.get(f"{path}{query}{'9' * 5000}").status_code == 400


def test_only_streams_in_the_background_are_streamed_again(folder: Path):
    served = speaking(folder, "Fine.", responses_store="memory")
    made = named_events(ask(served, stream=True).text)[-1]["response"]
    answer = served.get(f"/v1/responses/{made['id']}?stream=true")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "events_not_stored")


def test_input_tokens_is_the_length_of_the_prompt(folder: Path):
    served = speaking(folder, "Ok")
    counted = served.post("/v1/responses/input_tokens", {"model": MODEL, "input": "Hi", "tools": [WEATHER]}).json()
    used = ask(served, tools=[WEATHER]).json()["usage"]["input_tokens"]
    assert counted == {"object": "response.input_tokens", "input_tokens": used}


def test_log_probabilities_are_those_of_the_text(folder: Path):
    answer = ask(speaking(folder, THINKS + "Fine."), include=["message.output_text.logprobs"], top_logprobs=1).json()
    logprobs = answer["output"][1]["content"][0]["logprobs"]
    assert "".join(entry["token"] for entry in logprobs).lstrip().startswith("Fine.")
    assert all(len(entry["top_logprobs"]) == 1 for entry in logprobs)
