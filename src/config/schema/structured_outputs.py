"""Section `structured_outputs`: output constrained by a grammar, and reasoning separate from the answer."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ...formats.registry import NOT_DESCRIBED
from .refused import with_refused
from .section import Section, about
from .types import Flag

# The names of `formats.registry.reasoning_names`, which are those of vLLM and SGLang.
ReasoningParser = Literal[
    "auto", "none",
    "apertus", "apertus2509", "berrylm", "cohere_command3", "cohere_command4", "deepseek_r1", "deepseek_v3",
    "deepseek_v31", "deepseek_v32", "deepseek_v4", "deepseek_v41", "dots", "ernie45", "gemma4", "glm45", "glm47",
    "gpt_oss", "granite", "granite_thinking", "granite_thinking_parser", "harmony", "hermes", "holo2", "hunyuan",
    "hunyuan_a13b", "hy_v3", "hy_v3_preview", "hy_v4", "internlm", "interns1", "k2_horizon", "kimi", "kimi_k2",
    "kimi_k3", "lfm2", "ling3", "longcat", "longcat_xml", "mimo", "minicpm5", "minimax", "minimax_m2", "minimax_m3",
    "mistral", "nemotron_3", "nemotron_v3", "olmo3", "openai_gptoss", "plamo3", "poolside_v1", "qwen3",
    "qwen3_thinking", "qwen_xml", "seed_oss", "step3", "step3p5",
]  # fmt: skip
_DECLARE = "declare it in a file, as `server.tool_parser_plugin`"


@with_refused("structured_outputs")
class StructuredOutputsConfig(Section):
    """Constrained output and reasoning."""

    json_flags: ClassVar[tuple[str, ...]] = ("--structured-outputs-config",)

    backend: Literal["auto", "guidance", "xgrammar", "outlines", "lm-format-enforcer"] = Field(
        "auto",
        description=(
            "Library that compiles grammars and computes which tokens may follow. `auto` is `guidance` (llguidance), "
            "which compiles a schema in milliseconds. The names of other libraries are accepted, with a warning: "
            "grammars are those of guidance, and the text that they allow is the same."
        ),
        examples=["guidance"],
    )
    disable_any_whitespace: Flag = Field(
        False,
        description=(
            "Generate JSON in its shortest form, without whitespace between tokens. Answers have fewer tokens; models "
            "that were trained on readable JSON may write worse values. Off, a space, or a line break with its "
            "indentation, is allowed at each place. A request can set it for itself."
        ),
        json_schema_extra=about(reload="hot"),
    )
    disable_additional_properties: Flag = Field(
        False,
        description=(
            "Read every JSON schema with `properties` as if it had `additionalProperties: false`, unless it says "
            "otherwise: answers then have no properties that the schema does not list. A request can set it for itself."
        ),
        json_schema_extra=about(reload="hot"),
    )
    enable_in_reasoning: Flag = Field(
        False,
        description=(
            "Apply grammars from the first token, also for models that think. An answer that must obey a schema or a "
            "grammar, or must be a call, then has no reasoning, also where the prompt opens one. Off, a grammar begins "
            "after the reasoning."
        ),
        json_schema_extra=about(reload="hot"),
    )
    reasoning_parser: ReasoningParser = Field(
        "auto",
        description=(
            "Format of the reasoning, which answers then contain in a field of its own. `auto` takes the markers from "
            "the model's chat template, `none` leaves reasoning in the text; other values are the names of reasoning "
            "parsers in vLLM and SGLang."
        ),
        examples=["none", "qwen3", "deepseek_r1"],
        json_schema_extra=about(
            reload="process",
            aliases=("--reasoning-parser",),
            refused={name: f"{reason}; {_DECLARE}" for name, reason in sorted(NOT_DESCRIBED.items())},
        ),
    )
