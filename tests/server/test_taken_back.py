"""What the server has answered is accepted in the next turn, whatever the model wrote, by every kind of template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..tiny_tokenizer import write_tokenizer
from .deployment import MODEL
from .dialects import prompts, speaking

NEEDS_OBJECT = (
    "{% for m in messages %}[{{ m.role }}|{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "|{{ c.function.name }}{% for k, v in c.function.arguments | items %} {{ k }}={{ v | string }}{% endfor %}"
    "{% endfor %}]{% endfor %}"
)
TAKES_TEXT = NEEDS_OBJECT.replace(
    "{% for k, v in c.function.arguments | items %} {{ k }}={{ v | string }}{% endfor %}",
    " {{ c.function.arguments | tojson }}",
)
HI = {"role": "user", "content": "Hi"}
SAID = [
    "Hello",
    "",
    "<think>\nI think",  # no answer
    '<tool_call>\n{"name": "f", "arguments": {"code": "ls',  # cut off
    '<tool_call>\n{"name": "f", "arguments": {"code": "a\nb"}}\n</tool_call>',
    '<tool_call>\n{"name": "f", "arguments": null}\n</tool_call>',
    '<tool_call>\n{"name": "f", "arguments": [1, 2]}\n</tool_call>',
    '<tool_call>\n{"name": "f", "arguments": "text"}\n</tool_call>',
    '<tool_call>\n{"name": "f", "arguments": {"a": "\\ud800", "b": NaN}}\n</tool_call>',
    '<tool_call>\n{"name": "f", "arguments": {"a": ' + "[" * 80 + "]" * 80 + "}}\n</tool_call>",
    '<tool_call>\n{"name": "absent", "arguments": {}}\n</tool_call>\nand text',
]


@pytest.mark.parametrize("template", [NEEDS_OBJECT, TAKES_TEXT], ids=["object", "text"])
@pytest.mark.quick_cases(1)
def test_every_answer_of_chats_is_taken_back(tmp_path: Path, template: str):
    folder = write_tokenizer(tmp_path, template=template)
    tools = [{"type": "function", "function": {"name": "f"}}]
    for said in SAID:
        served = speaking(folder, said)
        answer = served.post("/v1/chat/completions", {"messages": [HI], "tools": tools})
        message = answer.json()["choices"][0]["message"]
        calls = message.get("tool_calls", ())
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "r"} for call in calls]
        again = served.post("/v1/chat/completions", {"messages": [HI, message, *results, HI], "tools": tools})
        assert again.status_code == 200, (said, again.text)
        for call in calls:
            assert f"|{call['function']['name']}" in prompts(served)[-1], said


@pytest.mark.parametrize("template", [NEEDS_OBJECT, TAKES_TEXT], ids=["object", "text"])
@pytest.mark.quick_cases(1)
def test_every_answer_of_responses_is_taken_back(tmp_path: Path, template: str):
    folder = write_tokenizer(tmp_path, template=template)
    tools = [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]
    for said in [*SAID, *(text.replace('"name": "f"', '"name": "g"') for text in SAID)]:
        served = speaking(folder, said)
        fields = {"tools": tools, "include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}}
        items = served.post("/v1/responses", {"input": [HI], **fields}).json()["output"]
        calls = [item for item in items if "call_id" in item]
        results = [{"type": f"{call['type']}_output", "call_id": call["call_id"], "output": "r"} for call in calls]
        again = served.post("/v1/responses", {"input": [HI, *items, *results, HI], **fields})
        assert again.status_code == 200, (said, again.text)


@pytest.mark.parametrize("template", [NEEDS_OBJECT, TAKES_TEXT], ids=["object", "text"])
def test_every_answer_of_messages_is_taken_back(tmp_path: Path, template: str):
    folder = write_tokenizer(tmp_path, template=template)
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 400, "tools": [{"name": "f"}]}
    body["thinking"] = {"type": "adaptive"}
    for said in SAID:
        served = speaking(folder, said)
        blocks = served.post("/v1/messages", {"messages": [HI], **body}).json()["content"]
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": each, "content": "r"} for each in calls]
        user = {"role": "user", "content": [*results, {"type": "text", "text": "go on"}]}
        messages = [HI, {"role": "assistant", "content": blocks}, user]
        again = served.post("/v1/messages", {"messages": messages, **body})
        assert again.status_code == 200, (said, again.text)
