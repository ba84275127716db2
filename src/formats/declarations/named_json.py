"""Calls that are a name and the JSON of the arguments."""

from __future__ import annotations

from ..format import CallMarkers, Format, NamedJson, ReasoningMarkers
from .common import LLAMA_CPP, THINK, VLLM_ENGINE_PARSERS, VLLM_EXAMPLES

_SEPARATOR = "<｜tool▁sep｜>"
_BEGIN, _END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")


def _plamo(word: str) -> tuple[str, str]:
    return f"<|plamo:begin_{word}:plamo|>", f"<|plamo:end_{word}:plamo|>"


_NAME, _ARGUMENTS = _plamo("tool_name"), _plamo("tool_arguments")

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
        "plamo3",
        "PLaMo 3",
        f"{VLLM_ENGINE_PARSERS}/plamo3.py",
        ReasoningMarkers(*_plamo("think")),
        CallMarkers(
            NamedJson(
                f"{_NAME[1]}{_ARGUMENTS[0]}<|plamo:constrain|>json<|plamo:msg|>", prefix=_NAME[0], suffix=_ARGUMENTS[1]
            ),
            *_plamo("tool_request"),
            section=_plamo("tool_requests"),
        ),
        answer=("<|plamo:tag|>",),
        tokens=("<|plamo:begin_", "<|plamo:end_", ":plamo|>", "<|plamo:constrain|>", "<|plamo:msg|>"),
    ),
    Format(
        "mistral",
        "Mistral and Devstral; arrays of JSON where the tokenizer is older than version 11",
        f"{LLAMA_CPP}/mistralai-Mistral-Small-3.1-24B-Instruct-2503.jinja",
        ReasoningMarkers("[THINK]", "[/THINK]"),
        CallMarkers(NamedJson("[ARGS]", id_begin="[CALL_ID]", reads_json_calls=True), "[TOOL_CALLS]", ids="nine"),
        tokens=("[ARGS]", "[CALL_ID]"),
    ),
)
