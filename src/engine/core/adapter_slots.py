"""AdapterSlots: which adapters running sequences have. A step computes at most `lora.max_loras` of them.

A waiting request whose adapter has no slot is passed by others. It takes the slot that no running sequence uses and
that was used least recently. When it was passed in many steps, no more sequences are admitted for the adapter with most
of them, until that slot is free.

A live sequence holds its adapter in memory. Files are read elsewhere, while steps go on: a request whose adapter is not
in memory yet is passed like one without a slot.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from ..api import AdapterRef
from ..step.plan import NO_ADAPTER, AdapterLoad
from .request import Request

MAX_PASSED_STEPS = 128  # in which a request was passed because its adapter has no slot


class CopyState(Enum):
    IN_MEMORY = auto()
    READING = auto()
    NO_SPACE = auto()  # the copies in memory are needed, and no further one may be read


class AdapterCopies(Protocol):
    """The adapters in memory: loop/adapter_reader.py."""

    def hold(self, ref: AdapterRef) -> None:
        """A live sequence needs the adapter from now on. Begins to read it if there is space."""

    def drop(self, ref: AdapterRef) -> None:
        """A sequence that held the adapter has ended."""

    def pin(self, ref: AdapterRef) -> None:
        """A planned step places the adapter: its copy stays, also when the sequence ends."""

    def unpin(self, ref: AdapterRef) -> None:
        """A step that places it is finished, or has failed."""

    def ask(self, ref: AdapterRef, is_starving: bool) -> CopyState:
        """The state of an adapter that is held. Begins to read it if it is not in memory.

        is_starving: the copy of another adapter that only waiting sequences need may make room for it.
        Raises AdapterError if reading it has failed.
        """
        ...


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    max_loras: int
    copies: AdapterCopies


class AdapterSlots:
    def __init__(self, settings: AdapterSettings | None) -> None:
        """settings: None if no request has an adapter."""
        self._settings = settings
        num_slots = 0 if settings is None else settings.max_loras
        self._refs: list[AdapterRef | None] = [None] * num_slots
        self._by_digest: dict[str, int] = {}
        self._num_running = [0] * num_slots  # sequences
        self._used_at = [0] * num_slots  # numbers of admissions and ends, ascending
        self._num_uses = 0
        self._starving: Request | None = None  # the request for which a slot is emptied
        self._emptied = NO_ADAPTER
        self._loads: list[AdapterLoad] = []
        self._is_loading = False  # the step that is planned loads one
        self._waiting: Counter[str] = Counter()  # requests by the name of their adapter

    def arrived(self, request: Request) -> None:
        """A new sequence."""
        if self._settings is not None and request.inputs.adapter is not None:
            self._settings.copies.hold(request.inputs.adapter)

    def ended(self, request: Request) -> None:
        """The sequence has ended, and neither waits nor runs."""
        if self._settings is not None and request.inputs.adapter is not None:
            self._settings.copies.drop(request.inputs.adapter)

    def queued(self, request: Request) -> None:
        """The request waits from now on."""
        if request.inputs.adapter is not None:
            self._waiting[request.inputs.adapter.name] += 1

    def left_queue(self, request: Request) -> None:
        """The request does not wait any more."""
        if (ref := request.inputs.adapter) is not None:
            self._waiting[ref.name] -= 1
            if not self._waiting[ref.name]:
                del self._waiting[ref.name]

    def has_room(self, request: Request) -> bool:
        """Whether the request could be admitted now, as far as its adapter is concerned; others pass it if not.

        Raises AdapterError if its adapter cannot be read.
        """
        ref = request.inputs.adapter
        if ref is None:
            return True
        assert self._settings is not None
        self._end_starvation()
        slot = self._by_digest.get(ref.digest)
        if slot is not None and slot != self._emptied:
            return True
        if slot is None:
            state = self._settings.copies.ask(ref, request is self._starving)
            if state is CopyState.READING:
                return False
            # One is loaded in each step: until it has its slot, its copy is one more than are kept in memory.
            if state is CopyState.IN_MEMORY and not self._is_loading and self._free_slot() is not None:
                return True
        request.num_passed_steps += 1
        is_starving = slot is None and request.num_passed_steps >= MAX_PASSED_STEPS
        if is_starving and self._starving is None and not self._is_loading:
            self._starving = request
            self._emptied = max(range(len(self._refs)), key=self._num_running.__getitem__)
        return False

    def take(self, request: Request) -> None:
        """The request is admitted, after `has_room`."""
        ref = request.inputs.adapter
        if ref is None:
            return
        slot = self._by_digest.get(ref.digest)
        if slot is None:
            slot = self._free_slot()
            assert slot is not None, "the request was admitted without room for its adapter"
            if (before := self._refs[slot]) is not None:
                del self._by_digest[before.digest]
            self._refs[slot], self._by_digest[ref.digest] = ref, slot
            self._loads.append(AdapterLoad(slot, ref))
            self._is_loading = True
            assert self._settings is not None
            self._settings.copies.pin(ref)
        request.adapter_slot = slot
        request.num_passed_steps = 0
        if request is self._starving:
            self._starving, self._emptied = None, NO_ADAPTER
        self._num_running[slot] += 1
        self._use(slot)

    def release(self, request: Request) -> None:
        """The sequence stops running."""
        if request.adapter_slot != NO_ADAPTER:
            self._num_running[request.adapter_slot] -= 1
            self._use(request.adapter_slot)
            request.adapter_slot = NO_ADAPTER

    def take_loads(self) -> list[AdapterLoad]:
        """What the next step must load, once."""
        loads, self._loads, self._is_loading = self._loads, [], False
        return loads

    def loaded(self, loads: list[AdapterLoad]) -> None:
        """The step that made these loads is finished."""
        for load in loads:
            assert self._settings is not None
            self._settings.copies.unpin(load.ref)

    def not_loaded(self, loads: list[AdapterLoad]) -> None:
        """A step that failed may not have made these loads. All sequences with these slots end with it, because each
        has been in it or in a later step in flight: the next one loads its adapter again."""
        for load in loads:
            if self._refs[load.slot] == load.ref:
                self._refs[load.slot] = None
                del self._by_digest[load.ref.digest]
        self.loaded(loads)

    @property
    def running_names(self) -> tuple[str, ...]:
        """Names of the adapters that running sequences have."""
        found = zip(self._refs, self._num_running, strict=True)
        return tuple(sorted({ref.name for ref, count in found if ref is not None and count}))

    @property
    def waiting_names(self) -> tuple[str, ...]:
        return tuple(sorted(self._waiting))

    def _use(self, slot: int) -> None:
        self._num_uses += 1
        self._used_at[slot] = self._num_uses

    def _free_slot(self) -> int | None:
        """The slot without running sequences that was used least recently."""
        free = [slot for slot, count in enumerate(self._num_running) if not count]
        return min(free, key=self._used_at.__getitem__, default=None)

    def _end_starvation(self) -> None:
        starving = self._starving
        if starving is not None and (starving.finish_reason is not None or starving.adapter_slot != NO_ADAPTER):
            self._starving, self._emptied = None, NO_ADAPTER
