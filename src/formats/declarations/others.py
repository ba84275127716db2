"""Calls in Python, calls with other keys, and answers in channels."""

from __future__ import annotations

from ..format import BareKeys, CallMarkers, Format, Harmony, Pythonic, ReasoningMarkers
from ..reading.harmony import ANALYSIS, END, TOKENS
from .common import LLAMA_CPP, THINK, VLLM_EXAMPLES, VLLM_PARSERS

FORMATS = (
    Format(
        "pythonic",
        "Llama 4, Llama 3.2 in Python, ToolACE",
        f"{VLLM_EXAMPLES}/tool_chat_template_llama4_pythonic.jinja",
        calls=CallMarkers(Pythonic(), "<|python_start|>", "<|python_end|>", bare="["),
    ),
    Format(
        "olmo3",
        "OLMo 3",
        f"{VLLM_EXAMPLES}/tool_chat_template_olmo3.jinja",
        THINK,
        CallMarkers(Pythonic(is_list=False), "<function_calls>", "</function_calls>", between="\n"),
    ),
    Format(
        "lfm2",
        "LFM2 and LFM2.5",
        f"{LLAMA_CPP}/llama-cpp-lfm2.jinja",
        THINK,
        CallMarkers(Pythonic(), "<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    Format(
        "gemma4",
        "Gemma 4",
        f"{VLLM_EXAMPLES}/tool_chat_template_gemma4.jinja",
        ReasoningMarkers("<|channel>thought\n", "<channel|>"),
        CallMarkers(BareKeys('<|"|>'), "<|tool_call>", "<tool_call|>"),
        tokens=("<|channel>", '<|"|>'),
    ),
    Format(
        "functiongemma",
        "FunctionGemma",
        f"{VLLM_PARSERS}/functiongemma_tool_parser.py",
        calls=CallMarkers(BareKeys("<escape>"), "<start_function_call>", "<end_function_call>"),
        tokens=("<escape>",),
    ),
    Format(
        "harmony",
        "gpt-oss",
        "https://github.com/openai/harmony/blob/main/docs/format.md",
        ReasoningMarkers(ANALYSIS, END),
        CallMarkers(Harmony()),
        tokens=TOKENS,
    ),
)
