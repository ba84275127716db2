"""Rules about compilation and captured graphs. How a rule is written: ../rule.py."""

from __future__ import annotations

from ..graphs import written_sizes
from ..rule import Rule, StatedRule
from ..values import Values

_UPPER = (1, 2, 3)  # levels that ask for graphs

_SIZES = ("scheduler.cuda_graph_sizes", "compilation.cudagraph_capture_sizes")


def _differ(v: Values) -> bool:
    """By what they mean: one number alone is a limit under the one name, and itself under the other."""
    first, second = v.config.scheduler.cuda_graph_sizes, v.config.compilation.cudagraph_capture_sizes
    captured = tuple(size for size in sorted(set(second)) if size <= v.max_num_seqs)
    return bool(first and second) and written_sizes(first, v.max_num_seqs) != captured


RULES: tuple[Rule, ...] = (
    Rule(
        id="R059",
        title="without graphs their options have no effect",
        fields=(*_SIZES, "compilation.level", "model.enforce_eager", "model.batch_invariant", "device.device"),
        severity="warning",
        is_broken=lambda v: (
            bool(v.no_graphs)
            and bool(
                v.config.scheduler.cuda_graph_sizes
                or v.config.compilation.cudagraph_capture_sizes
                or v.config.compilation.level in _UPPER
            )
        ),
        message="no graphs are captured, so their options have no effect: {no_graphs}",
        why="Graphs are captured on CUDA devices, unless `model.enforce_eager` asks for plain PyTorch operations, "
        "`compilation.level` is 0, or `model.batch_invariant` computes one row at a time.",
        fixes=("remove the sizes and levels above 0, or what stands against graphs",),
    ),
    Rule(
        id="R119",
        title="graph sizes are not captured beyond max_num_seqs",
        fields=(*_SIZES, "scheduler.max_num_seqs"),
        severity="warning",
        is_broken=lambda v: (
            not v.no_graphs
            and max((0, *v.config.scheduler.cuda_graph_sizes, *v.config.compilation.cudagraph_capture_sizes))
            > v.max_num_seqs
        ),
        message="graph sizes above `scheduler.max_num_seqs` {max_num_seqs} are left out; there remain: {graph_sizes}",
        why="No step has so many sequences, so such a graph would take memory for nothing.",
        fixes=("remove the sizes above {max_num_seqs}, or raise `scheduler.max_num_seqs`",),
    ),
    Rule(
        id="R190",
        title="capture sizes are written once",
        fields=_SIZES,
        is_broken=_differ,
        message="`scheduler.cuda_graph_sizes` and `compilation.cudagraph_capture_sizes` say different sizes",
        why="They are two names of one thing. One number alone is a limit in cuda_graph_sizes - 1, 2, 4 and each "
        "multiple of 8 up to it - and itself in cudagraph_capture_sizes.",
        fixes=("remove one of the two",),
    ),
)

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
        "0 captures no graphs. 1, 2, 3 and auto capture them and are the same here, since this build compiles nothing.",
    ),
)
