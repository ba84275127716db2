"""A JSON object between <tool_call> and </tool_call>: Hermes, Qwen2.5, Qwen3, QwQ, Granite 4."""

from __future__ import annotations

from ..format import CallMarkers, Format, JsonCall
from .common import THINK

FORMATS = (
    Format(
        "hermes",
        "Hermes, Qwen2.5, Qwen3, QwQ, Granite 4",
        reasoning=THINK,
        calls=CallMarkers(JsonCall(), "<tool_call>", "</tool_call>", before="\n", after="\n"),
    ),
)
