"""Comment lines in a stream that has nothing to send, so that proxies with a read timeout keep its connection open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

COMMENT = b": keep-alive\n\n"  # clients skip lines that begin with a colon


async def kept_alive(frames: AsyncGenerator[bytes, None], interval_s: float) -> AsyncGenerator[bytes, None]:
    """`frames`, and a comment after each `interval_s` without one. The caller closes `frames`."""
    following: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(_next(frames))
            await asyncio.wait([following], timeout=interval_s)
            if not following.done():
                yield COMMENT
                continue
            frame, following = following.result(), None
            if frame is None:
                return
            yield frame
    finally:
        if following is not None:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following


async def _next(frames: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(frames, None)
