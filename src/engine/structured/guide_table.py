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
from .grammars import Grammars
from .guide import Guide

_NUM_THREADS = 2  # a sequence that is resumed after a preemption takes longer than a mask


class Taken(NamedTuple):
    is_complete: bool  # the grammar allows nothing after the token
    forced: list[int]  # the tokens that must follow, as far as they are known


class Held(NamedTuple):
    """The guide that a slot had when a step was launched. It is kept if the slot is released before the step ends."""

    slot: int
    guide: Future[Guide]  # when its mask is computed


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

    def held(self, slots: Sequence[int]) -> list[Held]:
        """The guides of these slots now."""
        return [Held(slot, self._guides[slot]) for slot in slots]

    def take(self, held: Sequence[Held], token_ids: Sequence[int]) -> list[Taken]:
        """One more token of each of these guides."""
        return self._take(held, [(token_id,) for token_id in token_ids])

    def take_forced(self, slot: int, token_ids: Sequence[int]) -> None:
        """More tokens of a slot, as `Taken.forced` had them, if it has a guide."""
        if self.has_guide[slot]:
            self._take(self.held([slot]), [token_ids])

    def _take(self, held: Sequence[Held], token_ids: Sequence[Sequence[int]]) -> list[Taken]:
        guides = [each.guide.result() for each in held]
        for guide, own in zip(guides, token_ids, strict=True):
            guide.take(own)
        taken = [Taken(guide.is_finished, list(guide.forced)) for guide in guides]  # before `update` borrows them
        done: list[Future[Guide]] = [Future() for _ in guides]
        for each, future in zip(held, done, strict=True):
            if self._guides.get(each.slot) is each.guide:  # otherwise the slot was released
                self._guides[each.slot] = future
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
