"""Ranks that have the same adapters in memory, over real connections; each other rank is a thread."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
from tests.unit.engine.lora.test_adapters import Store

from stoker.config import ModelFilesError
from stoker.engine.api import AdapterError, AdapterRef
from stoker.engine.loop.adapter_reader import AdapterReader
from stoker.engine.ranks.adapters_of_ranks import FollowingAdapters, OthersOfRanks
from stoker.engine.ranks.followers import Follower, Followers, RankLost
from stoker.engine.transport.rank_link import RankLink
from stoker.engine.transport.rank_messages import Finish, RankMessage, Tokens
from stoker.model.adapter import AdapterSpec


class Rank:
    """Another rank, that receives until its connection ends."""

    def __init__(self, place: Path, end: socket.socket, others: Followers, number: int) -> None:
        self.store, self.link = Store(place, max_copies=1), RankLink(end)
        self.received: SimpleQueue[RankMessage] = SimpleQueue()
        self.follower = others._followers[number - 1]
        self._adapters = FollowingAdapters(self.store.adapters, self.link)
        self.thread = threading.Thread(target=self._receive)
        self.thread.start()

    def _receive(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self.received.put(self.link.receive())

    def settle(self) -> None:
        """Return when everything has been done that it was sent so far: its thread does one after the other."""
        self.follower.link.send(Finish())
        while not isinstance(self.received.get(), Finish):
            pass
        self._adapters._reader.submit(lambda: None).result()


class Model:
    def __init__(self, place: Path) -> None:
        self.place, self.own = place, Store(place, max_copies=2)
        self.others, self.ranks = Followers(3), []
        ends = [socket.socketpair() for _ in range(2)]
        for number, (ours, _) in enumerate(ends, 1):
            self.others._followers.append(Follower(f"rank {number}", RankLink(ours), None))
        self.ranks = [Rank(place, theirs, self.others, number) for number, (_, theirs) in enumerate(ends, 1)]
        self.others._start_watching()
        self.adapters = self.own.adapters
        self.adapters.others = OthersOfRanks(self.others)

    def has(self, name: str) -> list[bool]:
        for rank in self.ranks:
            rank.settle()
        return [self.adapters.has(name), *(rank.store.adapters.has(name) for rank in self.ranks)]

    def close(self) -> None:
        self.others.close()
        for rank in self.ranks:
            rank.link.shut_down()
            rank.thread.join()
            rank.link.close()


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    made = Model(tmp_path)
    yield made
    made.close()


def test_all_have_read_an_adapter_when_it_is_loaded_and_forget_it_together(model: Model) -> None:
    for name in "abac":
        model.adapters.load(model.own.ref(name))
    assert [model.has(name) for name in "abc"] == [[True] * 3, [False] * 3, [True] * 3]  # b made room on all
    assert model.own.reads == ["a", "b", "c"] == model.ranks[0].store.reads
    shutil.rmtree(model.place / "a")
    for store in (*(rank.store for rank in model.ranks), model.own):
        store.adapters.place(0, AdapterRef("a", "a", str(model.place / "a")))  # no step reads a file
    model.adapters.forget("a")
    assert model.has("a") == [False] * 3


def test_an_adapter_that_one_rank_cannot_read_is_on_none(model: Model) -> None:
    ref = model.own.ref("a")
    read = model.own._read
    model.ranks[1].store.adapters._read = lambda folder: read(folder if folder.name == "b" else folder / "not-here")
    with pytest.raises(AdapterError, match=r"adapter `a`: .*not-here: no such folder"):
        model.adapters.load(ref)
    assert model.has("a") == [False] * 3
    with pytest.raises(AdapterError, match="no such folder"):  # nor rank 0
        model.adapters.load(AdapterRef("x", "x", str(model.place / "x")))
    assert model.has("x") == [False] * 3
    model.adapters.load(model.own.ref("b"))
    assert model.has("b") == [True] * 3


def test_messages_about_adapters_come_between_those_of_steps(model: Model) -> None:
    """A rank that waits for sampled tokens has received an order to read instead, and ended."""
    for number in range(3):
        for rank in model.ranks:
            rank.follower.link.send(Tokens(np.array([number], np.int32)))
        model.adapters.load(model.own.ref("abc"[number]))
    for rank in model.ranks:
        received = [rank.received.get() for _ in range(3)]
        assert [message.token_ids.tolist() for message in received if isinstance(message, Tokens)] == [[0], [1], [2]]


def test_a_rank_that_ends_meanwhile_ends_the_call(model: Model) -> None:
    model.ranks[0].store.adapters._read = lambda folder: model.ranks[0].link.shut_down()  # type: ignore[assignment,return-value]
    with pytest.raises(RankLost, match="rank 1 has closed its connection"):
        model.adapters.load(model.own.ref("a"))


def test_an_adapter_is_there_when_all_ranks_have_read_it(model: Model) -> None:
    """Rank 0 had its own copy first: a plan named the adapter, and another rank read files in the step."""
    ref, rank = model.own.ref("a"), model.ranks[0]
    read, may_read = rank.store.adapters._read, threading.Event()

    def read_later(folder: Path) -> AdapterSpec:
        assert may_read.wait(60)
        return read(folder)

    rank.store.adapters._read = read_later
    reader = AdapterReader(model.adapters)
    first = reader.load(ref)
    model.ranks[1].settle()
    second = reader.load(ref)  # joins the first: one answer of each rank is for one wait
    assert (model.adapters.has("a"), reader.is_reading) == (False, True)
    may_read.set()
    first.result()
    second.result()
    assert model.has("a") == [True] * 3
    assert [rank.store.reads for rank in model.ranks] == [["a"], ["a"]]
    reader.close()


def test_a_rank_answers_whatever_fails_there(model: Model) -> None:
    """The error was lost in the thread of the rank, and rank 0 waited without a limit."""

    def load(ref: AdapterRef) -> None:
        raise TypeError("not what was expected")

    model.ranks[1].store.adapters.load = load  # type: ignore[method-assign]
    with pytest.raises(AdapterError, match="adapter `a` cannot be read: TypeError"):
        model.adapters.load(model.own.ref("a"))
    assert model.has("a") == [False] * 3


def test_closing_ends_a_read_that_waits_for_another_rank(model: Model) -> None:
    may_read, begun = threading.Event(), threading.Event()

    def read(folder: Path) -> AdapterSpec:
        begun.set()
        assert may_read.wait(60)
        raise ModelFilesError("too late")

    model.ranks[0].store.adapters._read = read
    reader = AdapterReader(model.adapters)
    reading = reader.load(model.own.ref("a"))
    assert begun.wait(60)
    model.others.close()
    reader.close()
    with pytest.raises(AdapterError, match="the ranks were closed"):
        reading.result()
    may_read.set()
