"""Rules about compilation and captured graphs. How a rule is written: ../rule.py."""

from __future__ import annotations

from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = ()

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R008",
        "a level has many spellings",
        ("compilation.level",),
        "-O3, -O 3, -O=3, -O.level=3 and --compilation-config 3 all set the level; further -O.key=value pairs join it.",
    ),
    StatedRule(
        "R060",
        "long sequences ran without graphs",
        ("model.max_seq_len_to_capture",),
        "The option is dropped with a warning: no graph depends on the length of a sequence.",
    ),
    StatedRule(
        "R061",
        "two old names of one limit",
        ("model.max_context_len_to_capture", "model.max_seq_len_to_capture"),
        "Both are dropped with a warning.",
    ),
    StatedRule(
        "R064",
        "prompts as embeddings double the time of compilation",
        ("model.enable_prompt_embeds",),
        "Cannot occur: embeddings as prompts are refused.",
    ),
    StatedRule(
        "R189",
        "levels are 0 to 3",
        ("compilation.level",),
        "0 compiles nothing, which is true of this build; 1 to 3 are refused.",
    ),
    StatedRule(
        "R190",
        "capture sizes are written once",
        ("compilation.cudagraph_capture_sizes", "scheduler.cuda_graph_sizes"),
        "Cannot occur: both are refused.",
    ),
)
