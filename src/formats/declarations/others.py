"""Calls in Python, with keys of their own, and answers in channels."""

from __future__ import annotations

from ..format import BareKeys, CallMarkers, Format, Harmony, Pythonic, ReasoningMarkers
from ..reading.harmony import ANALYSIS, END, TOKENS
from .common import THINK

FORMATS = (
    Format(
        "pythonic",
        "Llama 4, Llama 3.2 in Python, ToolACE",
        calls=CallMarkers(Pythonic(), "<|python_start|>", "<|python_end|>", bare="["),
    ),
    Format(
        "olmo3",
        "OLMo 3",
        THINK,
        CallMarkers(Pythonic(is_list=False), "<function_calls>", "</function_calls>", between="\n"),
    ),
    Format(
        "lfm2",
        "LFM2 and LFM2.5",
        THINK,
        CallMarkers(Pythonic(), "<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    Format(
        "gemma4",
        "Gemma 4",
        ReasoningMarkers("<|channel>thought\n", "<channel|>"),
        CallMarkers(BareKeys('<|"|>'), "<|tool_call>", "<tool_call|>"),
        tokens=("<|channel>", '<|"|>'),
    ),
    Format(
        "functiongemma",
        "FunctionGemma",
        calls=CallMarkers(BareKeys("<escape>"), "<start_function_call>", "<end_function_call>"),
        tokens=("<escape>",),
    ),
    Format(
        "harmony",
        "gpt-oss",
        ReasoningMarkers(ANALYSIS, END),
        CallMarkers(Harmony()),
        tokens=TOKENS,
    ),
)
