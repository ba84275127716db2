"""Buckets: the sizes that steps are padded to, so that a few graphs serve all steps.

Decode steps have one token in each of R rows, or another fixed number. Other steps have T tokens in `max_num_seqs`
rows: a padding row costs a look at its length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from ..step_shape import StepFlag, StepShape

_LEAST_TOKENS = 64  # of a mixed step
_FULL = StepFlag.FULL_SAMPLER


def mixed_buckets(most: int) -> tuple[int, ...]:
    """64, 96, 128, 192 ... up to `most` tokens, each at most half as large again as the one before."""
    sizes, size = [], _LEAST_TOKENS
    while size < most:
        sizes += [size, size + size // 2]
        size *= 2
    return (*(each for each in sizes if each < most), most)


class Buckets:
    def __init__(
        self,
        decode_rows: tuple[int, ...],
        max_num_seqs: int,
        max_num_batched_tokens: int,
        *,
        tokens_per_row: tuple[int, ...] = (1,),
        feature_flags: Iterable[StepFlag] = (),
    ) -> None:
        """
        decode_rows: numbers of rows that decode steps are padded to; steps with more rows are not padded.
        tokens_per_row: numbers that decode steps have in each row.
        feature_flags: of which steps may have one; steps with several have shapes that are not captured.
        """
        self._flags = [base | full for base in (0, *feature_flags) for full in (0, _FULL)]
        limits = {count: min(max_num_seqs, max_num_batched_tokens // count) for count in tokens_per_row}
        # The key is the number of tokens per row.
        self._decode_rows = {
            count: sorted({rows for rows in decode_rows if rows <= limit}) for count, limit in limits.items()
        }
        self._mixed_tokens = list(mixed_buckets(max_num_batched_tokens)) if decode_rows else []
        self._max_num_seqs = max_num_seqs

    def shape(self, num_tokens: int, num_rows: int, *, most: int, flags: int = 0) -> StepShape:
        """The smallest shape that the step fits into; the step's own if it fits into none.

        most: largest number of tokens in a row. flags: of StepFlag.
        """
        if num_tokens == most * num_rows and most in self._decode_rows:
            rows = _at_least(self._decode_rows[most], num_rows)
            return StepShape(rows * most, rows, most, flags)
        if not self._mixed_tokens:
            return StepShape(num_tokens, num_rows, 0, flags)
        return StepShape(_at_least(self._mixed_tokens, num_tokens), self._max_num_seqs, 0, flags)

    def all_shapes(self) -> list[StepShape]:
        """The shapes of all buckets, in the order of capture: without flags first, decodes before prompts."""
        shapes = []
        for flags in self._flags:
            for count, sizes in self._decode_rows.items():
                shapes += [StepShape(rows * count, rows, count, flags) for rows in reversed(sizes)]
            shapes += [StepShape(each, self._max_num_seqs, 0, flags) for each in reversed(self._mixed_tokens)]
        return shapes


def _at_least(sizes: list[int], least: int) -> int:
    at = bisect_left(sizes, least)
    return sizes[at] if at < len(sizes) else least
