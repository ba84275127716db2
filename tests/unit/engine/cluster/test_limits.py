"""`parallel.cpu_distributed_timeout_seconds`: which limits it sets, and which it cannot shorten."""

from __future__ import annotations

import socket
from threading import Event

import pytest

from stoker.config.schema.parallel import ParallelConfig
from stoker.engine.cluster.joining import JoinedLink
from stoker.engine.cluster.limits import ALIVE_S, LOADING_SILENCE_S, SILENCE_S, silence_of
from stoker.engine.collectives.connect import LIMIT_S, start_limit_s
from stoker.engine.ranks.followers import Follower
from stoker.engine.transport.rank_link import RankLink
from stoker.engine.transport.rank_messages import Operation

END_S = 60.0


def test_a_limit_that_is_set_replaces_the_default():
    assert silence_of(ParallelConfig()) == SILENCE_S
    assert silence_of(ParallelConfig(), LOADING_SILENCE_S) == LOADING_SILENCE_S
    assert silence_of(ParallelConfig(cpu_distributed_timeout_seconds=20), LOADING_SILENCE_S) == 20


def test_the_start_has_no_less_time_than_by_default():
    assert [start_limit_s(ParallelConfig(cpu_distributed_timeout_seconds=each)) for each in (None, 2, 900)] == [
        LIMIT_S,
        LIMIT_S,
        900,
    ]


def test_the_least_limit_is_longer_than_two_intervals_of_signs_of_life():
    with pytest.raises(ValueError, match="greater than or equal to 2"):
        ParallelConfig(cpu_distributed_timeout_seconds=1)
    assert 2 * ALIVE_S < 2


@pytest.mark.parametrize("silence_s", [20, 300])
def test_a_process_that_loads_has_the_longer_limit(silence_s: int):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        each = Follower("rank 1", RankLink(ours), None, heard_at=0.0, silence_s=silence_s)
        while_loading = max(LOADING_SILENCE_S, silence_s)
        assert each.trouble(while_loading) == ""
        assert each.trouble(while_loading + 1) == f"has not answered for {while_loading:g} s"
        each.is_loaded = True
        assert each.trouble(silence_s) == ""
        assert each.trouble(silence_s + 1) == f"has not answered for {silence_s} s"


def test_rank_0_is_given_up_after_the_limit_once_it_computes(caplog: pytest.LogCaptureFixture):
    ended = Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    with ours, theirs:
        link = JoinedLink(theirs, 1, lambda _: ended.set(), silence_s=0.2)
        RankLink(ours).send(Operation("a call", b""))
        link.start()
        assert ended.wait(END_S)
        assert "has been silent for 0.2 s: rank 1 ends" in caplog.text
