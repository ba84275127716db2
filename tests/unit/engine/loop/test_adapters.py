"""Adapters are read in a thread; requests wait for theirs, and calls for their answer, while steps go on."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest
from tests.fake_runner import FakeRunner, FakeSettings, build_core

from stoker.engine.api import (
    ADAPTER_FAILED,
    AdapterError,
    AdapterRef,
    CacheScope,
    EngineOutput,
    EngineRequest,
    InvalidRequest,
    RequestInputs,
    SamplingParams,
)
from stoker.engine.core import Scheduler, SchedulerSettings
from stoker.engine.core.adapter_slots import AdapterSettings
from stoker.engine.loop.engine_core import EngineCore
from stoker.engine.loop.engine_loop import BLOCKED_RETRY_S, EngineLoop
from stoker.engine.loop.executor import Executor
from stoker.engine.loop.step_queue import InlineStepQueue
from stoker.engine.transport.messages import AdapterChanged, LoadAdapter, Message, UnloadAdapter

SQL, GONE = AdapterRef("sql", "a1", "/sql"), AdapterRef("gone", "b2", "/gone")


class ReadingExecutor(Executor):
    """Reads an adapter when the test allows it."""

    reads_beside_steps = True

    def __init__(self) -> None:
        super().__init__(InlineStepQueue(FakeRunner(FakeSettings())))
        self.may_read = threading.Event()
        self.known: list[str] = []

    def has_adapter(self, digest: str) -> bool:
        return digest in self.known

    def load_adapter(self, ref: AdapterRef) -> None:
        assert self.may_read.wait(60)
        if ref is GONE:
            raise AdapterError("it is gone", code="adapter_unreadable")
        self.known.append(ref.digest)

    def unload_adapter(self, digest: str) -> None:
        self.known.remove(digest)


def engine() -> tuple[EngineCore, ReadingExecutor]:
    executor = ReadingExecutor()
    settings = SchedulerSettings(
        num_blocks=40,
        block_size=4,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        max_model_len=64,
        adapters=AdapterSettings(max_loras=1, load=executor.load_adapter),
    )
    return EngineCore(Scheduler(settings), executor, build_core("{}", lambda phase: None).info), executor


def request(name: str, ref: AdapterRef | None) -> EngineRequest:
    scope = CacheScope(adapter=ref.digest if ref else "")
    return EngineRequest(request_id=name, inputs=RequestInputs([5, 6], SamplingParams(max_tokens=2), scope, ref))


def run(core: EngineCore) -> list[EngineOutput]:
    outputs: list[EngineOutput] = []
    while core.has_work:
        outputs += core.step()
    return outputs


def test_a_request_waits_for_its_adapter_and_others_do_not():
    core, executor = engine()
    core.add(request("adapted", SQL))
    core.add(request("plain", None))
    outputs = [*core.step(), *core.step()]
    assert {output.request_id for output in outputs} == {"plain"}
    assert core.stats.waiting_adapters == ("sql",)
    executor.may_read.set()
    assert {output.request_id for output in run(core)} == {"adapted"}
    core.close()


def test_a_request_whose_adapter_cannot_be_read_is_refused_or_ends():
    core, executor = engine()
    core.add(request("early", GONE))
    executor.may_read.set()
    (output,) = run(core)
    assert (output.request_id, output.error) == ("early", ADAPTER_FAILED + "it is gone")
    with pytest.raises(AdapterError, match="it is gone"):
        core.load_adapter(GONE).result()
    core.close()


def test_without_adapters_a_request_with_one_is_refused():
    core = build_core("{}", lambda phase: None)
    with pytest.raises(InvalidRequest, match="serves no adapters") as caught:
        core.add(request("r", SQL))
    assert (caught.value.param, caught.value.code) == ("model", "unsupported_adapter")
    assert not core.has_work


class Port:
    """Gives one list of messages per turn, and lets adapters be read after the first."""

    def __init__(self, executor: ReadingExecutor, turns: list[list[Message]]) -> None:
        self._executor, self._turns = executor, turns
        self.sent: list[Message] = []
        self.waits: list[float | None] = []

    @property
    def is_stopped(self) -> bool:
        return not self._turns and all(isinstance(each, AdapterChanged) for each in self.sent) and len(self.sent) == 3

    def receive(self, wait_s: float | None) -> Iterable[tuple[str, Message]]:
        self.waits.append(wait_s)
        if len(self.waits) == 3:
            self._executor.may_read.set()
        return [("client", message) for message in (self._turns.pop(0) if self._turns else [])]

    def send(self, client: str, message: Message) -> bool:
        self.sent.append(message)
        return True

    def broadcast(self, message: Message) -> None:
        """Statistics are of no interest."""


def test_calls_are_answered_when_the_adapter_is_read():
    core, executor = engine()
    executor.known.append("c3")
    port = Port(executor, [[LoadAdapter(1, SQL), LoadAdapter(2, GONE), UnloadAdapter(3, "c3")]])
    EngineLoop(core, port).run()
    assert port.sent[0] == AdapterChanged(3)
    assert port.sent[1:] == [AdapterChanged(1), AdapterChanged(2, "it is gone", "adapter_unreadable")]
    assert set(port.waits) == {0.0, BLOCKED_RETRY_S}
    assert executor.known == ["a1"]
    core.close()
