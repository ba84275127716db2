"""Drafts of a simulated engine: right and wrong ones, short and long ones, some of the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stoker.engine.step.plan import Int32, Int64

from .runner import Slot
from .truth import VOCAB, fingerprint, fingerprints, sampled_token

MAX_DRAFT = 5


class TrueDrafter:
    """Knows what will be sampled. What it drafts depends on the text of a sequence only, so that a story repeats."""

    max_tokens = MAX_DRAFT
    is_in_runner = False

    def __init__(self) -> None:
        self.slots: Mapping[int, Slot] = {}  # of the runner: a drafter knows no seeds
        self._token_ids: dict[int, list[int]] = {}  # by slot

    def admit(self, slot: int, token_ids: Sequence[int]) -> None:
        self._token_ids[slot] = list(token_ids)

    def extend(self, slot: int, token_ids: Sequence[int], length: int) -> None:
        self._token_ids[slot] += token_ids
        assert len(self._token_ids[slot]) == length, f"slot {slot}: the drafter has another length"

    def follow(self, slots: Int64, lengths: Int32, token_ids: Int32) -> None:
        assert len(set(slots.tolist())) == len(slots)
        for slot, length, token_id in zip(slots.tolist(), lengths.tolist(), token_ids.tolist(), strict=True):
            self.extend(slot, [token_id], length)

    def counts(self, slots: Int64, room: Int32) -> Int32:
        """None in every third text, so that steps are planned ahead sometimes."""
        wanted = [hash(tuple(self._token_ids[slot][-2:])) % (MAX_DRAFT + 1) for slot in slots.tolist()]
        if sum(wanted) % 3 == 0:
            return np.zeros(len(slots), np.int32)
        return np.minimum(room, wanted).astype(np.int32)

    def drafts(self, slot: int, length: int, count: int) -> list[int]:
        if slot not in self.slots:  # all of its prompt but the last token is in steps that are not executed
            return []
        known, seed = self._token_ids[slot], self.slots[slot].seed
        assert len(known) == length, f"slot {slot}: drafts after another text"
        *_, mark = fingerprints(seed, known)
        found: list[int] = []
        for _ in range(count):
            token_id = sampled_token(mark, seed)
            found.append((token_id + 1) % VOCAB if hash((mark, 17)) % 3 == 0 else token_id)
            mark = fingerprint(mark, found[-1])
        return found

    def record_step(self, num_rows: int, num_drafts: int, seconds: float) -> None:
        assert num_rows > 0 <= num_drafts

    def record_drafts(self, slots: Int64, num_drafts: Int32, num_accepted: Int32, seconds: float) -> None:
        assert len(slots) == len(num_drafts) > 0
        assert np.all((num_accepted >= 0) & (num_accepted <= num_drafts))
