"""Calls that are JSON objects with a name and arguments, between markers or without."""

from __future__ import annotations

from ..format import CallMarkers, Format, JsonCall, ReasoningMarkers
from .common import LLAMA_CPP, THINK, VLLM_EXAMPLES, VLLM_PARSERS

_ARRAY = JsonCall(is_array=True)
_PARAMETERS = JsonCall(arguments_key="parameters")

FORMATS = (
    Format(
        "hermes",
        "Hermes, Qwen2.5, Qwen3, QwQ, Granite 4, EXAONE",
        f"{VLLM_EXAMPLES}/tool_chat_template_hermes.jinja",
        THINK,
        CallMarkers(JsonCall(), "<tool_call>", "</tool_call>", before="\n", after="\n", between="\n"),
    ),
    Format(
        "ernie45",
        "ERNIE 4.5",
        f"{VLLM_PARSERS}/ernie45_tool_parser.py",
        THINK,
        CallMarkers(JsonCall(), "<tool_call>", "</tool_call>", before="\n", after="\n", between="\n"),
        answer=("<response>", "</response>"),
    ),
    Format(
        "longcat",
        "LongCat Flash Chat",
        f"{VLLM_PARSERS}/longcat_tool_parser.py",
        ReasoningMarkers("<longcat_think>", "</longcat_think>"),
        CallMarkers(JsonCall(), "<longcat_tool_call>", "</longcat_tool_call>", before="\n", after="\n", between="\n"),
    ),
    Format(
        "llama_json",
        "Llama 3.1, 3.2, 3.3 and 4 in JSON",
        f"{VLLM_EXAMPLES}/tool_chat_template_llama3.1_json.jinja",
        calls=CallMarkers(_PARAMETERS, "<|python_tag|>", between="; ", bare="{"),
    ),
    Format(
        "internlm",
        "InternLM 2.5 and 3, Intern-S1",
        f"{VLLM_EXAMPLES}/tool_chat_template_internlm2_tool.jinja",
        THINK,
        CallMarkers(
            _PARAMETERS,
            "<|action_start|><|plugin|>",
            "<|action_end|>",
            before="\n",
            after="\n",
            between="\n",
            other_markers=(("<|action_start|> <|plugin|>", "<|action_end|>"),),
        ),
        tokens=("<|action_start|>", "<|plugin|>"),
    ),
    Format(
        "granite",
        "Granite 3",
        f"{VLLM_EXAMPLES}/tool_chat_template_granite.jinja",
        calls=CallMarkers(_ARRAY, "<|tool_call|>", other_markers=(("<tool_call>", "</tool_call>"),)),
    ),
    Format(
        "granite_20b_fc",
        "Granite 20B function calling",
        f"{VLLM_EXAMPLES}/tool_chat_template_granite_20b_fc.jinja",
        calls=CallMarkers(JsonCall(), "<function_call>", before=" ", between="\n"),
    ),
    Format(
        "gigachat3",
        "GigaChat 3; the marker of 3.1 is read as well",
        f"{LLAMA_CPP}/GigaChat3-10B-A1.8B.jinja",
        calls=CallMarkers(
            JsonCall(),
            "function call<|role_sep|>",
            before="\n",
            between="\n",
            other_markers=(("<|function_call|>", ""),),
        ),
        tokens=("<|role_sep|>",),
    ),
    Format(
        "phi4_mini",
        "Phi-4-mini",
        f"{VLLM_EXAMPLES}/tool_chat_template_phi4_mini.jinja",
        calls=CallMarkers(_ARRAY, "functools"),
    ),
    Format(
        "hunyuan_a13b",
        "Hunyuan A13B",
        f"{VLLM_EXAMPLES}/tool_chat_template_hunyuan_a13b.jinja",
        THINK,
        CallMarkers(_ARRAY, "<tool_calls>", "</tool_calls>", before="\n", after="\n"),
        answer=("<answer>", "</answer>"),
    ),
    Format(
        "jamba",
        "Jamba 1.5 and later",
        f"{VLLM_PARSERS}/jamba_tool_parser.py",
        calls=CallMarkers(_ARRAY, "<tool_calls>", "</tool_calls>"),
    ),
    Format(
        "xlam",
        "xLAM",
        f"{VLLM_EXAMPLES}/tool_chat_template_xlam_qwen.jinja",
        calls=CallMarkers(
            _ARRAY,
            bare="[",
            other_markers=(("```json", "```"), ("[TOOL_CALLS]", ""), ("<tool_call>", "</tool_call>")),
        ),
    ),
    Format(
        "apertus",
        "Apertus",
        f"{VLLM_EXAMPLES}/tool_chat_template_apertus.jinja",
        ReasoningMarkers("<|inner_prefix|>", "<|inner_suffix|>"),
        CallMarkers(JsonCall(name_key="", is_array=True), "<|tools_prefix|>", "<|tools_suffix|>"),
    ),
    Format(
        "cohere_command3",
        "Command A, Command A+, Command R7B, North",
        f"{LLAMA_CPP}/CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja",
        ReasoningMarkers("<|START_THINKING|>", "<|END_THINKING|>"),
        CallMarkers(
            JsonCall("tool_name", "parameters", is_array=True),
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            before="\n",
            after="\n",
        ),
        answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
)
