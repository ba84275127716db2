"""Names of KV cache blocks: a hash chain over token ids, by the algorithm of `cache.prefix_caching_hash_algo`.

The name of a full block is a digest of the name before it and of its own token ids, so equal names mean equal prefixes
from the first token on. Before a sequence's first block stands its root, made from the cache salt: requests with
different salts share nothing.

- sha256: SHA-256 of the name before and the ids as 32-bit little-endian integers.
- sha256_cbor: SHA-256 of the canonical CBOR (RFC 8949, section 4.2) of `[name before, [ids], null]`; the root is that
  of the salt as a text. Any program that has a CBOR library makes the same names.
- blake2b: BLAKE2b of 128 bits over the bytes that sha256 takes; half as long to keep.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b, sha256
from typing import Literal

HashAlgo = Literal["sha256", "sha256_cbor", "blake2b"]
_SHORT_BYTES = 16  # 128 bits: a chance collision needs about 2**64 blocks


class BlockNames:
    """How one engine names its blocks."""

    def __init__(self, algo: HashAlgo) -> None:
        self._root, self._next = _ALGORITHMS[algo]

    def root(self, cache_salt: str) -> bytes:
        """What stands before a sequence's first block."""
        return self._root(cache_salt.encode("utf-8", "surrogatepass"))

    def extend(
        self, names: list[bytes], root: bytes, token_ids: Sequence[int], block_size: int, num_blocks: int
    ) -> None:
        """Append to `names` until it names the first `num_blocks` blocks of `token_ids`. Each id must fit in int32."""
        done = len(names)
        if done >= num_blocks:
            return
        # the missing blocks only, so that naming one more costs the same however long the sequence is
        missing = array("i", token_ids[done * block_size : num_blocks * block_size])
        name = names[-1] if names else root
        data, step = missing.tobytes(), block_size * missing.itemsize
        for start in range(0, len(data), step):
            name = self._next(name, data[start : start + step])
            names.append(name)

    def append(self, names: list[bytes], root: bytes, block: bytes) -> None:
        """The name of the block after those named; `block`: its ids as int32."""
        names.append(self._next(names[-1] if names else root, block))


def _sha256_root(salt: bytes) -> bytes:
    return sha256(b"stoker kv root " + salt).digest()


def _sha256_next(before: bytes, block: bytes) -> bytes:
    return sha256(before + block).digest()


def _cbor_root(salt: bytes) -> bytes:
    return sha256(_cbor_head(3, len(salt)) + salt).digest()


def _cbor_next(before: bytes, block: bytes) -> bytes:
    token_ids = array("i", block)
    ids = b"".join([_cbor_head(0, token_id) for token_id in token_ids])
    head = b"\x83" + _cbor_head(2, len(before)) + before + _cbor_head(4, len(token_ids))
    return sha256(head + ids + b"\xf6").digest()


def _cbor_head(kind: int, number: int) -> bytes:
    """A CBOR head in its shortest form, for numbers below 2**32: 0 unsigned, 2 bytes, 3 text, 4 array."""
    if number < 24:
        return bytes((kind << 5 | number,))
    width = 1 if number < 1 << 8 else 2 if number < 1 << 16 else 4
    return bytes((kind << 5 | 23 + width.bit_length(),)) + number.to_bytes(width)


def _blake2b_root(salt: bytes) -> bytes:
    return blake2b(salt, digest_size=_SHORT_BYTES, person=b"stoker kv root").digest()


def _blake2b_next(before: bytes, block: bytes) -> bytes:
    return blake2b(before + block, digest_size=_SHORT_BYTES).digest()


_ALGORITHMS: dict[HashAlgo, tuple[Callable[[bytes], bytes], Callable[[bytes, bytes], bytes]]] = {
    "sha256": (_sha256_root, _sha256_next),
    "sha256_cbor": (_cbor_root, _cbor_next),
    "blake2b": (_blake2b_root, _blake2b_next),
}
