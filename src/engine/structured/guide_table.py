"""GuideTable: the guides of running sequences, by slot. Their masks are computed in a thread while the model computes.

The token of a step decides the mask of the next one. So `take` only starts the work, which the next step waits for when
it has its logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from ..api import SamplingParams
from .backend import Bitmask
from .grammars import Grammars
from .guide import Guide

_NUM_THREADS = 2  # a sequence that is resumed after a preemption takes longer than a mask


class Taken(NamedTuple):
    is_complete: bool  # the grammar allows nothing after the token
    forced: list[int]  # the tokens that must follow, as far as they are known


class GuideTable:
    def __init__(self, grammars: Grammars, num_slots: int) -> None:
        self._grammars = grammars
        self.has_guide = np.zeros(num_slots, bool)
        self._guides: dict[int, Future[Guide]] = {}  # slot -> when `mask` is computed
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="masks")

    def admit(self, slot: int, sampling: SamplingParams, generated: Sequence[int]) -> None:
        """generated: tokens of the answer before a preemption."""
        self.has_guide[slot] = sampling.constraint is not None or sampling.reasoning is not None
        if self.has_guide[slot]:
            self._guides[slot] = self._pool.submit(self._grammars.guide, sampling, generated)

    def release(self, slot: int) -> None:
        self._guides.pop(slot, None)
        self.has_guide[slot] = False

    def mask(self, slot: int) -> tuple[Bitmask | None, str | None]:
        """Which tokens may follow, None if any may; and why the sequence cannot continue, if so."""
        guide = self._guides[slot].result()
        return guide.mask, guide.error

    def take(self, slots: Sequence[int], token_ids: Sequence[int]) -> list[Taken]:
        """One more token of each of these slots, which have guides."""
        return self._take(slots, [(token_id,) for token_id in token_ids])

    def take_forced(self, slot: int, token_ids: Sequence[int]) -> None:
        """More tokens of a slot, as `Taken.forced` had them, if it has a guide."""
        if self.has_guide[slot]:
            self._take([slot], [token_ids])

    def _take(self, slots: Sequence[int], token_ids: Sequence[Sequence[int]]) -> list[Taken]:
        guides = [self._guides[slot].result() for slot in slots]
        for guide, own in zip(guides, token_ids, strict=True):
            guide.take(own)
        taken = [Taken(guide.is_finished, list(guide.forced)) for guide in guides]  # before `update` borrows them
        done: list[Future[Guide]] = [Future() for _ in guides]
        self._guides.update(zip(slots, done, strict=True))
        self._pool.submit(self._update, guides, done)
        return taken

    def _update(self, guides: list[Guide], done: list[Future[Guide]]) -> None:
        try:
            self._grammars.update(guides)
        except BaseException as error:  # a panic of the library too: the step waits for it
            for future in done:
                future.set_exception(error)
        else:
            for guide, future in zip(guides, done, strict=True):
                future.set_result(guide)
