"""Block hashes: a hash chain over token ids, by the algorithm of `cache.prefix_caching_hash_algo`.

The hash of a full block covers the previous block's hash and the block's own token ids, so equal hashes mean equal
prefixes from the first token on. The chain of a sequence starts with its root, made from the cache salt: requests with
different salts share no blocks. Where token ids do not say what they stand for, the hash covers the extra keys of the
block too (`CacheScope.extra_keys`).

- sha256: SHA-256 of the previous hash and the ids as 32-bit little-endian integers, and the canonical CBOR of the extra
  keys, if there are some.
- sha256_cbor: SHA-256 of the canonical CBOR (RFC 8949, section 4.2) of `[previous hash, [ids], null]`, with
  `[[key, offset], ...]` in place of null if there are extra keys; the root is the SHA-256 of the salt as a CBOR text.
  Any program with a CBOR library can compute the same hashes.
- blake2b: BLAKE2b of 128 bits over the same bytes as sha256; half the memory per hash.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b, sha256
from typing import Literal

from ..api import CacheScope

HashAlgo = Literal["sha256", "sha256_cbor", "blake2b"]
_ID_BYTES = array("i").itemsize
_SHORT_BYTES = 16  # 128 bits: a chance collision needs about 2**64 blocks


class BlockHasher:
    """Computes the block hashes of one engine."""

    def __init__(self, algo: HashAlgo) -> None:
        self._root, self._next = _ALGORITHMS[algo]

    def root(self, scope: CacheScope) -> bytes:
        """The hash before a sequence's first block."""
        return self._root(scope.root_text.encode("utf-8", "surrogatepass"))

    def extend(
        self, hashes: list[bytes], scope: CacheScope, token_ids: Sequence[int], block_size: int, num_blocks: int
    ) -> None:
        """Append to `hashes` until it has the hashes of the first `num_blocks` blocks of `token_ids`.

        Each id must fit in int32.
        """
        done = len(hashes)
        if done >= num_blocks:
            return
        # only the missing blocks: one more block costs the same for a sequence of any length
        missing = array("i", token_ids[done * block_size : num_blocks * block_size])
        block_hash = hashes[-1] if hashes else self.root(scope)
        data, step, extra = missing.tobytes(), block_size * missing.itemsize, b""
        for start in range(0, len(data), step):
            if scope.spans:
                extra = _extra(scope, len(hashes), block_size)
            block_hash = self._next(block_hash, data[start : start + step], extra)
            hashes.append(block_hash)

    def append(self, hashes: list[bytes], scope: CacheScope, block: bytes) -> None:
        """Append the hash of one more block. `block`: its token ids as int32."""
        extra = _extra(scope, len(hashes), len(block) // _ID_BYTES) if scope.spans else b""
        hashes.append(self._next(hashes[-1] if hashes else self.root(scope), block, extra))


def _sha256_root(salt: bytes) -> bytes:
    return sha256(b"stoker kv root " + salt).digest()


def _sha256_next(before: bytes, block: bytes, extra: bytes) -> bytes:
    return sha256(before + block + extra).digest()


def _cbor_root(salt: bytes) -> bytes:
    return sha256(_cbor_head(3, len(salt)) + salt).digest()


def _cbor_next(before: bytes, block: bytes, extra: bytes) -> bytes:
    token_ids = array("i", block)
    ids = b"".join([_cbor_head(0, token_id) for token_id in token_ids])
    head = b"\x83" + _cbor_head(2, len(before)) + before + _cbor_head(4, len(token_ids))
    return sha256(head + ids + (extra or b"\xf6")).digest()


def _extra(scope: CacheScope, index: int, block_size: int) -> bytes:
    """The extra keys of a block as a CBOR array of pairs; empty if it has none."""
    keys = scope.extra_keys(index * block_size, (index + 1) * block_size)
    pairs = [_cbor_pair(key.encode(), offset) for key, offset in keys]
    return _cbor_head(4, len(pairs)) + b"".join(pairs) if pairs else b""


def _cbor_pair(key: bytes, offset: int) -> bytes:
    number = _cbor_head(0, offset) if offset >= 0 else _cbor_head(1, -1 - offset)
    return _cbor_head(4, 2) + _cbor_head(3, len(key)) + key + number


def _cbor_head(kind: int, number: int) -> bytes:
    """A CBOR head in its shortest form, for numbers below 2**32: 0 unsigned, 1 negative, 2 bytes, 3 text, 4 array."""
    if number < 24:
        return bytes((kind << 5 | number,))
    width = 1 if number < 1 << 8 else 2 if number < 1 << 16 else 4
    return bytes((kind << 5 | 23 + width.bit_length(),)) + number.to_bytes(width)


def _blake2b_root(salt: bytes) -> bytes:
    return blake2b(salt, digest_size=_SHORT_BYTES, person=b"stoker kv root").digest()


def _blake2b_next(before: bytes, block: bytes, extra: bytes) -> bytes:
    return blake2b(before + block + extra, digest_size=_SHORT_BYTES).digest()


_ALGORITHMS: dict[HashAlgo, tuple[Callable[[bytes], bytes], Callable[[bytes, bytes, bytes], bytes]]] = {
    "sha256": (_sha256_root, _sha256_next),
    "sha256_cbor": (_cbor_root, _cbor_next),
    "blake2b": (_blake2b_root, _blake2b_next),
}
