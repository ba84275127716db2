"""Buckets: the sizes that steps are padded to, so that a few graphs serve all steps.

Decode steps have one token in each of R rows. Other steps have T tokens in `max_num_seqs` rows: a padding row costs a
look at its length.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

_LEAST_TOKENS = 64  # of a mixed step


@dataclass(frozen=True, slots=True)
class StepShape:
    """How many tokens and rows a step has, padding included."""

    num_tokens: int
    num_rows: int
    is_decode: bool  # one token in each row
    is_fast_path: bool  # of the sampler: every row is greedy or has only a temperature


def mixed_buckets(most: int) -> tuple[int, ...]:
    """64, 96, 128, 192 ... up to `most` tokens, each at most half as large again as the one before."""
    sizes, size = [], _LEAST_TOKENS
    while size < most:
        sizes += [size, size + size // 2]
        size *= 2
    return (*(each for each in sizes if each < most), most)


class Buckets:
    def __init__(self, decode_rows: tuple[int, ...], max_num_seqs: int, max_num_batched_tokens: int) -> None:
        """decode_rows: numbers of rows that decode steps are padded to; steps with more rows are not padded."""
        self.decode_rows = sorted({rows for rows in decode_rows if rows <= max_num_seqs})
        self.mixed_tokens = list(mixed_buckets(max_num_batched_tokens)) if decode_rows else []
        self._max_num_seqs = max_num_seqs

    def shape(self, num_tokens: int, num_rows: int, *, is_decode: bool, is_fast_path: bool) -> StepShape:
        """The smallest shape that the step fits into; the step's own if it fits into none."""
        if is_decode:
            rows = _at_least(self.decode_rows, num_rows)
            return StepShape(rows, rows, is_decode=True, is_fast_path=is_fast_path)
        if not self.mixed_tokens:
            return StepShape(num_tokens, num_rows, is_decode=False, is_fast_path=is_fast_path)
        return StepShape(
            _at_least(self.mixed_tokens, num_tokens), self._max_num_seqs, is_decode=False, is_fast_path=is_fast_path
        )

    def all_shapes(self) -> list[StepShape]:
        """The shapes of all buckets, in the order of capture: fast path first, decodes before prompts."""
        decodes = [
            StepShape(rows, rows, is_decode=True, is_fast_path=is_fast_path)
            for is_fast_path in (True, False)
            for rows in reversed(self.decode_rows)
        ]
        mixed = [
            StepShape(tokens, self._max_num_seqs, is_decode=False, is_fast_path=is_fast_path)
            for is_fast_path in (True, False)
            for tokens in reversed(self.mixed_tokens)
        ]
        return sorted((*decodes, *mixed), key=lambda shape: (not shape.is_fast_path, not shape.is_decode))


def _at_least(sizes: list[int], least: int) -> int:
    at = bisect_left(sizes, least)
    return sizes[at] if at < len(sizes) else least
