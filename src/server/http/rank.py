"""The header X-Data-Parallel-Rank: a router outside chooses the replica, because it knows what each has cached."""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol.errors import bad_request

HEADER = "X-Data-Parallel-Rank"


def named_rank(headers: Sequence[tuple[bytes, bytes]], ranks: range) -> int | None:
    """Rank in the header; None without the header. ranks: of this server. Raises ApiError 400 for others."""
    sent = [value for name, value in headers if name == b"x-data-parallel-rank"]
    if not sent:
        return None
    text = sent[0].strip()
    rank = int(text) if len(text) < 8 and text.isdigit() else -1
    if len(sent) > 1 or rank not in ranks:
        served = f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"{ranks[0]}"
        raise bad_request(f"the header {HEADER} must be the rank of a replica of this server: {served}", param=HEADER)
    return rank
