"""The model's chat template: whether there is one, and its formats of tool calls and reasoning.

Formats are recognised by markers in the template; nothing is rendered here.
"""

from __future__ import annotations

import os
from pathlib import Path

from ...input_file import read_file
from ...model.record import Record
from ..checkpoint.model_files import MAX_TEMPLATE_BYTES, read_json
from ..errors import ModelFilesError

_TOOL_FORMS = (  # marker in a template -> format of its tool calls
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama3_json"),
    ("<｜tool▁calls▁begin｜>", "deepseek"),
    ("<|channel|>", "harmony"),
    ("<function=", "qwen3_xml"),
    ("<tool_call>", "hermes"),
)
_REASONING_FORMS = (("<|channel|>", "harmony"), ("<think>", "think tags"), ("[THINK]", "mistral"))


class TextForms(Record):
    """source: the file that holds the template, empty if there is none."""

    source: str
    tool_calls: str | None = None
    tool_marker: str = ""
    reasoning: str | None = None


def text_forms(folder: Path, template: str | None = None) -> TextForms:
    """template: the text of `server.chat_template`, where one is written."""
    source, text = ("server.chat_template", template) if template is not None else _own_template(folder)
    marker, tools = next(((marker, form) for marker, form in _TOOL_FORMS if marker in text), ("", None))
    reasoning = next((form for marker, form in _REASONING_FORMS if marker in text), None)
    return TextForms(source=source, tool_calls=tools, tool_marker=marker, reasoning=reasoning)


def _own_template(folder: Path) -> tuple[str, str]:
    file = folder / "chat_template.jinja"
    try:
        if os.path.lexists(file):
            return file.name, read_file(file, MAX_TEMPLATE_BYTES).decode("utf-8", "replace")
        for name in ("chat_template.json", "tokenizer_config.json"):
            if os.path.lexists(folder / name):
                found = read_json(folder / name).get("chat_template")
                if isinstance(found, list):  # several named templates
                    found = "".join(str(entry.get("template", "")) for entry in found if isinstance(entry, dict))
                if isinstance(found, str) and found:
                    return name, found
    except (OSError, ModelFilesError):
        pass
    return "", ""
