"""How much a network drafts follows from what it takes and from how many of its drafts were accepted."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.engine.spec_decode.network_drafts import NetworkDrafts
from stoker.engine.spec_decode.step_times import DraftTimes

FLAT = {1: 1.0, 64: 1.1}  # seconds of a step, by its tokens
USUAL = {1: 1.0, 64: 9.0}
STEEP = {1: 1.0, 64: 64.0}


def drafter(
    steps: dict[int, float] | None = None, draft: float = 0.05, num_slots: int = 8, max_tokens: int = 8
) -> NetworkDrafts:
    times = DraftTimes()
    times.steps.measure(FLAT if steps is None else steps)
    times.drafts.measure({1: draft, 8: 8 * draft})
    found = NetworkDrafts(num_slots, times.steps, times.drafts, max_tokens=max_tokens)
    for slot in range(num_slots):
        found.admit(slot, [1, 2, 3])
    return found


def counts(own: NetworkDrafts, num_rows: int = 1, room: int = 8) -> list[int]:
    found: list[int] = own.counts(np.arange(num_rows), np.full(num_rows, room, np.int32)).tolist()
    return found


def verify(own: NetworkDrafts, accepted: dict[int, int], num_drafts: int = 4, times: int = 1) -> None:
    """accepted: of `num_drafts` drafts, by slot."""
    slots, found = np.array(list(accepted)), np.array(list(accepted.values()), np.int32)
    for _ in range(times):
        own.record_drafts(slots, np.full(len(slots), num_drafts, np.int32), found, 0.0)


def test_drafts_that_survive_become_longer_and_others_end() -> None:
    own = drafter()
    (at_first,) = counts(own)
    verify(own, {0: 4}, times=20)
    assert counts(own)[0] >= at_first > 0
    verify(own, {0: 0}, times=300)
    assert counts(own) == [0]


def test_each_sequence_has_its_own_length() -> None:
    own = drafter(USUAL)
    verify(own, {0: 4, 1: 0}, times=300)
    good, bad = counts(own, 2)
    assert good >= 4
    assert bad == 0


@pytest.mark.parametrize(("steps", "draft", "drafts"), [(FLAT, 0.05, True), (STEEP, 0.05, False), (FLAT, 2.0, False)])
def test_what_steps_and_drafts_take_decides(steps: dict[int, float], draft: float, drafts: bool) -> None:
    assert bool(counts(drafter(steps, draft))[0]) == drafts


def test_room_is_a_limit() -> None:
    own = drafter()
    verify(own, {0: 4}, times=20)
    assert counts(own, room=2) == [2]
    assert own.counts(np.arange(2), np.array([0, 8], np.int32))[0] == 0


def test_after_steps_without_drafts_one_is_tried() -> None:
    own = drafter(STEEP)
    for _ in range(31):
        own.record_step(6, 0, 6.0)
        assert counts(own, 6) == [0] * 6
    own.record_step(6, 0, 6.0)
    assert counts(own, 6) == [1, 1, 1, 1, 0, 0]
    own.record_step(6, 4, 6.0)
    assert counts(own, 6) == [0] * 6


def test_what_a_draft_took_counts() -> None:
    own = drafter()
    for _ in range(100):
        own.record_drafts(np.array([0]), np.array([2], np.int32), np.array([1], np.int32), 8.0)
    assert counts(own) == [0]


def test_another_sequence_begins_with_what_is_common() -> None:
    own = drafter(USUAL)
    verify(own, {0: 0}, times=300)
    verify(own, {1: 4}, times=300)
    assert counts(own)[0] == 0
    own.admit(0, [1])
    assert counts(own)[0] > 0
