"""Rank 0 and another rank of a launcher, in one process: operations that differ, come late or never."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Semaphore, Thread

import pytest

from stoker.engine.executor.launcher import start_of
from stoker.engine.loop.step_queue import FailedOnRank0
from stoker.engine.ranks.followers import RankLost
from stoker.engine.transport.rank_link import packed
from stoker.engine.transport.rank_messages import Computed, Operation, Returned
from stoker_launcher import following
from stoker_launcher.following import LaunchedRank
from stoker_launcher.leading import LaunchedProcesses

LIMIT_S = 60.0
LATE_S = 0.3  # for an operation that never begins
Ranks = tuple[LaunchedProcesses, LaunchedRank]
STEP = Operation("step 0")


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
    rank_0.begin(STEP)
    other.begin(STEP)
    text = failure(lambda: other.begin(STEP))
    assert text.startswith("rank 0 has not begun what rank 1 of the model (")
    assert lost(rank_0) == text


def test_the_weights_of_rank_0_are_waited_for(connect: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch):
    """The limit of an operation counted the time that rank 0 needs to load."""
    waits = Event()
    monkeypatch.setattr(following, "_POLL_S", LATE_S)
    monkeypatch.setattr(following, "WAITING_LINE_S", 0.0)
    monkeypatch.setattr(following.logger, "warning", lambda *_: waits.set())  # after the limit was looked at
    rank_0, other = connect(limit_1_s=0.0)
    with ThreadPoolExecutor(1) as pool:
        begins = pool.submit(other.begin, STEP)
        assert waits.wait(LIMIT_S)
        rank_0.begin(STEP)
        begins.result(LIMIT_S)


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


def test_a_rank_that_does_not_read_is_given_up_while_another_thread_sends_to_it(connect: Callable[..., Ranks]):
    """The thread that watches waited for the one that sends, which nothing ended."""
    rank_0, other = connect()
    (follower,) = rank_0._followers
    losing = Thread(target=rank_0.lose, args=("is stopped",), daemon=True)
    with follower.link._sending:
        losing.start()
        losing.join(LIMIT_S)
        assert not losing.is_alive()
    assert failure(other.receive).endswith(" has closed the connection")
    assert failure(rank_0.check) == "is stopped"


def test_others_are_watched_while_a_long_message_arrives(connect: Callable[..., Ranks]):
    """Rank 0 looked at no other rank until it had the whole message, and gave up those that it had not heard."""
    rank_0, other = connect()
    (follower,) = rank_0._followers
    looks = Semaphore(0)
    rank_0._look = lambda now: looks.release()  # type: ignore[method-assign]
    data, link = packed(Returned(bytes(1000))), other._link
    with link._sending:
        link._socket.sendall(data[:500])
        for _ in range(4):
            assert looks.acquire(timeout=LIMIT_S)
        link._socket.sendall(data[500:])
    assert rank_0.take_returned() == [Returned(bytes(1000))]
    assert follower.link._socket.gettimeout() is link._socket.gettimeout() is None  # it may take longer than a silence


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
