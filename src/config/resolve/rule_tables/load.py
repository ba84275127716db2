"""Rules about how files become weights. How a rule is written: ../rule.py."""

from __future__ import annotations

from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = ()

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R079",
        "auto is safetensors",
        ("load.load_format",),
        "Other systems fall back to pickle files; they can run code, so here they are refused.",
    ),
)
