"""Adapters: the copies of adapters that a process has in memory, and which of them is in which slot.

A CPU computes from the copies: to place an adapter in a slot is to write addresses in a table, and never reads a file.
Copies that nothing needs are kept for later, the newest first, up to a number (`lora.max_cpu_loras`).
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import torch

from ...config import ModelFilesError
from ...config.checkpoint.adapter_config import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from ...config.checkpoint.adapter_files import adapter_digest
from ...model.adapter import AdapterSpec
from ..api import AdapterError, AdapterRef
from .places import Places
from .weights import AdapterWeights, read_weights

Read = Callable[[Path], AdapterSpec]


class OtherCopies(Protocol):
    """The copies of other processes of the model, which follow those of this one."""

    def read(self, ref: AdapterRef) -> None:
        """Begin to read an adapter."""

    def wait_read(self, ref: AdapterRef) -> None:
        """Wait until all have read it. Raises AdapterError if one cannot; RankLost."""

    def forget(self, digest: str) -> None:
        """Free a copy."""


class NoOthers:
    """The OtherCopies of a process that computes the whole model."""

    def read(self, ref: AdapterRef) -> None:
        """Does nothing."""

    def wait_read(self, ref: AdapterRef) -> None:
        """Does nothing."""

    def forget(self, digest: str) -> None:
        """Does nothing."""


class Adapters:
    """The copies by digest. The threads that plan steps, read files and compute steps may call the methods at any time;
    `load` is called by one thread at a time.

    A copy is needed while a live sequence holds it, while a slot has it, and while it is pinned because a planned step
    places it. Others make room for new ones when there are more than `max_copies`.
    """

    def __init__(
        self,
        places: Places,
        read: Read,
        max_copies: int,
        dtype: torch.dtype,
        device: torch.device,
        rank: int = 0,
        *,
        digest: Callable[[Path], str] = adapter_digest,
    ) -> None:
        """
        read: the description of an adapter in a folder; raises ModelFilesError. Its digest is not used.
        max_copies: adapters in memory, at least the number of slots. One more is there from the time when it is read
            until it has its slot.
        rank: index of this process among the processes that divide each layer.
        digest: of the files in a folder; raises ModelFilesError.
        """
        self.places = places
        self._read, self._digest, self._max_copies = read, digest, max_copies
        self.dtype, self._device, self._rank = dtype, device, rank
        self._copies: OrderedDict[str, AdapterWeights] = OrderedDict()  # the one that was used last at the end
        self._slots: list[str] = [""] * places.num_slots  # digests
        self._held: Counter[str] = Counter()  # live sequences
        self._pinned: Counter[str] = Counter()  # steps that are planned and not finished
        self._unwanted: set[str] = set()  # copies that are freed when nothing holds or pins them
        self._lock = threading.Lock()
        self.others: OtherCopies = NoOthers()
        self.is_led = False  # another process decides which copies are kept

    def __str__(self) -> str:
        """The row of the start-up table."""
        return f"at most {self.places.num_slots} in a step, {self._max_copies} in memory"

    def has(self, digest: str) -> bool:
        """Whether every process of the model has this adapter in memory."""
        with self._lock:
            return digest in self._copies

    def touch(self, digest: str) -> bool:
        """Whether the adapter is in memory. If so, it is the one that was used last, and is not forgotten."""
        with self._lock:
            if digest not in self._copies:
                return False
            self._unwanted.discard(digest)
            self._copies.move_to_end(digest)
            return True

    def load(self, ref: AdapterRef) -> None:
        """Read an adapter in every process, unless it is in memory. Raises AdapterError, and no process has it then;
        RankLost."""
        if self.touch(ref.digest):
            return
        with self._lock:
            self._trim()
        self.others.read(ref)
        try:
            weights = self._weights_of(ref)
        except AdapterError:
            with contextlib.suppress(AdapterError):
                self.others.wait_read(ref)
            self.others.forget(ref.digest)
            raise
        self.others.wait_read(ref)
        with self._lock:
            self._copies[ref.digest] = weights
            self._trim(ref.digest)

    def place(self, slot: int, ref: AdapterRef) -> None:
        """Let the steps from now on compute this adapter for the rows with this slot. It must be in memory."""
        with self._lock:
            weights = self._copies[ref.digest]
            self._copies.move_to_end(ref.digest)
            self._slots[slot] = ref.digest
            self._trim(ref.digest)
        for index, layer in enumerate(self.places.layers):
            layer.place(slot, weights.by_layer.get(index))
        for index, experts in enumerate(self.places.experts):
            experts.place(slot, weights.by_experts.get(index, {}))
        if self.places.embedding is not None:
            self.places.embedding.place(slot, weights.embedding)

    def forget(self, digest: str) -> None:
        """Free the copy of an adapter as soon as no live sequence needs it; a slot that has it still computes with it
        until another one is placed there."""
        with self._lock:
            if digest not in self._copies:
                return
            if self._held[digest] or self._pinned[digest]:
                self._unwanted.add(digest)
            else:
                self._free(digest)

    def hold(self, digest: str) -> None:
        """A live sequence needs the adapter, whether or not it is in memory."""
        with self._lock:
            self._held[digest] += 1

    def drop(self, digest: str) -> None:
        """A sequence that held the adapter has ended."""
        with self._lock:
            self._held[digest] -= 1
            self._released(digest)

    def pin(self, digest: str) -> None:
        """A planned step places the adapter."""
        with self._lock:
            self._pinned[digest] += 1

    def unpin(self, digest: str) -> None:
        """A step that places it is finished, or has failed."""
        with self._lock:
            self._pinned[digest] -= 1
            self._released(digest)

    def has_space(self, num_reading: int) -> bool:
        """Whether one more can be read, beside the number that is being read, without freeing a copy that is needed."""
        with self._lock:
            needed = {digest for digest in self._copies if self._is_needed(digest)}.union(filter(None, self._slots))
            return len(needed) + num_reading <= self._max_copies

    def make_space(self) -> None:
        """Free the copy that was used least recently among those that only waiting sequences need."""
        with self._lock:
            for digest in self._copies:
                if self._held[digest] and not self._pinned[digest] and digest not in self._slots:
                    self._free(digest)
                    return

    @property
    def num_bytes(self) -> int:
        """Bytes of the copies, without those of slots whose adapter was forgotten."""
        with self._lock:
            return sum(each.num_bytes for each in self._copies.values())

    def _is_needed(self, digest: str) -> bool:
        return bool(digest in self._slots or self._held[digest] or self._pinned[digest])

    def _released(self, digest: str) -> None:
        for counts in (self._held, self._pinned):
            if not counts[digest]:
                del counts[digest]
        if digest in self._unwanted and not (self._held[digest] or self._pinned[digest]):
            self._free(digest)

    def _free(self, digest: str) -> None:
        self._unwanted.discard(digest)
        del self._copies[digest]
        self.others.forget(digest)

    def _trim(self, newest: str = "") -> None:
        """Free copies that nothing needs, the one that was used least recently first.

        newest: was read or placed just now, and may be one more than `max_copies`.
        """
        if self.is_led:
            return
        num_copies = len(self._copies) + len({each for each in self._slots if each and each not in self._copies})
        for digest in [each for each in self._copies if not self._is_needed(each)]:
            if num_copies <= self._max_copies + (digest == newest):
                return
            self._free(digest)
            num_copies -= 1

    def _weights_of(self, ref: AdapterRef) -> AdapterWeights:
        """The part of an adapter that this process needs. Every failure is an AdapterError."""
        folder = Path(ref.folder)
        try:
            before = _states(folder)
            with ThreadPoolExecutor(1) as beside:  # to hash the bytes takes as long as to read the weights
                digest = beside.submit(self._digest, folder)
                try:
                    spec = self._read(folder)
                    self.places.check(spec)
                    weights = read_weights(spec, self.places, self.dtype, self._device, self._rank)
                except Exception:
                    with contextlib.suppress(ModelFilesError):  # what could not be read is the error then
                        if digest.result() != ref.digest:
                            raise _changed(ref) from None
                    raise
                if digest.result() != ref.digest or _states(folder) != before:
                    raise _changed(ref)  # or the digest may be that of other bytes than the weights
            return weights
        except AdapterError:
            raise
        except ModelFilesError as error:
            raise AdapterError(f"adapter `{ref.name}`: {error}") from None
        except Exception as error:  # torch raises RuntimeError when it gets no memory
            if isinstance(error, MemoryError) or "allocate memory" in str(error):
                raise AdapterError(f"there is no memory for adapter `{ref.name}`", code="adapter_memory") from None
            raise AdapterError(f"adapter `{ref.name}` cannot be read: {error}", code="adapter_unreadable") from None


def _changed(ref: AdapterRef) -> AdapterError:
    return AdapterError(
        f"the files in {ref.folder} have changed since adapter `{ref.name}` was registered", code="adapter_changed"
    )


def _states(folder: Path) -> list[tuple[int, int, int] | None]:
    """What shows that a file of an adapter was replaced or written to; None for one that is missing."""
    states: list[tuple[int, int, int] | None] = []
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        try:
            found = (folder / name).stat()
        except FileNotFoundError:
            states.append(None)
        else:
            states.append((found.st_ino, found.st_size, found.st_mtime_ns))
    return states
