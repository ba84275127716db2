"""Section `structured_outputs`: output that follows a grammar, and reasoning apart from the answer."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from .section import Section, about
from .types import Flag

FREE_TEXT = "this build does not constrain output yet; a request that asks for it is answered 400"
NO_REASONING = "reasoning stays in the text of the answer, between the model's own marks"


class StructuredOutputsConfig(Section):
    """Constrained output and reasoning."""

    json_flags: ClassVar[tuple[str, ...]] = ("--structured-outputs-config",)

    backend: Literal["auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer"] = Field(
        "auto",
        description="The engine for grammars.",
        examples=["auto"],
        json_schema_extra=about(reload="process", devices=(), refused=FREE_TEXT),
    )
    disable_fallback: Flag = Field(
        False,
        description="Fail a request that the engine for grammars cannot handle, without trying another.",
        examples=[True],
        json_schema_extra=about(reload="process", devices=(), refused=FREE_TEXT),
    )
    disable_any_whitespace: Flag = Field(
        False,
        description="JSON without spaces that nobody needs.",
        examples=[True],
        json_schema_extra=about(reload="process", devices=(), refused=FREE_TEXT),
    )
    disable_additional_properties: Flag = Field(
        False,
        description="JSON objects without properties that the schema does not list.",
        examples=[True],
        json_schema_extra=about(reload="process", devices=(), refused=FREE_TEXT),
    )
    reasoning_parser: str | None = Field(
        None,
        description="The format that separates reasoning from the answer.",
        examples=["qwen3"],
        json_schema_extra=about(
            reload="process", devices=(), aliases=("--reasoning-parser",), same=("",), refused=NO_REASONING
        ),
    )
