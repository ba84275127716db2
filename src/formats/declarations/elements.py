"""Calls whose arguments are elements, typed by the schema of the tool."""

from __future__ import annotations

from dataclasses import replace

from ..format import CallMarkers, Format, ReasoningMarkers, XmlCall
from .common import LLAMA_CPP, THINK, VLLM_ENGINE_PARSERS, VLLM_EXAMPLES, VLLM_PARSERS

_FUNCTION = XmlCall("<function=", ">", "</function>", "<parameter=", ">", "</parameter>", pad="\n")
_GLM = XmlCall("", "", "</tool_call>", "<arg_key>", "</arg_key>", "</arg_value>", value_begin="<arg_value>")
_LONGCAT = XmlCall(
    "",
    "",
    "</longcat_tool_call>",
    "<longcat_arg_key>",
    "</longcat_arg_key>",
    "</longcat_arg_value>",
    value_begin="<longcat_arg_value>",
)
_INVOKE = XmlCall('<invoke name="', '">', "</invoke>", '<parameter name="', '">', "</parameter>")
_DSML = XmlCall(
    '<｜DSML｜invoke name="',
    '">',
    "</｜DSML｜invoke>",
    '<｜DSML｜parameter name="',
    '"',
    "</｜DSML｜parameter>",
    string_attribute=True,
)
# The model writes a space after the word.
_DSML_41 = XmlCall(
    '<｜DSML｜ invoke name="',
    '">',
    "</｜DSML｜ invoke>",
    '<｜DSML｜ parameter name="',
    '"',
    "</｜DSML｜ parameter>",
    string_attribute=True,
)
_IFM = XmlCall(
    "",
    "",
    "</ifm|tool_call>",
    "<ifm|arg_key>",
    "</ifm|arg_key>",
    "</ifm|arg_value>",
    value_begin="<ifm|arg_value>",
)
_STEP3 = XmlCall(
    '<steptml:invoke name="', '">', "</steptml:invoke>", '<steptml:parameter name="', '">', "</steptml:parameter>"
)
# The template also has an element `json` for arguments that are given as text. It is not read.
_KIMI_K3 = XmlCall(
    '<|open|>call tool="',
    '"',
    "<|close|>call<|sep|>",
    '<|open|>argument key="',
    '"',
    "<|close|>argument<|sep|>",
    type_attribute=True,
    index_attribute=True,
    tag_end="<|sep|>",
    line="",
)


def _channel(name: str) -> tuple[str, str]:
    return f"<|open|>{name}<|sep|>", f"<|close|>{name}<|sep|>"


def _hy(name: str, description: str, source: str, *, suffix: str, has_name_end: bool, line: str) -> Format:
    """A format of the Hy family, whose markers end with a suffix of the checkpoint. The other one is read as well."""

    def pair(word: str, suffix: str) -> tuple[str, str]:
        return f"<{word}{suffix}>", f"</{word}{suffix}>"

    def calls(suffix: str) -> CallMarkers:
        (call, call_end), (key, key_end) = pair("tool_call", suffix), pair("arg_key", suffix)
        value, value_end = pair("arg_value", suffix)
        name_end = f"<tool_sep{suffix}>" if has_name_end else ""
        style = XmlCall("", name_end, call_end, key, key_end, value_end, value_begin=value, line=line)
        section = pair("tool_calls", suffix)
        return CallMarkers(style, call, call_end, section=section, section_space="\n", between="\n")

    other = calls("" if suffix else ":opensource")
    return Format(
        name,
        description,
        source,
        ReasoningMarkers(*pair("think", suffix)),
        replace(calls(suffix), others=(other,)),
        tokens=(f"<tool_sep{suffix}>",) if has_name_end else (),
    )


def _sections(name: str) -> tuple[str, str]:
    return f"<｜DSML｜{name}>", f"</｜DSML｜{name}>"


