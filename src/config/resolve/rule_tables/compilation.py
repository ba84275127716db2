"""Rules about compilation and captured graphs. The format of a rule: ../rule.py."""

from __future__ import annotations

from ...graph_sizes import written_sizes
from ..rule import Rule
from ..values import Values

_UPPER = (1, 2, 3)  # levels that ask for graphs

_SIZES = ("scheduler.cuda_graph_sizes", "compilation.cudagraph_capture_sizes")


def _differ(v: Values) -> bool:
    """Compares meanings: a single number is a maximum in the first option, and a size in the second."""
    first, second = v.config.scheduler.cuda_graph_sizes, v.config.compilation.cudagraph_capture_sizes
    captured = tuple(size for size in sorted(set(second)) if size <= v.scheduler.max_num_seqs)
    return bool(first and second) and written_sizes(first, v.scheduler.max_num_seqs) != captured


RULES: tuple[Rule, ...] = (
    Rule(
        id="R059",
        title="options of graphs need graphs",
        fields=(*_SIZES, "compilation.level", "model.enforce_eager", "model.batch_invariant", "device.device"),
        severity="warning",
        is_broken=lambda v: (
            bool(v.why_no_graphs)
            and bool(
                v.config.scheduler.cuda_graph_sizes
                or v.config.compilation.cudagraph_capture_sizes
                or v.config.compilation.level in _UPPER
            )
        ),
        message="no graphs are captured, so their options have no effect: {why_no_graphs}",
        why="Graphs are captured on CUDA devices, unless `model.enforce_eager` asks for plain PyTorch operations, "
        "`compilation.level` is 0, or `model.batch_invariant` computes one row at a time.",
        fixes=("remove the sizes and levels above 0, or what prevents graphs",),
    ),
    Rule(
        id="R119",
        title="graph sizes are at most max_num_seqs",
        fields=(*_SIZES, "scheduler.max_num_seqs"),
        severity="warning",
        is_broken=lambda v: (
            not v.why_no_graphs
            and max((0, *v.config.scheduler.cuda_graph_sizes, *v.config.compilation.cudagraph_capture_sizes))
            > v.scheduler.max_num_seqs
        ),
        message="graph sizes above `scheduler.max_num_seqs` {max_num_seqs} are ignored; used are: {graph_sizes}",
        why="No step has that number of sequences, so such a graph would only use memory.",
        fixes=("remove the sizes above {max_num_seqs}, or raise `scheduler.max_num_seqs`",),
    ),
    Rule(
        id="R190",
        title="both options for capture sizes agree",
        fields=_SIZES,
        is_broken=_differ,
        message="`scheduler.cuda_graph_sizes` and `compilation.cudagraph_capture_sizes` have different sizes",
        why="They are two names of one option. A single number is a maximum in cuda_graph_sizes - 1, 2, 4 and each "
        "multiple of 8 up to it - and a size in cudagraph_capture_sizes.",
        fixes=("remove one of the two",),
    ),
)
