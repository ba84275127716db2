"""An AdapterStore without weights: the outside of what reads adapters for requests."""

from __future__ import annotations

import threading
from collections import Counter

from stoker.engine.api import AdapterError, AdapterRef
from stoker.engine.core.adapter_slots import AdapterSettings
from stoker.engine.loop.adapter_reader import AdapterReader


class FakeStore:
    """Reads an adapter when the test allows it. A copy is needed while a sequence holds it or a step pins it: this one
    knows only the slots that the test names."""

    def __init__(self, max_copies: int = 1000) -> None:
        self.max_copies = max_copies
        self.copies: dict[str, AdapterRef] = {}
        self.held: Counter[str] = Counter()
        self.pinned: Counter[str] = Counter()
        self.missing: set[str] = set()  # names of adapters whose files are gone
        self.reads: list[str] = []  # names
        self.in_slots: set[str] = set()  # digests
        self.may_read = threading.Event()
        self.may_read.set()

    def has(self, digest: str) -> bool:
        return digest in self.copies

    touch = has

    def load(self, ref: AdapterRef) -> None:
        assert self.may_read.wait(60)
        self.reads.append(ref.name)
        if ref.name in self.missing:
            raise AdapterError(f"adapter `{ref.name}` is gone", code="adapter_unreadable")
        unneeded = [each for each in self.copies if not (self.held[each] or self.pinned[each])]
        for digest in unneeded[: max(0, len(self.copies) + 1 - self.max_copies)]:
            del self.copies[digest]
        self.copies[ref.digest] = ref

    def forget(self, digest: str) -> None:
        self.copies.pop(digest, None)

    def hold(self, digest: str) -> None:
        self.held[digest] += 1

    def drop(self, digest: str) -> None:
        self.held[digest] -= 1
        assert self.held[digest] >= 0

    def pin(self, digest: str) -> None:
        assert digest in self.copies, "a step is to place an adapter that is not in memory"
        self.pinned[digest] += 1

    def unpin(self, digest: str) -> None:
        self.pinned[digest] -= 1
        assert self.pinned[digest] >= 0

    def has_space(self, num_reading: int) -> bool:
        needed = sum(bool(self.held[each] or self.pinned[each]) for each in self.copies)
        return needed + num_reading <= self.max_copies

    def make_space(self) -> None:
        for digest in self.copies:
            if self.held[digest] and not self.pinned[digest] and digest not in self.in_slots:
                del self.copies[digest]
                return


def adapters_in_memory(max_loras: int) -> AdapterSettings:
    """Every adapter is in memory as soon as a request names it."""
    return AdapterSettings(max_loras, AdapterReader(FakeStore(), waits=True))
