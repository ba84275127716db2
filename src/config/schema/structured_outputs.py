"""Section `structured_outputs`: output constrained by a grammar, and reasoning separate from the answer."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from .refused import with_refused
from .section import Section, about
from .types import Flag

_GUIDANCE_DOES = "use `guidance`, which compiles schemas, regular expressions and grammars of all requests"


@with_refused("structured_outputs")
class StructuredOutputsConfig(Section):
    """Constrained output and reasoning."""

    json_flags: ClassVar[tuple[str, ...]] = ("--structured-outputs-config",)

    backend: Literal["auto", "guidance"] = Field(
        "auto",
        description=(
            "Library that compiles grammars and computes which tokens may follow. `auto` is `guidance` (llguidance), "
            "which compiles a schema in milliseconds."
        ),
        examples=["guidance"],
        json_schema_extra=about(
            reload="model",
            refused={
                "xgrammar": _GUIDANCE_DOES,
                "outlines": f"{_GUIDANCE_DOES}; outlines compiles for seconds where guidance takes milliseconds",
                "lm-format-enforcer": f"{_GUIDANCE_DOES}; lm-format-enforcer ignores keywords that it does not know",
            },
        ),
    )
    disable_any_whitespace: Flag = Field(
        False,
        description=(
            "Generate JSON in its shortest form, without whitespace between tokens. Answers have fewer tokens; models "
            "that were trained on readable JSON may write worse values. Off, a space, or a line break with its "
            "indentation, is allowed at each place. A request can set it for itself."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    disable_additional_properties: Flag = Field(
        False,
        description=(
            "Read every JSON schema with `properties` as if it had `additionalProperties: false`, unless it says "
            "otherwise: answers then have no properties that the schema does not list. A request can set it for itself."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
    enable_in_reasoning: Flag = Field(
        False,
        description=(
            "Apply grammars from the first token, also to the reasoning of models that think. Off, a grammar begins "
            "after the reasoning."
        ),
        examples=[True],
        json_schema_extra=about(reload="hot"),
    )
