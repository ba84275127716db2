"""Followers: the other processes of a model, as the process that leads them hears them.

A thread watches them: when one ends, stops, falls silent or fails, what a step may wait for is interrupted, so that the
step fails at once; the others are ended, and the engine ends.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ...config.exit_codes import EXIT_FAILED
from ..api import AdapterRef
from ..cluster.child import RankChild
from ..cluster.limits import ALIVE_S, LOADING_SILENCE_S, SILENCE_S
from ..loop.step_queue import FailedAfterExchange, RunnerUnusable
from ..transport.rank_link import RankLink, packed
from ..transport.rank_messages import (
    AdapterRead,
    Alive,
    Failed,
    Finish,
    ForgetAdapter,
    Loaded,
    RankMessage,
    ReadAdapter,
    Returned,
    Tokens,
)

_POLL_S = 0.25  # of the thread that watches; a process that is stopped in two polls one after the other is given up


class RankLost(RunnerUnusable):
    """A process of the model has ended: no step can follow."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(slots=True)
class Follower:
    name: str
    link: RankLink
    child: RankChild | None  # if it runs on this machine
    heard_at: float | None = None  # of links over a network
    silence_s: float = SILENCE_S
    is_loaded: bool = False
    has_left: bool = False  # without a failure
    begun: int = 0  # operations, where it plans its own steps
    returned: Returned | None = None  # of the call that is being made
    adapters: dict[str, AdapterRead] = field(default_factory=dict)  # answers to ReadAdapter, by digest

    def __str__(self) -> str:
        return self.name

    def trouble(self, now: float) -> str:
        """Why it is given up; empty if it is not."""
        if self.child is not None and self.child.is_stopped():
            return "is stopped"
        limit_s = self.silence_s if self.is_loaded else max(self.silence_s, LOADING_SILENCE_S)
        if self.heard_at is not None and now - self.heard_at > limit_s:
            return f"has not answered for {limit_s:g} s"
        return ""

    def end(self) -> str:
        return "has closed its connection; its log says why" if self.child is None else self.child.end()

    def give_up(self) -> None:
        if self.child is not None:
            self.child.kill()
        self.link.shut_down()


