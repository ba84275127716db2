"""checksum: by which a stored block is recognised as the one that was saved under its hash."""

from __future__ import annotations

import zlib

SUM_BYTES = 4


def checksum(block_hash: bytes, content: memoryview) -> bytes:
    """CRC-32 of the content, begun with the hash."""
    return zlib.crc32(content, zlib.crc32(block_hash)).to_bytes(SUM_BYTES, "little")
