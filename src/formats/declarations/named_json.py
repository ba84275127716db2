"""Calls that are a name and the JSON of the arguments."""

from __future__ import annotations

from ..format import CallMarkers, Format, NamedJson, ReasoningMarkers
from .common import LLAMA_CPP, THINK, VLLM_EXAMPLES

_SEPARATOR = "<｜tool▁sep｜>"
_BEGIN, _END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

FORMATS = (
    Format(
        "deepseek_v3",
        "DeepSeek V3 and R1",
        f"{VLLM_EXAMPLES}/tool_chat_template_deepseekv3.jinja",
        THINK,
        CallMarkers(
            NamedJson("\n```json\n", prefix=f"function{_SEPARATOR}", suffix="\n```"),
            _BEGIN,
            _END,
            between="\n",
            section=_SECTION,
        ),
        tokens=(_SEPARATOR,),
    ),
    Format(
        "deepseek_v31",
        "DeepSeek V3.1",
        f"{LLAMA_CPP}/deepseek-ai-DeepSeek-V3.1.jinja",
        THINK,
        CallMarkers(NamedJson(_SEPARATOR), _BEGIN, _END, section=_SECTION),
        tokens=(_SEPARATOR,),
    ),
    Format(
        "kimi_k2",
        "Kimi K2, K2.5, K2.6",
        f"{LLAMA_CPP}/moonshotai-Kimi-K2.jinja",
        THINK,
        CallMarkers(
            NamedJson("<|tool_call_argument_begin|>"),
            "<|tool_call_begin|>",
            "<|tool_call_end|>",
            section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            ids="written",
        ),
        tokens=("<|tool_call_argument_begin|>",),
    ),
    Format(
        "mistral",
        "Mistral and Devstral with tokenizers from version 11 on; arrays of JSON of older ones are read as well",
        f"{LLAMA_CPP}/mistralai-Mistral-Small-3.1-24B-Instruct-2503.jinja",
        ReasoningMarkers("[THINK]", "[/THINK]"),
        CallMarkers(NamedJson("[ARGS]", id_begin="[CALL_ID]", reads_json_calls=True), "[TOOL_CALLS]", ids="nine"),
        tokens=("[ARGS]", "[CALL_ID]"),
    ),
)