class Followers:
    def __init__(self, num_in_stage: int, lost: Callable[[], None] = lambda: None) -> None:
        """num_in_stage: ranks of the first stage, the leading one too. lost: called in a thread when one is lost."""
        self._size, self._lost = num_in_stage, lost
        self._changed = threading.Condition()
        self._failure: RankLost | None = None
        self._is_closed = False
        self._followers: list[Follower] = []
        self._alive_at = 0.0  # when Alive was sent last
        self._held = b""  # what was sampled, until the next message

    def _start_watching(self) -> None:
        """Start the thread that watches the ranks. Call it when all have connected."""
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def _interrupt(self) -> None:
        """Ends what a step may wait for."""

    def wait_loaded(self) -> None:
        """Waits until all have their weights. Raises RankLost."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or all(each.is_loaded for each in self._followers))
        self.check()

    def check(self) -> None:
        """Raises RankLost if a process has ended."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Ends the ranks. Ranks of other nodes then wait for the next start."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for each in self._followers:
            each.give_up()
            each.link.close()

    def send(self, message: RankMessage) -> None:
        """Send sampled tokens and Finish to the ranks of the first stage, other messages to all ranks. Raises
        RankLost."""
        data = packed(message)
        with_held, self._held = self._held + data, b""
        self._send_bytes(with_held, self._in_stage)
        if not isinstance(message, Finish | Tokens):
            self._send_bytes(data, self._followers[self._size - 1 :])

    def _send_bytes(self, data: bytes, followers: list[Follower]) -> None:
        try:
            for each in followers:
                each.link.send_bytes(data)
        except OSError:
            self.wait_failure()
            self.check()
            raise

    def hold(self, tokens: Tokens) -> None:
        """Sends them in front of the next message, which costs nothing more: waking up a process is most of the cost of
        a message. The ranks wait for them until then, so nothing may be exchanged before the next message."""
        if self._in_stage:
            self._held += packed(tokens)

    @property
    def _in_stage(self) -> list[Follower]:
        """The followers in the first stage."""
        return self._followers[: self._size - 1]

    def expect_returned(self) -> None:
        """A call begins: what was returned before is not of it."""
        with self._changed:
            for each in self._followers:
                each.returned = None

    def take_returned(self) -> list[Returned]:
        """What the worker of each has returned, by rank. Waits for them. Raises RankLost."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or all(each.returned for each in self._followers))
            self.check()
            return [each.returned for each in self._followers if each.returned is not None]

    def send_aside(self, message: ReadAdapter | ForgetAdapter) -> None:
        """Send a message that may come at any time to all ranks; any thread may call it. A rank that has ended is
        reported elsewhere."""
        data = packed(message)
        for each in self._followers:
            with contextlib.suppress(OSError):
                each.link.send_bytes(data)

    def read_adapter(self, ref: AdapterRef) -> AdapterRead | None:
        """Wait for the answers to ReadAdapter; one with an error, if there is one. Raises RankLost, also when these
        ranks are being closed."""

        def has_answered() -> bool:
            return all(ref.digest in each.adapters for each in self._followers)

        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._is_closed or has_answered())
            self.check()
            if self._is_closed:
                raise RankLost("the ranks were closed while they read an adapter")
            answers = [each.adapters.pop(ref.digest) for each in self._followers]
        return next((answer for answer in answers if answer.error), None)

    def lose(self, reason: str, exit_code: int = EXIT_FAILED) -> None:
        """End all ranks: no step can follow. The first reason counts."""
        with self._changed:
            if self._failure is not None or self._is_closed:
                return
            self._failure = RankLost(reason, exit_code)
            self._changed.notify_all()
        self._interrupt()
        for each in self._followers:
            each.give_up()
        self._lost()

    def wait_failure(self) -> None:
        """Gives the thread that watches the time to see why an exchange has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None, 4 * _POLL_S)

    def _watch(self) -> None:
        poller = select.poll()
        by_fd = {each.link.fileno(): each for each in self._followers}
        for fd in by_fd:
            poller.register(fd, select.POLLIN)
        looked_at = 0.0
        while self._failure is None and not self._is_closed:
            for fd, _ in poller.poll(_POLL_S * 1000):
                self._take(by_fd[fd])
                if by_fd[fd].has_left:
                    poller.unregister(fd)
            now = time.monotonic()
            if now - looked_at >= _POLL_S:
                looked_at = now
                self._look(now)

    def _look(self, now: float) -> None:
        sends = now - self._alive_at >= ALIVE_S
        if sends:
            self._alive_at = now
        for each in self._followers:
            if each.has_left:
                continue
            if trouble := each.trouble(now):
                self.lose(f"{each} {trouble}")
            elif sends and each.heard_at is not None:
                try:
                    each.link.offer(self._alive())
                except OSError:
                    self.lose(f"{each} {each.end()}")

    def _take(self, follower: Follower) -> None:
        try:
            message = follower.link.receive_part()  # the others are heard while a long message arrives
        except (EOFError, OSError):
            self.lose(f"{follower} {follower.end()}")
            return
        except ValueError as error:
            self.lose(f"{follower} sent what is no message: {error}")
            return
        if follower.heard_at is not None:
            follower.heard_at = time.monotonic()
        if message is not None:
            self._handle(follower, message)

    def _alive(self) -> Alive:
        return Alive()

    def _handle(self, follower: Follower, message: RankMessage) -> None:
        match message:
            case Loaded():
                with self._changed:
                    follower.is_loaded = True
                    self._changed.notify_all()
            case Returned():
                with self._changed:
                    follower.returned = message
                    self._changed.notify_all()
            case AdapterRead():
                with self._changed:
                    follower.adapters[message.digest] = message
                    self._changed.notify_all()
            case Failed(text, exit_code):
                self.lose(f"{follower} failed: {text}", exit_code)


@contextlib.contextmanager
def in_step(others: Followers, what: str = "a step") -> Iterator[None]:
    """What rank 0 does of a step, or of a call. Raises RankLost if neither this step nor a later one can be computed,
    else what sampling raises."""
    others.check()
    try:
        yield
    except FailedAfterExchange as failed:
        raise failed.error from None
    except BaseException as error:
        try:  # a second interrupt may end the waiting
            others.wait_failure()
            others.check()
        finally:
            others.lose(f"{what} ended in the middle: {type(error).__name__}: {error}")  # the first reason counts
        raise
