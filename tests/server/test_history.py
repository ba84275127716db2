"""Blocks and items of conversations with other servers: rendered if the model must read them, or else left out."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import pytest
from anthropic.types.beta import BetaContentBlockParam
from openai.types.responses.response_input_item_param import ResponseInputItemParam

from stoker.server.endpoint import LONG_BODY_BYTES
from stoker.server.protocol.message_blocks import messages_of as of_blocks
from stoker.server.protocol.response_items import messages_of as of_items

from ..tiny_tokenizer import write_tokenizer
from .deployment import MODEL
from .dialects import prompts, speaking

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}|{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}|{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}]"
    "{% endfor %}"
)
HI = {"role": "user", "content": "Hi"}
SEARCH = {"type": "search_result", "title": "T", "source": "https://x", "content": [{"type": "text", "text": "found"}]}


def blocks(*content: Any, role: str = "user") -> list[tuple[str, Any]]:
    return [(each["role"], each["content"]) for each in of_blocks([{"role": role, "content": [*content]}]).messages]


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (SEARCH, "T\nhttps://x\nfound"),
        ({"type": "document", "source": {"type": "content", "content": "abc"}}, "abc"),
        ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "a"}]}}, "a"),
        ({"type": "document", "title": "T", "context": "C", "source": {"type": "text", "data": "a"}}, "T\nC\na"),
        ({"type": "compaction", "content": "before"}, "before"),
        ({"type": "tool_reference", "tool_name": "f"}, "f"),
        ({"type": "browser_state", "tabs": [{"url": "u"}]}, '{"tabs": [{"url": "u"}]}'),
    ],
)
def test_blocks_with_a_text_are_text_everywhere(block: dict[str, Any], text: str):
    """Before, the conversation was refused, "the model accepts text only"."""
    assert blocks(block) == [("user", [{"type": "text", "text": text}])]
    result = {"type": "tool_result", "tool_use_id": "c", "content": [block, {"type": "text", "text": "b"}]}
    assert blocks(result) == [("tool", f"{text}\nb")]
    assert blocks(block, role="assistant") == [("assistant", text)]


def test_calls_that_the_server_made_are_left_out_or_written_with_their_results():
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"encrypted_content": "x"}]}
    text = {"type": "text", "text": "So"}
    history = of_blocks([HI, {"role": "assistant", "content": [search, found, text]}])
    assert history.messages[1] == {"role": "assistant", "content": "So"}
    assert history.skipped == ["server_tool_use", "web_search_tool_result"]
    assert of_blocks([HI, {"role": "assistant", "content": [search, found]}]).messages == [HI]
    used = {"type": "mcp_tool_use", "id": "m", "name": "f", "server_name": "s", "input": {"a": 1}}
    result = {"type": "mcp_tool_result", "tool_use_id": "m", "content": [text]}
    written = of_blocks([{"role": "assistant", "content": [used, result, text]}]).messages
    assert [message["role"] for message in written] == ["assistant", "tool", "assistant"]


def test_every_block_of_anthropics_client_is_known():
    known = [
        block for block in typing.get_args(BetaContentBlockParam) if "type" in getattr(block, "__annotations__", ())
    ]
    kinds = [typing.get_args(typing.get_type_hints(block)["type"])[0] for block in known]
    assert len(kinds) > 20
    refused = set()
    for kind in kinds:
        try:
            of_blocks([{"role": "assistant", "content": [{"type": kind}]}])
        except ValueError as error:
            if "are not supported" in str(error):
                refused.add(kind)
    assert refused <= {"image", "container_upload", "document", "tool_result"}


def test_every_item_of_openais_client_is_known():
    kinds = set()
    for item in typing.get_args(ResponseInputItemParam):
        hint = typing.get_type_hints(item)["type"]
        kinds |= {each for each in (*typing.get_args(hint), *typing.get_args(typing.get_args(hint)[0]))
                  if isinstance(each, str)}  # fmt: skip
    assert len(kinds) > 25
    refused = set()
    for kind in kinds:
        try:
            of_items([{"type": kind, "id": "x"}])
        except ValueError as error:
            if "are not supported" in str(error):
                refused.add(kind)
    assert refused == {"computer_call_output"}  # a picture


ITEMS: list[tuple[list[dict[str, Any]], str]] = [
    ([{"type": "web_search_call", "id": "w", "status": "completed"}], ""),
    ([{"id": "rs_1"}, {"type": "item_reference", "id": "rs_2"}], ""),
    (
        [{"type": "local_shell_call", "id": "l", "call_id": "c", "action": {"command": ["ls"]}},
         {"type": "local_shell_call_output", "id": "c", "output": "a b"}],
        '[assistant||local_shell {"command": ["ls"]}][tool|a b]',
    ),
    (
        [{"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
         {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "stderr": "b", "outcome": {}}]}],
        '[assistant||shell {"commands": ["ls"]}][tool|a\nb]',
    ),
    (
        [{"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
         {"type": "apply_patch_call_output", "call_id": "c", "status": "completed"}],
        '[assistant||apply_patch {"type": "delete_file", "path": "a"}][tool|completed]',
    ),
    ([{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "output": "r"}], "[assistant||f {}][tool|r]"),
]  # fmt: skip


@pytest.mark.parametrize(("items", "written"), ITEMS)
def test_items_of_openais_tools_are_written_or_left_out_and_named(
    tmp_path: Path, items: list[dict[str, Any]], written: str
):
    served = speaking(write_tokenizer(tmp_path, template=TEMPLATE), "Ok")
    for filler in ("", "x" * LONG_BODY_BYTES):  # a long body is read in another process
        body = {"model": MODEL, "input": [HI, *items, {"role": "user", "content": "go on"}], "metadata": {"x": filler}}
        answer = served.post("/v1/responses", body)
        assert answer.status_code == 200, answer.text
        assert prompts(served)[-1] == f"[user|Hi]{written}[user|go on]"
        named = {"web_search_call": "web_search_call", "": "item_reference"}
        expected = None if written else named[items[0].get("type", "")]
        assert answer.headers.get("x-stoker-skipped-tools") == expected
        counted = served.post("/v1/responses/input_tokens", body)
        assert counted.headers.get("x-stoker-skipped-tools") == expected


def test_skipped_blocks_are_named_on_every_route_of_messages(folder: Path):
    content = [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, {"type": "text", "text": "a"}]
    body = {"model": MODEL, "max_tokens": 5, "messages": [HI, {"role": "assistant", "content": content}, HI]}
    served = speaking(folder, "Ok")
    for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/messages/render"):
        answer = served.post(path, body)
        assert (answer.status_code, answer.headers["x-stoker-skipped-tools"]) == (200, "server_tool_use"), path
    assert served.post("/v1/messages", {**body, "stream": True}).headers["x-stoker-skipped-tools"] == "server_tool_use"


def test_what_is_not_text_is_refused_with_its_type(folder: Path):
    served = speaking(folder, "Ok")
    only = "are not supported: the model accepts text only"
    for block, message, place in (
        ({"type": "image", "source": {}}, f"blocks of type 'image' {only}", "type"),
        ({"type": "document", "source": {"type": "base64"}}, f"documents of type 'base64' {only}", "source.type"),
        ({"type": "new"}, "blocks of type 'new' are not supported", "type"),
    ):  # fmt: skip
        body = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": [block]}]}
        error = served.post("/v1/messages", body).json()["error"]
        assert error["message"].endswith(message)
        assert error["param"] == f"messages[0].content[0].{place}"


def test_older_and_custom_calls_of_chats_are_calls(tmp_path: Path):
    """Before, they were missing in the prompt."""
    served = speaking(write_tokenizer(tmp_path, template=TEMPLATE), "Ok")
    called = {"name": "f", "arguments": '{"a": 1}'}
    custom = {"id": "c", "type": "custom", "custom": {"name": "g", "input": "x"}}
    for call, result, written in (
        ({"function_call": called}, {"role": "function", "name": "f"}, '[assistant||f {"a": 1}][tool|r]'),
        ({"tool_calls": [custom]}, {"role": "tool", "tool_call_id": "c"}, '[assistant||g {"input": "x"}][tool|r]'),
    ):
        messages = [HI, {"role": "assistant", "content": None, **call}, {**result, "content": "r"}]
        answer = served.post("/v1/chat/completions", {"messages": messages})
        assert answer.status_code == 200, answer.text
        assert prompts(served)[-1] == f"[user|Hi]{written}"


def test_fields_of_other_dialects_are_refused_with_the_one_to_send(folder: Path):
    served = speaking(folder, "Ok")
    shared = {"response_format": {"type": "json_object"}, "regex": "a", "guided_json": {"type": "object"}, "n": 2}
    messages = {"reasoning_effort": "low", "max_completion_tokens": 5, "logprobs": True, "parallel_tool_calls": False}
    messages |= {"reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "documents": ["x"]}
    responses = {"max_tokens": 5, "thinking": {"type": "enabled"}, "system": "x", "stop_sequences": ["x"]}
    chat = {"instructions": "x", "system": "x", "input": "x", "text": {"format": {"type": "json_object"}}}
    chat |= {"output_config": {"effort": "low"}}
    others = {"max_output_tokens": 5, "stop_sequences": ["x"], "previous_response_id": "x"}
    for path, body, fields in (
        ("/v1/messages", {"messages": [HI], "max_tokens": 5}, {**shared, **messages}),
        ("/v1/responses", {"input": "x"}, {**shared, **responses}),
        ("/v1/chat/completions", {"messages": [HI]}, {**chat, **others}),
        ("/v1/completions", {"prompt": "x"}, {"instructions": "x", "system": "x", "input": "x", **others}),
    ):
        for name, value in fields.items():
            error = served.post(path, {**body, name: value}).json()["error"]
            assert (error["code"], error["param"]) == ("unsupported_parameter", name)
            assert error["message"].startswith(f"`{name}` is not supported here: ")
        assert served.post(path, {**body, "n": 1}).status_code == 200
