"""For which numbers of decode rows a CUDA device captures graphs: the rules behind `scheduler.cuda_graph_sizes`."""

from __future__ import annotations

from collections.abc import Sequence

_FIRST_SIZES = (1, 2, 4, 8)


def usual_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 16, 24, 32, 48, 64, 96 ... below `max_num_seqs`, and that itself: no step of decodes is without its
    graph.

    A step is filled up to the next size. Up to 8 rows a row more costs nothing that one would notice; beyond 16 each
    size is at most half as large again as the one before, so that at most a third of a step's rows only fill it up.
    """
    sizes, size = list(_FIRST_SIZES), 16
    while size < max_num_seqs:
        sizes += [size, size + size // 2]
        size *= 2
    return (*(size for size in sizes if size < max_num_seqs), max_num_seqs)


def written_sizes(sizes: Sequence[int], max_num_seqs: int) -> tuple[int, ...]:
    """What `scheduler.cuda_graph_sizes` means: several numbers are the sizes, one is a limit of them.

    None is above `max_num_seqs`: no step has more rows.
    """
    if len(sizes) != 1:
        return tuple(size for size in sorted(set(sizes)) if size <= max_num_seqs)
    last = min(sizes[0], max_num_seqs)
    return tuple(size for size in (1, 2, 4, *range(8, last + 1, 8)) if size <= last)
