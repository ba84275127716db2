"""Numbers of decode rows for which a CUDA device captures graphs: the meaning of `scheduler.cuda_graph_sizes`."""

from __future__ import annotations

from collections.abc import Sequence

_FIRST_SIZES = (1, 2, 4, 8)


def usual_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 16, 24, 32, 48, 64, 96 ... below `max_num_seqs`, and `max_num_seqs`: every decode step has a graph.

    A step is padded to the next size. Up to 8 rows one more row has no measurable cost; beyond 16 each size is at most
    1.5 times the one before, so that at most a third of the rows of a step are padding.
    """
    sizes, size = list(_FIRST_SIZES), 16
    while size < max_num_seqs:
        sizes += [size, size + size // 2]
        size *= 2
    return (*(size for size in sizes if size < max_num_seqs), max_num_seqs)


def written_sizes(sizes: Sequence[int], max_num_seqs: int) -> tuple[int, ...]:
    """The meaning of `scheduler.cuda_graph_sizes`: several numbers are the sizes, a single one is their maximum.

    Sizes above `max_num_seqs` are left out: no step has more rows.
    """
    if len(sizes) != 1:
        return tuple(size for size in sorted(set(sizes)) if size <= max_num_seqs)
    last = min(sizes[0], max_num_seqs)
    return tuple(size for size in (1, 2, 4, *range(8, last + 1, 8)) if size <= last)
