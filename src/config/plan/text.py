"""The model's chat template: whether there is one, and its formats of tool calls and reasoning.

Formats are recognised by markers in the template; nothing is rendered here.
"""

from __future__ import annotations

from pathlib import Path

from ...model.record import Record
from ..checkpoint.chat_templates import TemplateSource, templates_in
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


def text_forms(folder: Path, template: TemplateSource | None = None) -> TextForms:
    """template: of the deployment, where it sets one."""
    templates = [template] if template is not None else _own_templates(folder)
    source, text = Path(templates[0].origin).name if templates else "", "".join(each.text for each in templates)
    marker, tools = next(((marker, form) for marker, form in _TOOL_FORMS if marker in text), ("", None))
    reasoning = next((form for marker, form in _REASONING_FORMS if marker in text), None)
    return TextForms(source=source, tool_calls=tools, tool_marker=marker, reasoning=reasoning)


def _own_templates(folder: Path) -> list[TemplateSource]:
    try:
        return [template for template in templates_in(folder).values() if template.text]
    except (OSError, ModelFilesError):
        return []
