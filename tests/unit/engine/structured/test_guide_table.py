"""engine.structured.guide_table: who touches a guide, and when."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from stoker.engine.api import Constraint, SamplingParams
from stoker.engine.structured.guide_table import GuideTable


class BorrowedGuide:
    """A guide that must not be read while its mask is computed, as the matchers of llguidance."""

    def __init__(self) -> None:
        self.mask = self.error = None
        self.may_end = threading.Event()
        self._is_borrowed = False

    def take(self, token_ids: Any) -> None:
        assert not self._is_borrowed

    @property
    def is_finished(self) -> bool:
        assert not self._is_borrowed, "Already mutably borrowed"
        return False

    @property
    def forced(self) -> list[int]:
        assert not self._is_borrowed, "Already mutably borrowed"
        return []


class Grammars:
    def __init__(self, guide: BorrowedGuide) -> None:
        self._guide, self.begun = guide, threading.Event()

    def guide(self, sampling: SamplingParams, generated: Any) -> BorrowedGuide:
        return self._guide

    def update(self, guides: Sequence[BorrowedGuide]) -> None:
        for guide in guides:
            guide._is_borrowed = True
            self.begun.set()
            assert guide.may_end.wait(60)
            guide._is_borrowed = False


class AtOnce:
    """A pool whose threads have begun before `submit` returns."""

    def __init__(self, begun: threading.Event) -> None:
        self._begun = begun

    def submit(self, work: Any, *arguments: Any) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()
        assert self._begun.wait(60)


def test_a_guide_is_not_read_while_its_mask_is_computed():
    """It was asked whether it is complete after the work had begun: constrained requests failed now and then."""
    guide = BorrowedGuide()
    grammars = Grammars(guide)
    table = GuideTable(grammars, 1)  # type: ignore[arg-type]
    table.admit(0, SamplingParams(constraint=Constraint("start: /a/")), ())
    held = table.held([0])
    held[0].guide.result()  # it is made
    table._pool = AtOnce(grammars.begun)  # type: ignore[assignment]
    try:
        assert table.take(held, [5]) == [(False, [])]
    finally:
        guide.may_end.set()


def test_a_panic_of_the_library_fails_the_step_and_is_not_waited_for():
    class Panic(BaseException):
        pass

    class Failing(Grammars):
        def update(self, guides: Sequence[BorrowedGuide]) -> None:
            raise Panic("index out of bounds")

    table = GuideTable(Failing(BorrowedGuide()), 1)  # type: ignore[arg-type]
    table.admit(0, SamplingParams(constraint=Constraint("start: /a/")), ())
    table.take(table.held([0]), [5])
    with pytest.raises(Panic):
        table.held([0])[0].guide.result()


def test_a_guide_takes_a_token_of_a_slot_that_was_released_meanwhile():
    """The device computes a step while the sequence leaves its slot: its end is reported all the same."""
    first, second = BorrowedGuide(), BorrowedGuide()
    for guide in (first, second):
        guide.may_end.set()
    table = GuideTable(Grammars(first), 1)  # type: ignore[arg-type]
    table.admit(0, SamplingParams(constraint=Constraint("start: /a/")), ())
    held = table.held([0])
    table.release(0)
    table._grammars = Grammars(second)  # type: ignore[assignment]
    table.admit(0, SamplingParams(constraint=Constraint("start: /a/")), ())
    assert table.take(held, [5]) == [(False, [])]
    assert table.held([0])[0].guide.result() is second
