"""AdapterSlots: which adapters running sequences have. A step computes at most `lora.max_loras` of them.

A waiting request whose adapter has no slot is passed by others. It takes the slot that no running sequence uses and
that was used least recently. When it was passed in many steps, no more sequences are admitted for the adapter with most
of them, until that slot is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ..api import AdapterRef
from ..step.plan import NO_ADAPTER, AdapterLoad
from .request import Request

MAX_PASSED_STEPS = 128  # in which a request was passed because its adapter has no slot


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    max_loras: int
    load: Callable[[AdapterRef], None]  # reads an adapter unless it is in memory; raises AdapterError


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

        Raises AdapterError if its adapter can no longer be read.
        """
        ref = request.inputs.adapter
        if ref is None:
            return True
        self._end_starvation()
        slot = self._by_digest.get(ref.digest)
        if slot is not None and slot != self._emptied:
            return True
        # One is loaded in each step: until it has its slot, its copy is one more than are kept in memory.
        if slot is None and not self._is_loading and self._free_slot() is not None:
            assert self._settings is not None
            self._settings.load(ref)
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

    def load_again(self, loads: list[AdapterLoad]) -> None:
        """Loads of a step that failed: the runner may not have made them."""
        self._loads += [load for load in loads if self._refs[load.slot] == load.ref]

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
