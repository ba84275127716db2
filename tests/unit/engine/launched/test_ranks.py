"""Rank 0 and another rank of a launcher, in one process: operations that differ, come late or never."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from threading import Thread

import pytest

from stoker.config import Resolved, load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.engine.launched.following import LaunchedRank
from stoker.engine.launched.launch import Launch
from stoker.engine.launched.leading import LaunchedProcesses
from stoker.engine.rank_link import Computed, Loaded, Operation
from stoker.engine.rank_processes import RankLost
from stoker.engine.startup import start_of
from stoker.engine.step_queue import FailedOnRank0

LIMIT_S = 60.0
LATE_S = 0.3  # for an operation that never begins
Ranks = tuple[LaunchedProcesses, LaunchedRank]
STEP = Operation("step 0")


@pytest.fixture(scope="module")
def resolved() -> Resolved:
    words = "--model builtin:tiny -tp 2 --distributed-executor-backend external_launcher --max-model-len 256"
    deployment = load_deployment([], words.split(), env={})
    return resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())


@pytest.fixture
def connect(resolved: Resolved, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ranks]]:
    """Connects two ranks. Its arguments are their limits, and whether the other one has loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    made: list[LaunchedProcesses | LaunchedRank] = []

    def connected(limit_0_s: float = LIMIT_S, limit_1_s: float = LIMIT_S, *, loads: bool = True) -> Ranks:
        first = Thread(
            target=lambda: made.append(LaunchedProcesses(resolved, Launch(0, 2, "127.0.0.1", port), limit_s=limit_0_s))
        )
        first.start()
        other = LaunchedRank(resolved, Launch(1, 2, "127.0.0.1", port), limit_1_s)
        first.join(LIMIT_S)
        (rank_0,) = made
        assert isinstance(rank_0, LaunchedProcesses)
        made.append(other)
        if loads:
            other.send(Loaded())
            rank_0.wait_loaded()
        return rank_0, other

    yield connected
    for each in made:
        each.close()


def failure(call: Callable[[], object]) -> str:
    with pytest.raises(RankLost) as lost:
        call()
    return str(lost.value)


def lost(rank_0: LaunchedProcesses) -> str:
    """Waits until it has lost the other one."""
    with rank_0._changed:
        assert rank_0._changed.wait_for(lambda: rank_0._failure is not None, LIMIT_S)
    return failure(rank_0.check)


def test_the_result_of_rank_0_is_that_of_all(connect: Callable[..., Ranks]):
    rank_0, other = connect()
    rank_0.begin(STEP)
    other.begin(STEP)
    rank_0.send(Computed(None, "ValueError"))
    with pytest.raises(FailedOnRank0) as failed:
        other.result()
    assert failed.value.cause == "ValueError"


def test_another_operation_ends_both_with_the_same_text(connect: Callable[..., Ranks]):
    rank_0, other = connect()
    rank_0.begin(STEP)
    text = failure(lambda: other.begin(Operation("a call of `place`")))
    assert text.startswith("rank 1 of the model (")
    assert text.endswith(" does not do what rank 0 does: it begins a call of `place`, and rank 0 step 0")
    assert lost(rank_0) == text


def test_a_rank_that_does_not_begin_is_given_up(connect: Callable[..., Ranks]):
    rank_0, other = connect(limit_0_s=LATE_S)
    rank_0.begin(STEP)
    text = lost(rank_0)
    assert "rank 1 of the model (" in text
    assert text.endswith("has not begun step 0 within 0.3 s: its script differs")
    assert failure(lambda: [other.receive(), other.receive()]) == text


def test_rank_0_that_does_not_begin_is_given_up(connect: Callable[..., Ranks]):
    rank_0, other = connect(limit_1_s=LATE_S)
    text = failure(lambda: other.begin(STEP))
    assert text.startswith("rank 0 has not begun what rank 1 of the model (")
    assert lost(rank_0) == text


def test_a_rank_may_leave_before_the_others_have_read_the_last_result(connect: Callable[..., Ranks]):
    rank_0, other = connect()
    rank_0.begin(STEP)
    other.begin(STEP)
    closing = Thread(target=rank_0.close)
    rank_0.end(Computed(None, "ValueError"))
    closing.start()
    closing.join(LIMIT_S)
    with pytest.raises(FailedOnRank0):
        other.result()
    assert "has left: its script has closed its LLM, or has ended" in failure(lambda: other.begin(STEP))


def test_a_rank_that_has_left_is_missed_by_the_next_step_alone(connect: Callable[..., Ranks]):
    rank_0, other = connect()
    rank_0.begin(STEP)
    other.begin(STEP)
    rank_0.end(Computed(None))
    other.close()
    with rank_0._changed:
        assert rank_0._changed.wait_for(lambda: all(each.has_left for each in rank_0._followers), LIMIT_S)
    rank_0.check()
    assert "has left: its script has closed its LLM, or has ended" in failure(lambda: rank_0.begin(STEP))


def test_a_rank_that_has_left_in_the_middle_of_a_step_is_lost(connect: Callable[..., Ranks]):
    """Rank 0 waited for it in the exchange, or for the result of a call, without end."""
    rank_0, other = connect()
    rank_0.begin(STEP)
    other.begin(STEP)
    other.close()
    assert "has left: its script has closed its LLM, or has ended" in lost(rank_0)


def test_a_rank_that_has_left_before_it_has_loaded_is_lost(connect: Callable[..., Ranks]):
    """Rank 0 waited for its weights without end."""
    rank_0, other = connect(loads=False)
    other.close()
    assert "has left: its script has closed its LLM, or has ended" in failure(rank_0.wait_loaded)


def test_a_start_that_fails_ends_the_others_with_its_reason(connect: Callable[..., Ranks]):
    """Errors between the connection and the weights, such as a tokenizer that is not there, were not sent."""
    rank_0, other = connect(loads=False)
    with pytest.raises(OSError, match="no tokenizer"), start_of(other):
        raise OSError("no tokenizer")
    assert failure(rank_0.wait_loaded).endswith(" could not start: OSError: no tokenizer")


def test_a_start_that_fails_because_of_another_rank_says_so(connect: Callable[..., Ranks]):
    rank_0, other = connect(loads=False)
    rank_0.lose("no memory")
    assert failure(other.receive) == "no memory"
    with pytest.raises(RankLost, match="no memory"), start_of(other):
        raise OSError("an exchange was closed")
