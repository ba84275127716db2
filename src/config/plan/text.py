"""The model's chat template, and the format of its answers, as a plan shows them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...formats.detect import Detection
from ...model.record import Record
from ..checkpoint.chat_templates import TemplateSource


class TextForms(Record):
    """source: the file that holds the template, empty if there is none."""

    source: str
    tool_calls: str
    tool_calls_why: str
    reasoning: str
    reasoning_why: str
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, templates: Mapping[str, TemplateSource], answers: Detection) -> TextForms:
        return cls(
            source=next((Path(template.origin).name for template in templates.values()), ""),
            tool_calls=answers.calls,
            tool_calls_why=answers.calls_why,
            reasoning=answers.reasoning,
            reasoning_why=answers.reasoning_why,
            warnings=answers.warnings,
        )
