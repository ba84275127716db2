"""Adapters are read in a thread; requests wait for theirs, and calls for their answer, while steps go on."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.fake_adapters import FakeStore
from tests.fake_runner import FakeRunner, FakeSettings, build_core

from stoker.engine.api import (
    ADAPTER_FAILED,
    AdapterError,
    AdapterRef,
    CacheScope,
    EngineOutput,
    EngineRequest,
    FinishReason,
    InvalidRequest,
    RequestInputs,
    SamplingParams,
)
from stoker.engine.core import Scheduler, SchedulerSettings
from stoker.engine.core.adapter_slots import AdapterSettings
from stoker.engine.loop.adapter_reader import AdapterReader
from stoker.engine.loop.engine_core import EngineCore
from stoker.engine.loop.engine_loop import BLOCKED_RETRY_S, EngineLoop
from stoker.engine.loop.executor import Executor
from stoker.engine.loop.step_queue import InlineStepQueue
from stoker.engine.transport.messages import AdapterChanged, LoadAdapter, Message, UnloadAdapter

SQL, GONE = AdapterRef("sql", "a1", "/sql"), AdapterRef("gone", "b2", "/gone")


class ClosingExecutor(Executor):
    """Its read waits for another process until it is closed."""

    def close(self) -> None:
        assert isinstance(self.adapters, FakeStore)
        self.adapters.may_read.set()


def engine(max_copies: int = 1, settings: FakeSettings | None = None) -> tuple[EngineCore, FakeStore]:
    """Adapters are read when the test allows it."""
    store = FakeStore(max_copies)
    store.missing.add("gone")
    store.may_read.clear()
    executor, reader = ClosingExecutor(InlineStepQueue(FakeRunner(settings or FakeSettings()))), AdapterReader(store)
    executor.adapters = store
    settings_of_steps = SchedulerSettings(
        num_blocks=40,
        block_size=4,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        max_model_len=64,
        adapters=AdapterSettings(max_loras=1, copies=reader),
    )
    info = build_core("{}", lambda phase: None).info
    return EngineCore(Scheduler(settings_of_steps), executor, info, adapters=reader), store


def request(name: str, ref: AdapterRef | None) -> EngineRequest:
    scope = CacheScope(adapter=ref.digest if ref else "")
    return EngineRequest(request_id=name, inputs=RequestInputs([5, 6], SamplingParams(max_tokens=2), scope, ref))


def run(core: EngineCore) -> list[EngineOutput]:
    outputs: list[EngineOutput] = []
    while core.has_work:
        outputs += core.step()
    return outputs


def test_a_request_waits_for_its_adapter_and_others_do_not():
    core, store = engine()
    core.add(request("adapted", SQL))
    core.add(request("plain", None))
    outputs = [*core.step(), *core.step()]
    assert {output.request_id for output in outputs} == {"plain"}
    assert core.stats.waiting_adapters == ("sql",)
    assert core.is_reading
    store.may_read.set()
    assert {output.request_id for output in run(core)} == {"adapted"}
    core.close()


def test_requests_whose_adapter_cannot_be_read_end_and_it_is_read_once():
    """It was read again for each of them, by the thread that plans; and no arrival time was removed."""
    core, store = engine()
    for name in "abc":
        core.add(request(name, GONE))
    core.add(request("plain", None))
    store.may_read.set()
    outputs = run(core)
    failed = {output.request_id: output.error for output in outputs if output.error}
    assert failed == dict.fromkeys("abc", ADAPTER_FAILED + "adapter `gone` is gone")
    assert store.reads == ["gone"]
    assert core._queue_times._arrived_at == {}
    assert not core.is_reading
    store.missing.clear()
    core.add(request("later", GONE))  # a later one has it read again
    assert {output.error for output in run(core)} == {None}
    core.close()


def test_a_failed_call_leaves_nothing():
    core, store = engine()
    store.may_read.set()
    with pytest.raises(AdapterError, match="is gone"):
        core.load_adapter(GONE).result()
    reader = core._adapters
    assert (reader._reading, reader._failed, dict(reader._held)) == ({}, {}, {})
    core.load_adapter(SQL).result()
    assert core.load_adapter(SQL).done()
    assert store.reads == ["gone", "sql"]
    core.close()


def test_closing_ends_a_read_that_waits_for_another_process():
    """The engine waited for the read before it closed what the read waited for."""
    core, _ = engine()
    reading = core.load_adapter(SQL)
    core.close()
    assert reading.done()


def test_a_call_and_requests_share_one_read():
    core, store = engine()
    core.add(request("first", SQL))
    core.add(request("second", SQL))
    called = core.load_adapter(SQL)
    assert not called.done()
    store.may_read.set()
    called.result()
    run(core)
    assert store.reads == ["sql"]
    core.close()


def test_waiting_requests_do_not_push_out_each_others_adapters():
    """Each adapter was read twice, the second time by the thread that plans."""
    core, store = engine()
    store.may_read.set()
    for name in "abc":
        core.add(request(name, AdapterRef(name, name, name)))
    outputs = run(core)
    assert len({output.request_id for output in outputs if output.finish_reason is not None}) == 3
    assert sorted(store.reads) == ["a", "b", "c"]
    core.close()


def test_a_step_that_failed_leaves_no_load_behind():
    """The next plan repeated the load without a request that needed it, and failed too, when the copy was gone and the
    files had changed; the third failure ended the engine."""
    core, store = engine(settings=FakeSettings(fail_steps=[0]))
    store.may_read.set()
    core.load_adapter(SQL).result()
    core.add(request("adapted", SQL))
    (output,) = core.step()
    assert output.finish_reason is FinishReason.ERROR
    core.unload_adapter(SQL.digest)
    core.add(request("plain", None))
    assert {output.error for output in run(core)} == {None}
    assert (store.pinned["a1"], store.held["a1"], store.copies) == (0, 0, {})
    core.close()


def test_an_adapter_that_is_unloaded_while_it_is_read_is_forgotten():
    core, store = engine()
    reading = core.load_adapter(SQL)
    core.unload_adapter(SQL.digest)
    store.may_read.set()
    reading.result()
    core.close()  # waits for the thread that reads
    assert store.copies == {}


def test_without_adapters_a_request_with_one_is_refused():
    core = build_core("{}", lambda phase: None)
    with pytest.raises(InvalidRequest, match="serves no adapters") as caught:
        core.add(request("r", SQL))
    assert (caught.value.param, caught.value.code) == ("model", "unsupported_adapter")
    assert not core.has_work


class Port:
    """Gives one list of messages per turn, and lets adapters be read after the first."""

    def __init__(self, store: FakeStore, turns: list[list[Message]]) -> None:
        self._store, self._turns = store, turns
        self.sent: list[Message] = []
        self.waits: list[float | None] = []

    @property
    def is_stopped(self) -> bool:
        return not self._turns and all(isinstance(each, AdapterChanged) for each in self.sent) and len(self.sent) == 3

    def receive(self, wait_s: float | None) -> Iterable[tuple[str, Message]]:
        self.waits.append(wait_s)
        if len(self.waits) == 3:
            self._store.may_read.set()
        return [("client", message) for message in (self._turns.pop(0) if self._turns else [])]

    def send(self, client: str, message: Message) -> bool:
        self.sent.append(message)
        return True

    def broadcast(self, message: Message) -> None:
        """Statistics are of no interest."""


def test_calls_are_answered_when_the_adapter_is_read():
    core, store = engine()
    store.copies["c3"] = AdapterRef("old", "c3", "/old")
    port = Port(store, [[LoadAdapter(1, SQL), LoadAdapter(2, GONE), UnloadAdapter(3, "c3")]])
    EngineLoop(core, port).run()
    assert port.sent[0] == AdapterChanged(3)
    failed = AdapterChanged(2, "adapter `gone` is gone", "adapter_unreadable")
    # A read may end between the questions after two calls: their numbers say which an answer is for.
    assert port.sent[1:] in ([AdapterChanged(1), failed], [failed, AdapterChanged(1)])
    assert set(port.waits) == {0.0, BLOCKED_RETRY_S}
    assert list(store.copies) == ["a1"]
    core.close()
