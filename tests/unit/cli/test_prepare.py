from __future__ import annotations

import asyncio

import pytest
from tests.fakes import FakeEngine

from stoker.cli.prepare import start_beside


class Slow(FakeEngine):
    """Starts when the test allows it; records a cancelled start."""

    was_cancelled = False

    async def start(self):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


def test_the_result_of_work_parallel_to_the_start_is_returned():
    assert asyncio.run(start_beside(FakeEngine(), lambda: 7)) == 7


def test_a_failure_of_parallel_work_ends_the_start():
    engine = Slow()

    def work() -> None:
        raise ValueError("no tokenizer")

    async def both() -> None:
        with pytest.raises(ValueError, match="no tokenizer"):
            await start_beside(engine, work)

    asyncio.run(both())
    assert engine.was_cancelled
