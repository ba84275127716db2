"""Buckets: the sizes that steps are padded to, so that few graphs serve all of them.

Decode steps have one token in each of R rows. Other steps have T tokens in at most `max_num_seqs` rows: what a row too
many costs is a look at its length.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

_LEAST_TOKENS = 64  # of a mixed step


@dataclass(frozen=True, slots=True)
class StepShape:
    """How many tokens and rows a step has, those that fill it up included."""

    num_tokens: int
    num_rows: int
    is_decode: bool  # one token in each row
    is_lean: bool  # no row needs more of the sampler than temperature


def mixed_buckets(most: int) -> tuple[int, ...]:
    """64, 96, 128, 192 ... up to `most` tokens, each at most half as large again as the one before."""
    sizes, size = [], _LEAST_TOKENS
    while size < most:
        sizes += [size, size + size // 2]
        size *= 2
    return (*(each for each in sizes if each < most), most)


class Buckets:
    def __init__(self, decode_rows: tuple[int, ...], max_num_seqs: int, max_num_batched_tokens: int) -> None:
        """decode_rows: numbers of rows that steps of decode are padded to; steps with more rows are not padded."""
        self.decode_rows = sorted({rows for rows in decode_rows if rows <= max_num_seqs})
        self.mixed_tokens = list(mixed_buckets(max_num_batched_tokens)) if decode_rows else []
        self._max_num_seqs = max_num_seqs

    def shape(self, num_tokens: int, num_rows: int, *, is_decode: bool, is_lean: bool) -> StepShape:
        """The least shape that holds the step; its own one where no bucket does."""
        if is_decode:
            rows = _at_least(self.decode_rows, num_rows)
            return StepShape(rows, rows, is_decode=True, is_lean=is_lean)
        if not self.mixed_tokens:
            return StepShape(num_tokens, num_rows, is_decode=False, is_lean=is_lean)
        return StepShape(_at_least(self.mixed_tokens, num_tokens), self._max_num_seqs, is_decode=False, is_lean=is_lean)

    def all_shapes(self) -> list[StepShape]:
        """Every shape that a bucket stands for, those first whose lack would be felt first: decodes, then prompts."""
        decodes = [
            StepShape(rows, rows, is_decode=True, is_lean=is_lean)
            for is_lean in (True, False)
            for rows in reversed(self.decode_rows)
        ]
        mixed = [
            StepShape(tokens, self._max_num_seqs, is_decode=False, is_lean=is_lean)
            for is_lean in (True, False)
            for tokens in reversed(self.mixed_tokens)
        ]
        return sorted((*decodes, *mixed), key=lambda shape: (not shape.is_lean, not shape.is_decode))


def _at_least(sizes: list[int], least: int) -> int:
    at = bisect_left(sizes, least)
    return sizes[at] if at < len(sizes) else least
