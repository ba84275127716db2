from __future__ import annotations

import asyncio

import pytest

from stoker.engine.api import EngineDead, EngineOutput, FinishReason, StoredBlocks, TokenLogprobs
from stoker.engine.client.streams import Streams


def output(*tokens: int, **more: object) -> EngineOutput:
    return EngineOutput(request_id="", token_ids=list(tokens), **more)  # type: ignore[arg-type]


def test_outputs_for_a_slow_consumer_are_merged_into_one():
    async def scenario() -> None:
        streams = Streams()
        stream = streams.open("r")
        streams.deliver(stream.handle, output(1, num_cached_tokens=4, prompt_logprobs=[None], queued_s=0.5))
        streams.deliver(stream.handle, output(2, 3, logprobs=[TokenLogprobs([2], [-1.0], 1)] * 2))
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
            stored=StoredBlocks((b"name",), "host", 1),
            queued_s=0.5,
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
