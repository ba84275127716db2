"""Rules about constrained output and reasoning. How a rule is written: ../rule.py."""

from __future__ import annotations

from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = ()

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R170",
        "four old options are keys of structured_outputs",
        (
            "structured_outputs.guided_decoding_backend",
            "structured_outputs.guided_decoding_disable_fallback",
            "structured_outputs.guided_decoding_disable_any_whitespace",
            "structured_outputs.guided_decoding_disable_additional_properties",
            "structured_outputs.backend",
        ),
        "Each is put there with a warning (C123); a value that is written differently in both places is an "
        "error (C124).",
    ),
    StatedRule(
        "R171",
        "options may follow the name of a backend",
        ("structured_outputs.guided_decoding_backend",),
        "`xgrammar:no-fallback,disable-any-whitespace` sets the backend and two keys; an unknown word is an "
        "error that lists the known ones.",
    ),
    StatedRule(
        "R172",
        "a request may name its own backend",
        ("structured_outputs.backend",),
        "Cannot occur: a request that asks for constrained output is answered 400.",
    ),
    StatedRule(
        "R173",
        "compact JSON and closed schemas need certain backends",
        (
            "structured_outputs.backend",
            "structured_outputs.disable_any_whitespace",
            "structured_outputs.disable_additional_properties",
        ),
        "Cannot occur: all three are at their defaults in this build.",
    ),
    StatedRule(
        "R174",
        "the flag --reasoning-parser is a key of structured_outputs",
        ("structured_outputs.reasoning_parser",),
        "One option with several spellings, so the two cannot disagree.",
    ),
)
