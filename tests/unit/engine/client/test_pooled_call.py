"""`EngineClient.pool`: many requests in few messages, whatever the engine's queue holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.fake_runner import NOT_FINITE, build_core, pooled

from stoker.engine.api import (
    EngineDead,
    EngineOutput,
    EngineRequest,
    FinishReason,
    InvalidRequest,
    PoolingParams,
    QueueFull,
    RequestInputs,
    SamplingParams,
)
from stoker.engine.client.in_process import InProcessClient
from stoker.engine.client.pooled_call import PooledCall
from stoker.engine.client.replicated import ReplicatedClient
from stoker.engine.client.streams import Streams
from stoker.engine.transport.messages import Message, Outputs, SubmitMany

TEXTS = [[1 + index % 300, 2, 3][: 1 + index % 3] for index in range(700)]


class Counted(InProcessClient):
    """Counts messages in both directions."""

    num_submitted = num_outputs = 0

    def _send(self, message: Message) -> None:
        self.num_submitted += isinstance(message, SubmitMany)
        super()._send(message)

    def _receive(self, message: Message) -> None:
        self.num_outputs += isinstance(message, Outputs)
        super()._receive(message)


@asynccontextmanager
async def engine(**settings: object) -> AsyncIterator[Counted]:
    client = Counted(lambda phase: build_core(json.dumps(settings), phase))
    await client.start()
    try:
        yield client
    finally:
        await client.close()


def requests(texts: list[list[int]], *tasks: str) -> list[EngineRequest]:
    task = PoolingParams(tasks or ("embed",))
    return [EngineRequest(request_id=f"p{i}", inputs=RequestInputs(text, task)) for i, text in enumerate(texts)]


def assert_pooled(outputs: list[EngineOutput], texts: list[list[int]]) -> None:
    assert [output.vectors for output in outputs] == [{"embed": pooled(text, "embed")} for text in texts]
    assert [output.request_id for output in outputs] == [f"p{index}" for index in range(len(texts))]
    assert {output.finish_reason for output in outputs} == {FinishReason.STOP}


def test_outputs_are_in_the_order_of_the_requests():
    async def scenario() -> None:
        async with engine(max_num_seqs=64) as client:
            assert_pooled(await client.pool(requests(TEXTS)), TEXTS)
            assert client.num_submitted < len(TEXTS) / 10
            assert client.num_outputs < len(TEXTS) / 10
            both = await client.pool(requests(TEXTS[:5], "embed", "token_embed"))
            expected = [{task: pooled(text, task) for task in ("embed", "token_embed")} for text in TEXTS[:5]]
            assert [output.vectors for output in both] == expected
            assert await client.pool([]) == []

    asyncio.run(scenario())


def test_a_queue_that_is_shorter_than_the_call_does_not_refuse_it():
    async def scenario() -> None:
        async with engine(max_num_seqs=4, max_queued_requests=1, step_s=0.0005) as client:
            assert_pooled(await client.pool(requests(TEXTS[:99])), TEXTS[:99])

    asyncio.run(scenario())


def test_a_call_is_refused_while_others_fill_the_queue():
    async def scenario() -> None:
        async with engine(max_num_seqs=1, max_queued_requests=0, step_s=0.001) as client:
            params = SamplingParams(max_tokens=400)
            stream = client.generate(EngineRequest(request_id="busy", inputs=RequestInputs([1], params)))
            await anext(stream)
            with pytest.raises(QueueFull):
                await client.pool(requests(TEXTS[:3]))
            await stream.aclose()

    asyncio.run(scenario())


def test_a_text_that_fails_does_not_fail_the_others():
    async def scenario() -> None:
        async with engine() as client:
            found = await client.pool(requests([[1], [2, NOT_FINITE], [3]]))
            assert [output.finish_reason for output in found] == [
                FinishReason.STOP,
                FinishReason.ERROR,
                FinishReason.STOP,
            ]
            assert (found[1].error, found[1].vectors) == ("not finite", None)

    asyncio.run(scenario())


def test_a_wrong_request_fails_the_call_and_the_others_are_aborted():
    async def scenario() -> None:
        async with engine(step_s=0.001) as client:
            with pytest.raises(InvalidRequest, match="outside the vocabulary"):
                await client.pool(requests([*TEXTS[:200], [1000], *TEXTS[200:]]))
            await until_idle(client)

    asyncio.run(scenario())


def test_cancelling_a_call_aborts_its_requests():
    async def scenario() -> None:
        async with engine(step_s=0.001, max_num_seqs=4) as client:
            call = asyncio.create_task(client.pool(requests(TEXTS)))
            while not client.num_outputs:
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until_idle(client)
            assert_pooled(await client.pool(requests(TEXTS[:9])), TEXTS[:9])

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_an_engine_that_dies_fails_the_call():
    async def scenario() -> None:
        async with engine(fail_all=True, max_num_seqs=2) as client:
            found = await client.pool(requests(TEXTS))  # four texts are sent, which are two steps
            reasons = [output.finish_reason for output in found]
            assert reasons == [*[FinishReason.ERROR] * 4, *[FinishReason.ABORT] * (len(TEXTS) - 4)]
            with pytest.raises(EngineDead, match="3 steps in a row failed"):
                await client.pool(requests(TEXTS))
            with pytest.raises(EngineDead):
                await client.pool(requests(TEXTS[:1]))

    asyncio.run(scenario())


def test_replicas_share_a_call():
    async def scenario() -> None:
        async with engine(max_num_seqs=8) as one, engine(max_num_seqs=8, max_queued_requests=0) as other:
            client = ReplicatedClient({2: one, 3: other})
            assert_pooled(await client.pool(requests(TEXTS)), TEXTS)
            assert one.num_outputs
            assert other.num_outputs
            with pytest.raises(InvalidRequest, match="outside the vocabulary"):
                await client.pool(requests([*TEXTS[:50], [1000]]))
            await until_idle(one)
            await until_idle(other)

    asyncio.run(asyncio.wait_for(scenario(), 20))


async def until_idle(client: InProcessClient) -> None:
    while client.stats.num_running or client.stats.num_waiting or len(client._streams):
        await asyncio.sleep(0.005)


class Answers:
    """Streams of a call, and what was sent for it. The test answers as an engine does."""

    def __init__(self, num_texts: int, max_sent: int) -> None:
        self.streams, self.sent = Streams(), list[Message]()
        texts = requests([[1 + index] for index in range(num_texts)])
        self.finished: dict[int, EngineOutput] = {}
        self.call = PooledCall(texts, self.streams, self.sent.append, max_sent, self.finished.__setitem__)

    @property
    def handles(self) -> list[int]:
        """Handles of the last message."""
        last = self.sent[-1]
        assert isinstance(last, SubmitMany)
        return last.handles

    def answer(self, handle: int, reason: FinishReason = FinishReason.STOP) -> None:
        self.streams.deliver(handle, EngineOutput(request_id="", token_ids=[], finish_reason=reason))


@pytest.mark.parametrize("is_abort", [True, False])
def test_nothing_more_is_sent_after_an_abort_or_an_error(is_abort: bool):
    async def scenario() -> None:
        engine = Answers(10, max_sent=4)
        task = asyncio.create_task(engine.call.outputs())
        await asyncio.sleep(0)
        if is_abort:
            engine.streams.abort_all()
        else:
            engine.answer(engine.handles[0], FinishReason.ERROR)
            for handle in engine.handles[1:]:
                engine.answer(handle)
        found = [output.finish_reason for output in await task]
        first = [FinishReason.ABORT] * 4 if is_abort else [FinishReason.ERROR, *[FinishReason.STOP] * 3]
        assert found == [*first, *[FinishReason.ABORT] * 6]
        assert len(engine.sent) == 1
        assert not len(engine.streams)

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_a_call_sends_as_many_again_after_the_queue_was_full():
    async def scenario() -> None:
        engine = Answers(30, max_sent=4)
        task = asyncio.create_task(engine.call.outputs())
        await asyncio.sleep(0)
        first = engine.handles
        for handle in first[1:]:
            engine.streams.refuse(handle, QueueFull("full"))
        sizes = []
        handle = first[0]
        while True:
            num_sent = len(engine.sent)
            engine.answer(handle)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if len(engine.sent) == num_sent:
                break
            sizes.append(len(engine.handles))
            for handle in engine.handles[1:]:
                engine.answer(handle)
            handle = engine.handles[0]
        assert max(sizes) == 4
        assert [output.finish_reason for output in await task] == [FinishReason.STOP] * 30

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_what_a_full_replica_has_computed_is_kept():
    async def scenario() -> None:
        engine = Answers(3, max_sent=2)
        task = asyncio.create_task(engine.call.outputs())
        await asyncio.sleep(0)
        one, other = engine.handles
        engine.answer(one)
        engine.streams.refuse(other, QueueFull("full"))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await task
        assert list(engine.finished) == [0]

    asyncio.run(asyncio.wait_for(scenario(), 10))
