from __future__ import annotations

import asyncio
import itertools

from stoker.server.http.turns import Turns


def test_of_many_that_arrive_at_once_the_oldest_and_the_newest_work_in_each_iteration():
    """600 requests did their first work in one iteration of the event loop, in which /health had to wait."""
    seconds = itertools.count()  # each piece of work takes one
    turns, done = Turns(lambda: next(seconds)), []

    async def work(number: int) -> None:
        await turns.take()
        done.append(number)

    async def run() -> None:
        tasks = [asyncio.ensure_future(work(number)) for number in range(12)]
        counts = []
        while len(done) < 12:
            await asyncio.sleep(0)
            counts.append(len(done))
        assert all(after - before <= 4 for before, after in itertools.pairwise(counts))
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert done == [0, 1, 11, 2, 10, 3, 9, 4, 8, 5, 7, 6]


def test_alone_it_does_not_wait_and_one_that_left_keeps_no_turn():
    seconds = itertools.count()
    turns, done = Turns(lambda: next(seconds)), []

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


def test_a_few_that_arrive_at_once_work_in_one_iteration():
    """One in each iteration took half of the throughput of small requests: the engine got them in separate steps."""
    turns, done = Turns(lambda: 0.0), []

    async def work(number: int) -> None:
        await turns.take()
        done.append(number)

    async def run() -> None:
        tasks = [asyncio.ensure_future(work(number)) for number in range(8)]
        await asyncio.sleep(0)
        assert done == list(range(8))
        await asyncio.gather(*tasks)

    asyncio.run(run())
