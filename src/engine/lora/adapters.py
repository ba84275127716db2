"""Adapters: those that a process has read, and which of them is in which slot.

A CPU computes from the copies in its memory: to place an adapter in a slot is to write addresses in a table. The copies
that no slot has are kept for later, the newest first, up to a number (`lora.max_cpu_loras`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch

from ...config import ModelFilesError
from ...model.adapter import AdapterSpec
from ..api import AdapterError, AdapterRef
from .places import Places
from .weights import AdapterWeights, read_weights

Read = Callable[[Path], AdapterSpec]


class Adapters:
    """The methods may be called by the threads that plan steps and that compute them."""

    def __init__(
        self, places: Places, read: Read, max_copies: int, dtype: torch.dtype, device: torch.device, rank: int = 0
    ) -> None:
        """
        read: the description of an adapter in a folder; raises ModelFilesError.
        max_copies: adapters in memory, at least the number of slots.
        rank: of this process among those that divide each layer.
        """
        self.places = places
        self._read, self._max_copies = read, max_copies
        self._dtype, self._device, self._rank = dtype, device, rank
        self._copies: OrderedDict[str, AdapterWeights] = (
            OrderedDict()
        )  # by digest, the one that was used last at the end
        self._slots: list[str] = [""] * places.num_slots  # digests
        self._lock = threading.Lock()
        self.on_forgotten: Callable[[str], None] = lambda digest: None  # called for a copy that makes room for others
        self.is_led = False  # another process decides which copies are kept

    def __str__(self) -> str:
        """The row of the start-up table."""
        return f"at most {self.places.num_slots} in a step, {self._max_copies} in memory"

    def has(self, digest: str) -> bool:
        """Whether an adapter is in memory."""
        with self._lock:
            return digest in self._copies

    def load(self, ref: AdapterRef) -> None:
        """Read an adapter, unless it is in memory. Raises AdapterError, and nothing has changed then."""
        self._copy_of(ref)

    def place(self, slot: int, ref: AdapterRef) -> None:
        """Let the steps from now on compute this adapter for the rows with this slot. Raises AdapterError."""
        weights = self._copy_of(ref)
        with self._lock:
            self._slots[slot] = ref.digest
            self._trim(ref.digest)
        for index, layer in enumerate(self.places.layers):
            layer.place(slot, weights.by_layer.get(index))

    def forget(self, digest: str) -> None:
        """Free the copy of an adapter; a slot that has it still computes with it until another one is placed there."""
        with self._lock:
            self._copies.pop(digest, None)

    @property
    def num_bytes(self) -> int:
        with self._lock:
            return sum(each.num_bytes for each in self._copies.values())

    def _copy_of(self, ref: AdapterRef) -> AdapterWeights:
        with self._lock:
            if (found := self._copies.get(ref.digest)) is not None:
                self._copies.move_to_end(ref.digest)
                return found
        weights = self._weights_of(ref)
        with self._lock:
            self._copies[ref.digest] = weights
            self._trim(ref.digest)
        return weights

    def _trim(self, newest: str) -> None:
        """Forget the copies that were used least recently. One that is to be placed where all slots are taken is more
        than `max_copies`, until it is."""
        if self.is_led:
            return
        unused = [digest for digest in self._copies if digest not in self._slots and digest != newest]
        for digest in unused[: max(len(self._copies) - self._max_copies, 0)]:
            del self._copies[digest]
            self.on_forgotten(digest)

    def _weights_of(self, ref: AdapterRef) -> AdapterWeights:
        try:
            spec = self._read(Path(ref.folder))
            if spec.digest != ref.digest:
                raise AdapterError(
                    f"the files in {ref.folder} have changed since adapter `{ref.name}` was registered",
                    code="adapter_changed",
                )
            self.places.check(spec)
            return read_weights(spec, self.places, self._dtype, self._device, self._rank)
        except ModelFilesError as error:
            raise AdapterError(f"adapter `{ref.name}`: {error}") from None
        except (OSError, EOFError) as error:
            raise AdapterError(f"adapter `{ref.name}` cannot be read: {error}", code="adapter_unreadable") from None
        except MemoryError:
            raise AdapterError(f"there is no memory for adapter `{ref.name}`", code="adapter_memory") from None
