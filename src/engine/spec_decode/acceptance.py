"""Acceptance: how probable it is that an expected token is the next one, from how often one was before.

The longer the context in which the text agrees with an earlier place, the longer it goes on to agree. So outcomes are
counted by the length of that context, over all sequences, and for each of them: an answer that copies its prompt soon
has long drafts, and one that only resembles it has none. They are counted for each kind of text: what a request
predicts says more than an answer to somebody else.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..step.plan import Bool, Int32, Int64

Floats = npt.NDArray[np.float64]
_LIMITS = np.array([1, 3, 5, 9, 17], np.int32)  # of the context's length: class 0 is below 1, class 5 from 17 on
_AT_FIRST = np.array([0.3, 0.3, 0.5, 0.7, 0.85, 0.93])  # before anything is known, by class
_WEIGHT = 6.0  # of that, and of what all sequences have in common, in outcomes
_KEEPS = 0.98  # of the counts at each outcome: the last 50 decide


class Acceptance:
    def __init__(self, num_slots: int, at_first: Floats = _AT_FIRST, num_kinds: int = 1) -> None:
        """
        at_first: what is assumed before anything is known, for contexts of 0, 1, 3, 5, 9 and 17 tokens and more.
        num_kinds: of texts.
        """
        self._hits = np.tile(at_first * _WEIGHT, num_kinds)
        self._all = np.full(len(self._hits), _WEIGHT)
        self._slot_hits = np.zeros((num_slots, len(self._hits)))
        self._slot_all = np.zeros((num_slots, len(self._hits)))

    def admit(self, slot: int) -> None:
        """Another sequence has the slot."""
        self._slot_hits[slot] = self._slot_all[slot] = 0.0

    def count(self, slots: Int64, matched: Int32, is_match: Bool, kinds: Int64 | int = 0) -> None:
        """Outcomes, of a slot any number. slots: [N]. matched: [N] length of the context. is_match: [N] whether the
        next token was the expected one. kinds: [N] of the text that it was expected from."""
        classes = _class_of(matched) + np.multiply(kinds, len(_AT_FIRST))
        num_classes = len(self._all)
        hits, counts = (np.bincount(classes, weights, num_classes) for weights in (is_match.astype(float), None))
        kept = _KEEPS**counts
        self._hits = self._hits * kept + hits
        self._all = self._all * kept + counts
        places, of_place, counts = np.unique(slots * num_classes + classes, return_inverse=True, return_counts=True)
        kept, hits = _KEEPS**counts, np.bincount(of_place, is_match.astype(float))
        for table, added in ((self._slot_hits, hits), (self._slot_all, counts)):
            flat = table.reshape(-1)
            flat[places] = flat[places] * kept + added

    def survival(self, slots: Int64, matched: Int32, count: int, kinds: Int64 | int = 0) -> Floats:
        """[R, count] The probability that the token after 0, 1, ... expected ones comes, and all before it."""
        classes = _class_of(np.add.outer(matched, np.arange(count, dtype=np.int32)))
        classes += np.multiply(kinds, len(_AT_FIRST)).reshape(-1, 1)
        common = (self._hits / self._all)[classes] * _WEIGHT
        rows = slots[:, None]
        likely = (self._slot_hits[rows, classes] + common) / (self._slot_all[rows, classes] + _WEIGHT)
        found: Floats = np.cumprod(likely, axis=1)
        return found


def _class_of(matched: npt.NDArray[np.integer]) -> Int64:
    found: Int64 = np.searchsorted(_LIMITS, matched, side="right")
    return found