FORMATS = (
    Format(
        "qwen_xml",
        "Qwen3-Coder, Qwen3.5 and later, MiMo, Step-3.5, Nemotron 3",
        f"{VLLM_EXAMPLES}/tool_chat_template_qwen3coder.jinja",
        THINK,
        CallMarkers(_FUNCTION, "<tool_call>", "</tool_call>", before="\n", after="\n", between="\n"),
    ),
    Format(
        "seed_oss",
        "Seed-OSS",
        f"{LLAMA_CPP}/ByteDance-Seed-OSS.jinja",
        ReasoningMarkers("<seed:think>", "</seed:think>"),
        CallMarkers(
            XmlCall("<function=", ">", "</function>", "<parameter=", ">", "</parameter>"),
            "<seed:tool_call>",
            "</seed:tool_call>",
            before="\n",
            after="\n",
            between="\n",
        ),
    ),
    Format(
        "glm45",
        "GLM-4.5 and 4.6",
        f"{LLAMA_CPP}/GLM-4.6.jinja",
        THINK,
        CallMarkers(_GLM, "<tool_call>", "</tool_call>", between="\n"),
    ),
    Format(
        "glm47",
        "GLM-4.7 and GLM-5, Laguna",
        f"{VLLM_PARSERS}/glm47_moe_tool_parser.py",
        THINK,
        CallMarkers(
            XmlCall(
                "", "", "</tool_call>", "<arg_key>", "</arg_key>", "</arg_value>", value_begin="<arg_value>", line=""
            ),
            "<tool_call>",
            "</tool_call>",
        ),
    ),
    Format(
        "longcat_xml",
        "LongCat Flash Lite, Flash Thinking 2601 and later",
        "https://github.com/ml-explore/mlx-lm/pull/810",
        ReasoningMarkers("<longcat_think>", "</longcat_think>"),
        CallMarkers(_LONGCAT, "<longcat_tool_call>", "</longcat_tool_call>", between="\n"),
    ),
    Format(
        "kimi_k3",
        "Kimi K3",
        f"{LLAMA_CPP}/Kimi-K3.jinja",
        ReasoningMarkers(*_channel("think")),
        CallMarkers(_KIMI_K3, section=_channel("tools")),
        answer=(*_channel("response"), _channel("message")[1]),
        tokens=("<|open|>", "<|close|>", "<|sep|>"),
    ),
    _hy(
        "hy_v3",
        "Hy3",
        f"{VLLM_PARSERS}/hy_v3_tool_parser.py",
        suffix=":opensource",
        has_name_end=True,
        line="\n",
    ),
    _hy(
        "hy_v3_preview",
        "Hy3 preview",
        f"{VLLM_PARSERS}/hy_v3_tool_parser.py",
        suffix="",
        has_name_end=True,
        line="\n",
    ),
    _hy(
        "hy_v4",
        "Hy4 preview",
        f"{VLLM_PARSERS}/hy_v4_tool_parser.py",
        suffix=":opensource",
        has_name_end=False,
        line="",
    ),
    Format(
        "minimax_m2",
        "MiniMax M2",
        f"{LLAMA_CPP}/unsloth-MiniMax-M2.jinja",
        THINK,
        CallMarkers(_INVOKE, section=("<minimax:tool_call>", "</minimax:tool_call>"), section_space="\n", between="\n"),
    ),
    Format(
        "deepseek_v32",
        "DeepSeek V3.2",
        f"{LLAMA_CPP}/DeepSeek-V3.2.jinja",
        THINK,
        CallMarkers(_DSML, section=_sections("function_calls"), section_space="\n", between="\n"),
    ),
    Format(
        "deepseek_v4",
        "DeepSeek V4",
        f"{VLLM_PARSERS}/deepseekv4_tool_parser.py",
        THINK,
        CallMarkers(_DSML, section=_sections("tool_calls"), section_space="\n", between="\n"),
    ),
    Format(
        "deepseek_v41",
        "DeepSeek V4.1",
        f"{VLLM_ENGINE_PARSERS}/deepseek_v41.py",
        THINK,
        CallMarkers(_DSML_41, section=("<｜DSML｜ calls>", "</｜DSML｜ calls>"), section_space="\n", between="\n"),
    ),
    Format(
        "dots",
        "dots.llm",
        f"{VLLM_PARSERS}/dots_tool_parser.py",
        THINK,
        CallMarkers(
            XmlCall('<invoke name="', '">', "</invoke>", '<parameter name="', '">', "</parameter>", line=""),
            section=("<dots_function_call>", "</dots_function_call>"),
        ),
    ),
    Format(
        "k2_horizon",
        "K2 Horizon, in elements without types",
        f"{VLLM_PARSERS}/k2_horizon_tool_parser.py",
        ReasoningMarkers("<ifm|think>", "</ifm|think>"),
        CallMarkers(
            _IFM,
            "<ifm|tool_call>",
            "</ifm|tool_call>",
            section=("<ifm|tool_calls>", "</ifm|tool_calls>"),
            section_space="\n",
            between="\n",
        ),
    ),
    Format(
        "minicpm5",
        "MiniCPM5",
        f"{VLLM_PARSERS}/minicpm5xml_tool_parser.py",
        THINK,
        CallMarkers(
            XmlCall("", '">', "</function>", '<param name="', '">', "</param>", line="", reads_cdata=True),
            '<function name="',
            "</function>",
            between="\n",
        ),
    ),
    Format(
        "step3",
        "Step3",
        f"{VLLM_PARSERS}/step3_tool_parser.py",
        THINK,
        CallMarkers(
            _STEP3,
            "<｜tool_call_begin｜>function<｜tool_sep｜>",
            "<｜tool_call_end｜>",
            section=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
        ),
        tokens=("<｜tool_call_begin｜>", "<｜tool_sep｜>"),
    ),
)
