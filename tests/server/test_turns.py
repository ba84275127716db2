from __future__ import annotations

import asyncio
import itertools

from stoker.server.turns import Turns


def test_of_many_that_arrive_at_once_the_oldest_and_the_newest_work_in_each_iteration():
    """600 requests did their first work in one iteration of the event loop, in which /health had to wait."""
    turns, done = Turns(), []

    async def work(number: int) -> None:
        await turns.take()
        done.append(number)

    async def run() -> None:
        tasks = [asyncio.ensure_future(work(number)) for number in range(7)]
        counts = []
        while len(done) < 7:
            await asyncio.sleep(0)
            counts.append(len(done))
        assert all(after - before <= 2 for before, after in itertools.pairwise(counts))
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert done == [0, 1, 6, 2, 5, 3, 4]


def test_alone_it_does_not_wait_and_one_that_left_keeps_no_turn():
    turns, done = Turns(), []

    async def work(number: int) -> None:
        await turns.take()
        done.append(number)

    async def run() -> None:
        await work(0)
        assert done == [0]
        first, second, third = (asyncio.ensure_future(work(number)) for number in (1, 2, 3))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(first, second, third, return_exceptions=True)

    asyncio.run(run())
    assert sorted(done) == [0, 1, 3]
