"""Rules about constrained output and reasoning. The format of a rule: ../rule.py."""

from __future__ import annotations

from ..rule import Rule

RULES = (
    Rule(
        id="R500",
        title="guidance compiles all grammars",
        fields=("structured_outputs.backend",),
        severity="warning",
        is_broken=lambda v: v.structured_outputs.backend not in ("auto", "guidance"),
        message="`structured_outputs.backend` is {backend}; `guidance` compiles the grammars of this build",
        why="It has one library for schemas, regular expressions and grammars; the text that they allow is the same.",
        fixes=("remove it, or write guidance",),
    ),
)
