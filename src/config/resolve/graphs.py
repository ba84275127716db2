"""For which numbers of decode rows a CUDA device captures graphs: the rules behind `scheduler.cuda_graph_sizes`."""

from __future__ import annotations

from collections.abc import Sequence

# A step is filled up to the next size. Up to 8 rows a row more costs nothing that one would notice, from 32 on
# the sizes lie a third apart or less, so at most a quarter of a step's rows are filling.
USUAL_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def usual_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """The usual sizes below `max_num_seqs`, and that itself: no step of decodes is without its graph."""
    return (*(size for size in USUAL_SIZES if size < max_num_seqs), max_num_seqs)


def written_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """What `scheduler.cuda_graph_sizes` means: several numbers are the sizes, one is a limit of them."""
    if len(sizes) != 1:
        return tuple(sorted(set(sizes)))
    last = sizes[0]
    return tuple(size for size in (1, 2, 4, *range(8, last + 1, 8)) if size <= last)
