"""Rules about constrained output and reasoning. The format of a rule: ../rule.py."""

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
        "Each is mapped onto its key with a warning (C123); different values in both places are an error (C124).",
    ),
    StatedRule(
        "R171",
        "the name of a backend may be followed by options",
        ("structured_outputs.guided_decoding_backend",),
        "`xgrammar:no-fallback,disable-any-whitespace` sets the backend and two keys; an unknown option is an "
        "error that lists the known ones.",
    ),
    StatedRule(
        "R172",
        "a request may select its own backend",
        ("structured_outputs.backend",),
        "With `guided_decoding_backend`; the name of one that this build does not have is answered 400.",
    ),
    StatedRule(
        "R173",
        "compact JSON and closed schemas need certain backends",
        (
            "structured_outputs.backend",
            "structured_outputs.disable_any_whitespace",
            "structured_outputs.disable_additional_properties",
        ),
        "Cannot occur: `guidance`, the backend of this build, has both.",
    ),
    StatedRule(
        "R174",
        "the flag --reasoning-parser is a key of structured_outputs",
        ("structured_outputs.reasoning_parser",),
        "It is one option with several notations, so they cannot disagree.",
    ),
)
