"""Prefix cache: which block already holds the keys and values of a given run of tokens.

A full block is named by a hash chain: its own token ids and the name of the block before it, so equal names mean equal
prefixes from the first token on. The chain starts from the cache salt; requests with different salts share nothing.
Knows names and block ids. Who holds a block, and when it is reused, is the pool's affair (block_pool.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from itertools import islice

HASH_BYTES = 16  # 128 bits: a chance collision needs about 2**64 blocks


def root_hash(cache_salt: str) -> bytes:
    """The name that stands before a sequence's first block."""
    salt = cache_salt.encode("utf-8", "surrogatepass")
    return blake2b(salt, digest_size=HASH_BYTES, person=b"stoker kv root").digest()


def extend_hashes(hashes: list[bytes], root: bytes, token_ids: Sequence[int], block_size: int, num_blocks: int) -> None:
    """Append to `hashes` until it names the first `num_blocks` blocks of `token_ids`. Each id must fit in int32."""
    done = len(hashes)
    if done >= num_blocks:
        return
    width = 4 * block_size
    # bytes of the missing blocks only, so that naming one more block costs the same however long the sequence is
    content = array("i", token_ids[done * block_size : num_blocks * block_size]).tobytes()
    parent = hashes[-1] if hashes else root
    for start in range(0, len(content), width):
        parent = blake2b(parent + content[start : start + width], digest_size=HASH_BYTES).digest()
        hashes.append(parent)


class PrefixCache:
    """A two-way map between names of full blocks and block ids; the first block published under a name keeps it."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._hashes

    def find(self, hashes: Sequence[bytes], start: int, stop: int) -> list[int]:
        """Ids of the blocks named by hashes[start:stop], up to the first that is missing."""
        found = []
        for block_hash in islice(hashes, start, stop):
            block_id = self._blocks.get(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def publish(self, block_hash: bytes, block_id: int) -> None:
        """Let others find `block_id`. A name that is taken stays with its block: block tables only ever grow, so a
        second copy that is already in one cannot be merged, and it simply stays unnamed."""
        if block_hash not in self._blocks:
            assert block_id not in self._hashes, f"block {block_id} already has a name"
            self._blocks[block_hash] = block_id
            self._hashes[block_id] = block_hash

    def forget(self, block_id: int) -> None:
        """The block is about to hold something else."""
        del self._blocks[self._hashes.pop(block_id)]

    def forget_all(self) -> None:
        self._blocks.clear()
        self._hashes.clear()
