"""What a deployment can do, as facts that clients choose their behaviour by."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from ..formats.format import Format, Harmony
from ..model.pooling import Pooling, PoolTask
from ..text.switches import THINKING_SWITCHES

# An ability is a task of a model's heads, that it generates text, or that it can say how well two texts match.
Ability = PoolTask | Literal["generate", "score"]
_EFFORTS = ("low", "medium", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a model with a chat template can do.

    tools: calls of tools are returned as objects.
    vision: messages may have images.
    reasoning: reasoning is separate from the answer.
    structured: an answer can be constrained by a schema or a grammar.
    reasoning_levels: values of `reasoning_effort` that change the prompt.
    """

    tools: bool = False
    vision: bool = False
    reasoning: bool = False
    structured: bool = False
    reasoning_levels: tuple[str, ...] = ()


def capabilities_of(format: Format | None, variables: Collection[str]) -> Capabilities:
    """Capabilities of a model with a chat template. format: of its answers. variables: read by the template."""
    calls = None if format is None else format.calls
    is_harmony = calls is not None and isinstance(calls.style, Harmony)
    return Capabilities(
        tools=calls is not None and "tools" in variables,
        reasoning=is_harmony or (format is not None and format.reasoning is not None),
        structured=True,
        reasoning_levels=reasoning_levels(variables),
    )


def reasoning_levels(variables: Collection[str]) -> tuple[str, ...]:
    """variables: that the chat template reads."""
    is_switch = any(name in variables for name in THINKING_SWITCHES)
    levels = _EFFORTS if "reasoning_effort" in variables else ("medium",) if is_switch else ()
    return ("none", *levels) if is_switch else levels


def abilities_of(pooling: Pooling | None, *, generates: bool) -> frozenset[Ability]:
    """What a model can do. Texts are compared by one number for a pair of them, or by their vectors."""
    found: set[Ability] = {"generate"} if generates else set()
    for head in () if pooling is None else pooling.heads:
        found.add(head.task)
        if head.task in ("embed", "token_embed") or (head.task == "classify" and head.width == 1):
            found.add("score")
    return frozenset(found)
