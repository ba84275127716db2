"""All formats by name, and the names that other servers give them. In a name, `-` and `_` are the same."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from .declarations import DECLARATIONS
from .declarations.common import THINK
from .format import Format, ReasoningMarkers

FORMATS: Mapping[str, Format] = {format.name: format for format in DECLARATIONS}

# Names of tool call parsers in vLLM, SGLang and LMDeploy that are not the name here.
# fmt: off
ALIASES: Mapping[str, str] = {
    "qwen": "hermes", "qwen25": "hermes", "qwen3": "hermes", "granite4": "hermes", "exaone": "hermes",
    "qwen3_coder": "qwen_xml", "qwen3_xml": "qwen_xml", "mimo": "qwen_xml", "step3p5": "qwen_xml",
    "openai": "harmony", "gpt_oss": "harmony",
    "deepseekv3": "deepseek_v3", "deepseekv31": "deepseek_v31", "deepseekv32": "deepseek_v32",
    "deepseekv4": "deepseek_v4", "deepseekv41": "deepseek_v41",
    "glm": "glm45", "ling3": "glm47", "berrylm": "qwen_xml",
    # The newer Laguna models write exactly this; calls of the older ones, with line breaks as in glm45, are read too.
    "poolside_v1": "glm47",
    "llama3_json": "llama_json", "llama4_json": "llama_json", "llama3": "llama_json", "llama4_pythonic": "pythonic",
    "qwen3_json": "hermes", "phi4_mini_json": "phi4_mini", "hunyuan": "hunyuan_a13b", "interns1": "internlm",
    "intern_s1": "internlm", "internlm2": "internlm", "qwen2d5": "hermes", "qwen3coder": "qwen_xml",
    "apertus2509": "apertus",
    # The newer Command models write <|START_TEXT|> instead of <|START_RESPONSE|>; their calls are the same.
    "cohere_command4": "cohere_command3",
}

_ALWAYS_THINKS = replace(THINK, is_default=True)
# Names of reasoning parsers in vLLM and SGLang that are not the name of a format with this reasoning.
_REASONING: Mapping[str, ReasoningMarkers] = {
    "deepseek_r1": _ALWAYS_THINKS, "qwen3_thinking": _ALWAYS_THINKS, "minimax": _ALWAYS_THINKS,
    "minimax_m2": _ALWAYS_THINKS, "step3": _ALWAYS_THINKS, "step3p5": _ALWAYS_THINKS,
    "holo2": THINK, "nemotron_v3": THINK, "nemotron_3": THINK, "qwen3": THINK, "mimo": THINK, "interns1": THINK,
    "poolside_v1": THINK, "granite_thinking": THINK, "granite_thinking_parser": THINK, "berrylm": THINK,
    "ling3": THINK, "minimax_m3": ReasoningMarkers("<mm:think>", "</mm:think>"),
    "kimi": ReasoningMarkers("◁think▷", "◁/think▷"),
    "granite": ReasoningMarkers("Here is my thought process:", "Here is my response:"),
}
_REASONING_ALIASES: Mapping[str, str] = {
    "openai_gptoss": "harmony", "gpt_oss": "harmony", "hunyuan": "hunyuan_a13b", "deepseek_v3": "hermes",
    "apertus2509": "apertus", "cohere_command4": "cohere_command3",
}

_NOT_HERE = "its form is not known"
# Formats of other servers that are known by name only, with the reason.
NOT_DESCRIBED: Mapping[str, str] = {
    "minimax_m3": "each tag of a call is written after `]<]minimax[>[`, and its arguments are elements that have the "
    "names of the parameters, nested as the values are",
    "minimax_append_think": "it leaves the reasoning in the text, as `none` does",
    "minimax_m2_append_think": "it leaves the reasoning in the text, as `none` does",
    "hf": "the checkpoint declares it", "response_template": "the checkpoint declares it",
    "inkling": "an answer is blocks, each after a header that may have a name",
    **dict.fromkeys(("muse", "muse_glimmer"), "an answer is messages to recipients, as in harmony, with other markers"),
    **dict.fromkeys((
        "beam", "gigachat35", "interns2preview", "iquest_coder", "minicpmv", "solar_open2", "spark25", "spark3",
        "step5", "telechat4", "trinity",
    ), _NOT_HERE),
}
# Described formats that are like those, where their names are not.
_NEAR: Mapping[str, tuple[str, ...]] = {
    "muse": ("harmony",), "muse_glimmer": ("harmony",), "inkling": ("harmony",), "hf": ("auto",),
    "response_template": ("auto",), "gigachat35": ("gigachat3",), "telechat4": ("qwen_xml", "hermes"),
}
# fmt: on


class UnknownFormat(ValueError):
    """No format has this name. near: similar names. reason: why a format of another server is not described here."""

    def __init__(self, name: str, near: tuple[str, ...], *, reason: str = "") -> None:
        hint = f"did you mean {' or '.join(near)}?" if near else f"the names are {', '.join(sorted(FORMATS))}"
        if reason:
            similar = f"similar names are {', '.join(near)}; " if near else ""
            hint = f"other servers have it, it is not described here ({reason}); {similar}"
            hint += "describe it in a file, and name the file as `server.tool_parser_plugin`"
        super().__init__(f"no format is named {name!r}: {hint}")
        self.name = name
        self.near = near


def plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def find(name: str) -> Format:
    """The format of this name, here or in vLLM or SGLang. Raises UnknownFormat."""
    format = FORMATS.get(ALIASES.get(plain(name), plain(name)))
    if format is None:
        raise _unknown(name, [*FORMATS, *ALIASES])
    return format


def find_reasoning(name: str) -> ReasoningMarkers:
    """The markers of the reasoning parser of this name, in vLLM or SGLang, or of the format. Raises UnknownFormat."""
    wanted = plain(name)
    if wanted in _REASONING:
        return _REASONING[wanted]
    format = FORMATS.get(_REASONING_ALIASES.get(wanted, wanted))
    if format is None or format.reasoning is None:
        raise _unknown(name, reasoning_names())
    return format.reasoning


def is_tool_format(name: str) -> bool:
    """Whether a name means a format, `auto` or `none`."""
    return plain(name) in ("auto", "none") or ALIASES.get(plain(name), plain(name)) in FORMATS


def tool_names() -> list[str]:
    """Every name that `find` knows."""
    return sorted({*FORMATS, *ALIASES})


def reasoning_names() -> list[str]:
    """Every name that `find_reasoning` knows."""
    return sorted({*_REASONING, *_REASONING_ALIASES, *(each.name for each in DECLARATIONS if each.reasoning)})


def _unknown(name: str, names: Iterable[str]) -> UnknownFormat:
    wanted = plain(name)
    near = tuple(difflib.get_close_matches(wanted, list(names), n=3))
    return UnknownFormat(name, _NEAR.get(wanted, near), reason=NOT_DESCRIBED.get(wanted, ""))
