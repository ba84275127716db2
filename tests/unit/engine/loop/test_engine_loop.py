from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest
from tests.fake_runner import build_core, continuation

from stoker.engine.api import EngineRequest, FinishReason, RequestInputs, SamplingParams
from stoker.engine.loop.engine_core import EngineCore
from stoker.engine.loop.engine_loop import BLOCKED_RETRY_S, EngineLoop
from stoker.engine.transport.messages import (
    Abort,
    FreeMemory,
    Hello,
    MemoryFreed,
    MemoryTaken,
    Message,
    Outputs,
    Ready,
    Refused,
    Stats,
    Submit,
    TakeMemory,
)


class ScriptedPort:
    """Gives one list of messages per turn, and stops after the last. Records what is sent and how long it may wait."""

    def __init__(self, turns: list[list[tuple[str, Message]]], gone: tuple[str, ...] = ()) -> None:
        self.turns = turns
        self.gone = gone
        self.waits: list[float | None] = []
        self.sent: list[tuple[str, Message]] = []
        self.broadcasts: list[Message] = []

    @property
    def is_stopped(self) -> bool:
        return not self.turns

    def receive(self, wait_s: float | None) -> Iterable[tuple[str, Message]]:
        self.waits.append(wait_s)
        return self.turns.pop(0)

    def send(self, client: str, message: Message) -> bool:
        self.sent.append((client, message))
        return client not in self.gone

    def broadcast(self, message: Message) -> None:
        self.broadcasts.append(message)


def submit(handle: int, prompt: list[int], max_tokens: int = 3) -> Submit:
    sampling = SamplingParams(max_tokens=max_tokens)
    return Submit(handle, EngineRequest(request_id=f"r{handle}", inputs=RequestInputs(prompt, sampling)))


def core(settings: str = "{}") -> EngineCore:
    return build_core(settings, lambda phase: None)


def tokens_of(port: ScriptedPort, client: str, handle: int) -> list[int]:
    tokens: list[int] = []
    for receiver, message in port.sent:
        if receiver == client and isinstance(message, Outputs):
            plain = zip(message.handles.tolist(), message.token_ids.tolist(), strict=True)
            tokens += [token for each, token in plain if each == handle]
            records = zip(message.record_handles, message.records, strict=True)
            tokens += [token for each, output in records if each == handle for token in output.token_ids]
    return tokens


def test_each_client_gets_the_outputs_of_its_own_requests():
    port = ScriptedPort([[("x", submit(1, [1, 2])), ("y", submit(2, [3]))] if turn == 0 else [] for turn in range(5)])
    EngineLoop(core(), port).run()
    assert tokens_of(port, "x", 1) == continuation([1, 2], 3)
    assert tokens_of(port, "y", 2) == continuation([3], 3)


def test_it_waits_for_messages_only_when_there_is_no_work():
    """At first not at all: work that was postponed at the start begins before the first request."""
    port = ScriptedPort([[], [("x", submit(1, [1], max_tokens=2))], [], [], []])
    EngineLoop(core(), port).run()
    assert port.waits == [0.0, None, 0.0, 0.0, None]


def test_work_that_cannot_be_scheduled_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch):
    engine = core()
    monkeypatch.setattr(engine._scheduler, "schedule", lambda: None)
    port = ScriptedPort([[("x", submit(1, [1]))], [], []])
    EngineLoop(engine, port).run()
    assert port.waits == [0.0, BLOCKED_RETRY_S, BLOCKED_RETRY_S]


def test_requests_of_a_disconnected_client_are_aborted():
    engine = core()
    port = ScriptedPort([[("x", submit(1, [1], max_tokens=50)), ("y", submit(2, [3]))], [], [], []], gone=("x",))
    EngineLoop(engine, port).run()
    assert len(tokens_of(port, "x", 1)) == 1
    assert tokens_of(port, "y", 2) == continuation([3], 3)
    assert not engine.has_work


def test_forget_aborts_all_requests_of_a_client():
    engine = core()
    port = ScriptedPort([[("x", submit(1, [1], max_tokens=50)), ("x", submit(2, [2]))], []])
    loop = EngineLoop(engine, port)
    loop.run()
    assert engine.has_work
    loop.forget("x")
    assert not engine.has_work
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


def test_messages_are_answered():
    port = ScriptedPort([[("x", Hello()), ("x", submit(1, [])), ("y", submit(7, [1])), ("y", Abort([7]))], []])
    engine = core()
    EngineLoop(engine, port).run()
    (_, ready), (_, refused) = port.sent
    assert ready == Ready(engine.info)
    assert isinstance(refused, Refused)
    assert (refused.handle, refused.param) == (1, "prompt")


def test_a_message_that_only_an_engine_may_send_is_logged_and_dropped(caplog: pytest.LogCaptureFixture):
    port = ScriptedPort([[("x", Refused(1, "no")), ("x", submit(1, [1], max_tokens=1))], [], []])
    with caplog.at_level(logging.ERROR):
        EngineLoop(core(), port).run()
    assert "a client sent Refused" in caplog.text
    assert tokens_of(port, "x", 1) == continuation([1], 1)


def test_statistics_are_sent_when_the_load_changes_and_otherwise_once_a_second():
    now = [0.0]
    turns: list[list[tuple[str, Message]]] = [[] for _ in range(12)]
    turns[0] = [("x", submit(1, [1], max_tokens=10))]

    class Timed(ScriptedPort):
        def receive(self, wait_s: float | None) -> Iterable[tuple[str, Message]]:
            now[0] += 0.3
            return super().receive(wait_s)

    port = Timed(turns)
    EngineLoop(core(), port, lambda: now[0]).run()
    steps = [message.stats.num_steps for message in port.broadcasts if isinstance(message, Stats)]
    assert steps == [1, 5, 9, 10]  # it runs; 1.2 s later; 1.2 s later; it has ended


def test_statistics_of_a_request_that_arrives_and_ends_in_one_step_are_sent():
    """They were kept until the next request, as the load was the same before and after."""
    port = ScriptedPort([[("x", submit(1, [1], max_tokens=1))], [], []])
    EngineLoop(core(), port).run()
    assert [message.stats.num_steps for message in port.broadcasts if isinstance(message, Stats)] == [1]
    assert port.sent[-1][1].records[0].finish_reason is FinishReason.LENGTH  # type: ignore[union-attr]


def test_memory_that_is_to_be_freed_stays_if_the_engine_is_woken_before():
    """A client that had given up waiting had an engine that slept, without knowing it."""
    port = ScriptedPort([[("x", submit(1, [1], max_tokens=2)), ("x", FreeMemory())], [("x", TakeMemory())], [], [], []])
    engine = core()
    EngineLoop(engine, port).run()
    answers = [message for _, message in port.sent if isinstance(message, MemoryFreed | MemoryTaken)]
    assert answers == [MemoryFreed("the engine was woken up before it slept"), MemoryTaken()]
    assert not engine._is_asleep


def test_an_engine_that_cannot_free_its_memory_keeps_what_it_has_cached():
    engine = core('{"free_error": "too little"}')
    forgotten: list[None] = []
    engine._scheduler.forget_cached = lambda: forgotten.append(None)  # type: ignore[method-assign]
    with pytest.raises(MemoryError, match="too little"):
        engine.free_memory()
    assert not forgotten
