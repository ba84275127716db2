from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from stoker.engine.api import (
    EngineDead,
    EngineOutput,
    FinishReason,
    QueueFull,
    StoredBlocks,
    TokenLogprobs,
    VerifiedDraft,
)
from stoker.engine.client.streams import WOKEN_PER_TURN, Stream, Streams


def output(*tokens: int, **more: object) -> EngineOutput:
    return EngineOutput(request_id="", token_ids=list(tokens), **more)  # type: ignore[arg-type]


def test_outputs_for_a_slow_consumer_are_merged_into_one():
    async def scenario() -> None:
        streams = Streams()
        stream = streams.open("r")
        cached = {"num_cached_tokens": 4, "num_newly_cached_tokens": 8}
        streams.deliver(stream.handle, output(1, **cached, prompt_logprobs=[None], queued_s=0.5))
        drafts = [VerifiedDraft(4, 1), VerifiedDraft(2, 0)]
        streams.deliver(stream.handle, output(2, 3, logprobs=[TokenLogprobs([2], [-1.0], 1)] * 2, drafts=drafts[:1]))
        streams.deliver(stream.handle, output(drafts=drafts[1:]))
        last = output(4, finish_reason=FinishReason.STOP, stop_reason=4, stored=StoredBlocks((b"name",), "host", 1))
        streams.deliver(stream.handle, last)
        merged = await stream.next()
        assert merged == EngineOutput(
            request_id="r",
            token_ids=[1, 2, 3, 4],
            logprobs=[TokenLogprobs([2], [-1.0], 1)] * 2,
            prompt_logprobs=[None],
            finish_reason=FinishReason.STOP,
            stop_reason=4,
            num_cached_tokens=4,
            num_newly_cached_tokens=8,
            stored=StoredBlocks((b"name",), "host", 1),
            queued_s=0.5,
            drafts=drafts,
        )

    asyncio.run(scenario())


def test_outputs_that_arrived_before_an_error_are_delivered_first():
    async def scenario() -> None:
        streams = Streams()
        stream = streams.open("r")
        streams.deliver(stream.handle, output(1))
        streams.fail_all(EngineDead, "killed")
        streams.deliver(stream.handle, output(2))  # too late
        assert (await stream.next()).token_ids == [1]
        with pytest.raises(EngineDead, match="killed"):
            await stream.next()

    asyncio.run(scenario())


def test_a_waiting_consumer_is_woken_once_per_delivery():
    async def scenario() -> None:
        streams = Streams()
        stream = streams.open("r")
        waiting = asyncio.ensure_future(stream.next())
        await asyncio.sleep(0)
        streams.deliver(stream.handle, output(1))
        streams.deliver(stream.handle, output(2))
        assert (await waiting).token_ids == [1, 2]

    asyncio.run(scenario())


def test_consumers_of_one_step_are_woken_in_groups_between_which_others_run():
    """500 streams that wrote to their clients in one iteration of the event loop let probes wait for half a second."""

    async def scenario() -> None:
        streams = Streams()
        opened = [streams.open(str(index)) for index in range(3 * WOKEN_PER_TURN)]
        handles = [stream.handle for stream in opened]
        taken: list[int] = []

        async def consume(stream: Stream) -> None:
            for _ in range(2):
                taken.extend((await stream.next()).token_ids)

        tasks = [asyncio.ensure_future(consume(stream)) for stream in opened]
        await asyncio.sleep(0)
        streams.deliver_tokens(handles, [1] * len(handles))
        largest = 0
        while len(taken) < len(handles):
            before = len(taken)
            await asyncio.sleep(0)
            largest = max(largest, len(taken) - before)
        assert largest == WOKEN_PER_TURN
        streams.deliver_tokens(handles, [2] * len(handles))
        streams.deliver_tokens(handles, [3] * len(handles))  # the next step arrives while consumers are woken
        await asyncio.gather(*tasks)
        assert sorted(taken) == sorted([1, 2, 3] * len(handles))

    asyncio.run(scenario())


def test_outputs_for_a_closed_stream_are_dropped():
    async def scenario() -> None:
        streams = Streams()
        first = streams.open("r")
        streams.close(first)
        streams.deliver(first.handle, output(1))
        second = streams.open("s")
        assert second.handle != first.handle
        streams.abort_all()
        assert (await second.next()).finish_reason is FinishReason.ABORT

    asyncio.run(scenario())


def test_a_stream_that_failed_is_freed_without_the_garbage_collector():
    """Its error referred to the frame that raised it, and that to the stream: 4800 refused sequences stayed, until a
    pass over them stopped all requests for half a second."""

    async def scenario() -> weakref.ref[object]:
        streams = Streams()
        stream = streams.open("r")
        streams.refuse(stream.handle, QueueFull("full"))
        try:
            await stream.next()
        except QueueFull:
            streams.close(stream)
        return weakref.ref(stream)

    gc.disable()
    try:
        assert asyncio.run(scenario())() is None
    finally:
        gc.enable()
