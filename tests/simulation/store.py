"""FakeStore: a store of blocks whose reads take a while, and fail in part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from random import Random

from stoker.engine.api import StoredBlocks


@dataclass(slots=True)
class FakeFetch:
    contents: list[memoryview]
    num_polls: int  # until it is done

    @property
    def is_done(self) -> bool:
        self.num_polls -= 1
        return self.num_polls < 0


class FakeStore:
    """fails: a part of the blocks is dropped when it is saved, and a part is damaged when it is read.
    is_of_others: has the blocks of other engines: those for others are kept, and those that a request names are read.
    """

    def __init__(self, name: str, *, fails: bool, is_of_others: bool = False) -> None:
        self._random = Random(f"store of {name}")
        self._fails = fails
        self.is_of_others = is_of_others
        self._contents: dict[bytes, memoryview] = {}
        self.num_read = self.num_failed = 0
        self._saving: dict[bytes, int] = {}  # polls until they are stored

    def has(self, block_hash: bytes) -> bool:
        return not self.is_of_others and block_hash in self._contents

    def wants(self, block_hash: bytes, *, is_for_others: bool) -> bool:
        return block_hash not in self._contents and (is_for_others or not self.is_of_others)

    def is_saving(self, block_hash: bytes) -> bool:
        self._saving[block_hash] = self._saving.get(block_hash, 0) - 1
        return self._saving[block_hash] >= 0

    def stored(self, hashes: Sequence[bytes]) -> StoredBlocks:
        return StoredBlocks(tuple(takewhile(self._contents.__contains__, hashes)))

    def content(self, block_hash: bytes) -> memoryview:
        return self._contents[block_hash]

    def fetch(self, hashes: Sequence[bytes], source: StoredBlocks | None) -> FakeFetch:
        contents = []
        for block_hash in hashes:
            if block_hash not in self._contents or (self._fails and self._random.random() < 0.1):
                self._contents.pop(block_hash, None)
                self.num_failed += 1
                break
            contents.append(self._contents[block_hash])
            self.num_read += 1
        return FakeFetch(contents, self._random.randrange(5))

    def save(self, block_hash: bytes, content: memoryview, *, is_for_others: bool) -> None:
        self._saving[block_hash] = self._random.randrange(4)
        if not self._fails or self._random.random() < 0.9:
            self._contents[block_hash] = content
