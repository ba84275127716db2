"""The rows of a tile of tokens."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_of_tokens(query_start, tokens, num_rows, first_width):
    """The row of each token: the last one that begins at or before it, num_rows for tokens after the last row.

    By bisection. Rows without tokens are skipped. first_width: a power of two, at least num_rows.
    """
    rows = tl.zeros_like(tokens)
    width = first_width
    while width > 0:
        further = tl.minimum(rows + width, num_rows)
        rows = tl.where(tl.load(query_start + further) <= tokens, further, rows)
        width = width // 2
    return rows
