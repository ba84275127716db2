"""Ranks that connect to node 0: who is accepted, and what is sent to the others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

import msgpack
import pytest

from stoker.engine.cluster import gathering as gathering_module
from stoker.engine.cluster.gathering import CannotGather, Gathering, Joined, NotGathered
from stoker.engine.cluster.joining import RANK_0_ENDED, JoinRefused, join
from stoker.engine.cluster.secret import hash_of, secret_hash
from stoker.engine.transport.rank_link import RankLink
from stoker.engine.transport.rank_messages import Alive, Join, Start, Tokens
from stoker.frames import framed
from stoker.logs import RareLogger

LIMIT_S = 60.0
PRINT = {"version": "1", "`model.dtype`": '"float32"'}
SECRET = hash_of("x")


def gathering(*ranks: int) -> Gathering:
    return Gathering("127.0.0.1", 0, ranks, PRINT, SECRET)


def joining(to: Gathering, rank: int, parts: dict[str, str] = PRINT, secret: str = SECRET) -> Thread:
    """A rank in a thread. Its attribute `got` is what `join` returned or raised."""

    def work() -> None:
        def join_of(own: str) -> Join:
            return Join(rank, "host", parts, secret, 7, [own, 9])

        try:
            thread.got = join(to.address, to.port, join_of, LIMIT_S, exit_process)  # type: ignore[attr-defined]
        except Exception as error:
            thread.got = error  # type: ignore[attr-defined]

    def exit_process(code: int) -> None:
        thread.got[0].close()  # type: ignore[attr-defined]
        exit_codes.append(code)

    exit_codes: list[int] = []
    thread = Thread(target=work, daemon=True)
    thread.exit_codes = exit_codes  # type: ignore[attr-defined]
    thread.start()
    return thread


def refusal(thread: Thread) -> str:
    thread.join(LIMIT_S)
    assert isinstance(thread.got, JoinRefused)  # type: ignore[attr-defined]
    return str(thread.got)  # type: ignore[attr-defined]


def close(found: dict[int, Joined]) -> None:
    for each in found.values():
        each.link.close()


@contextmanager
def waiting(to: Gathering) -> Iterator[None]:
    """While the body runs, `to` waits for its ranks, which do not all come."""
    done = Event()

    def check() -> None:
        if done.is_set():
            raise InterruptedError

    def wait() -> None:
        with pytest.raises(InterruptedError):
            to.wait(check, lambda _: None)

    thread = Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_all_ranks_are_accepted_in_any_order_and_get_what_rank_0_sends():
    reports: list[list[int]] = []
    with gathering(1, 2) as here:
        second = joining(here, 2)
        first = joining(here, 1)
        found = here.wait(lambda: None, reports.append)
    assert list(found) == [1, 2]
    assert found[2].join == Join(2, "host", PRINT, SECRET, 7, ["127.0.0.1", 9])
    assert all(set(each) <= {1, 2} for each in reports)
    for rank, thread in ((1, first), (2, second)):
        found[rank].link.send(Start("{}", rank))
        found[rank].link.send(Tokens(None))
        thread.join(LIMIT_S)
        link, start = thread.got  # type: ignore[attr-defined]
        assert start == Start("{}", rank)
        assert link.receive() == Tokens(None)
        assert (link.own_address, link.address) == ("127.0.0.1", "127.0.0.1")
        assert found[rank].link.receive() == Alive()  # while nothing else is to be said
        found[rank].link.close()
        while thread.exit_codes != [RANK_0_ENDED]:  # type: ignore[attr-defined]
            pass


def test_a_rank_of_another_deployment_is_refused_with_what_differs():
    with gathering(1) as here, waiting(here):
        other = {"version": "2", "`model.seed`": "3"}
        assert refusal(joining(here, 1, other)) == (
            'rank 0 refuses rank 1: `model.dtype` is "float32" on node 0 and not written on host; `model.seed` is not '
            "written on node 0 and 3 on host; version is 1 on node 0 and 2 on host"
        )


def test_a_wrong_secret_is_refused_with_nothing_else():
    with gathering(1) as here, waiting(here):
        for secret in ("", hash_of("y")):
            assert refusal(joining(here, 1, {"version": "2"}, secret)) == (
                "rank 0 refuses rank 1: the secrets of the nodes differ (environment variable STOKER_NODE_SECRET)"
            )


def test_a_rank_is_accepted_once_and_only_if_it_is_expected():
    with gathering(1, 2) as here, waiting(here):
        joining(here, 1)
        while here.missing != [2]:
            pass
        assert "rank 1 has connected already, from host" in refusal(joining(here, 1))
        assert "rank 3 is not one of this deployment's other ranks" in refusal(joining(here, 3))


def test_a_rank_that_ends_meanwhile_may_come_again():
    with gathering(1, 2) as here:
        message = Join(1, "first", PRINT, SECRET, 7)
        link = RankLink(socket.create_connection((here.address, here.port)))
        link.send(message)
        while here.missing != [2]:
            pass
        link.close()  # seen by the next that comes
        joining(here, 1)
        joining(here, 2)
        found = here.wait(lambda: None, lambda _: None)
    assert found[1].join.host == "host"
    close(found)


@pytest.mark.parametrize(
    "data", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\5" + bytes(7) + b"\x91\xa4free", b"\1" + bytes(7) + b"\xc1"]
)
def test_other_programs_are_ignored(data: bytes):
    with gathering(1) as here:
        with socket.create_connection((here.address, here.port), LIMIT_S) as program:
            with suppress(OSError):  # it may be closed before all is sent
                program.sendall(data)
                program.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                assert program.recv(1) == b""
        joining(here, 1)
        found = here.wait(lambda: None, lambda _: None)
    assert list(found) == [1]
    close(found)


def test_a_node_that_asks_in_another_way_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Versions whose first message differs were taken for probes, and both sides waited without a reason."""
    monkeypatch.setattr(gathering_module, "rare", RareLogger(gathering_module.logger))
    with gathering(1) as here, socket.create_connection((here.address, here.port), LIMIT_S) as other:
        other.sendall(framed(msgpack.packb(["join", 1, "there", {}, "", 0, [], "new"])))
        assert other.recv(1) == b""
    assert "127.0.0.1 does not ask to join as nodes of this version do" in caplog.text
    assert "join: 7 parts, 6 are expected" in caplog.text


def test_the_time_to_wait_has_a_limit_on_both_sides():
    with gathering(1, 2) as here, pytest.raises(NotGathered, match="rank 1, 2 of the model has not connected"):
        here.wait(lambda: None, lambda _: None, limit_s=0)
    with pytest.raises(TimeoutError, match="node 0 was not found at"):
        join(here.address, here.port, lambda own: Join(1, "", {}, ""), limit_s=0)


def test_an_address_in_use_is_an_error_with_its_name():
    with gathering(1) as here, pytest.raises(CannotGather, match=f"node 0 cannot listen on 127.0.0.1:{here.port}"):
        Gathering("127.0.0.1", here.port, [1], PRINT, SECRET)


def test_only_a_hash_of_the_secret_is_sent():
    assert secret_hash({}) == ""
    assert secret_hash({"STOKER_NODE_SECRET": "abc"}) == hash_of("abc")
    assert "abc" not in hash_of("abc")
