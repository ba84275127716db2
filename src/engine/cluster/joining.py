"""The connection of a rank to rank 0 on another node, or another machine of a Ray cluster.

Each side sends Alive at an interval, since neither sees the other's process. A rank ends when rank 0 has ended or is
silent; who has started it starts it again, and it connects to the next rank 0.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from ..step import StepPlan
from ..transport.rank_link import RankLink
from ..transport.rank_messages import Alive, Failed, Join, Operation, RankMessage, Start
from .limits import ALIVE_S, JOIN_LIMIT_S, LOADING_SILENCE_S, SILENCE_S, WAITING_LINE_S

RANK_0_ENDED = 0  # exit code of a rank that ends because rank 0 has
_RETRY_S = 0.25
_MAX_ANSWER_BYTES = 1 << 26  # of rank 0 to a Join: the description of a deployment and its model
logger = logging.getLogger(__name__)


class JoinRefused(Exception):
    """Rank 0 refuses this rank: it is of another deployment, model or version."""


class JoinedLink(RankLink):
    """Ends this process when rank 0 does: a step may wait for it in C++."""

    def __init__(
        self, end: socket.socket, rank: int, exit_process: Callable[[int], None], silence_s: float = SILENCE_S
    ) -> None:
        """silence_s: how long rank 0 may be silent once it sends steps; before that it may take LOADING_SILENCE_S."""
        super().__init__(end)
        self._exit_process = exit_process
        self.own_address: str = end.getsockname()[0]
        self.address: str = end.getpeername()[0]
        self._rank = rank
        self._messages: SimpleQueue[RankMessage] = SimpleQueue()
        self._silence_s, self._computing_silence_s = max(silence_s, LOADING_SILENCE_S), silence_s

    def start(self) -> None:
        """Start the thread that receives from now on."""
        threading.Thread(target=self._watch, name="rank-0-watch", daemon=True).start()

    def receive(self, max_bytes: int = sys.maxsize) -> RankMessage:
        """See RankLink.receive. Called after `start`."""
        while self._aside(message := self._messages.get()):
            pass
        return message

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self.fileno(), select.POLLIN)
        heard_at = sent_at = time.monotonic()
        try:
            while True:
                if poller.poll(ALIVE_S * 1000):
                    message = self.receive_part()  # Alive is sent while a long message arrives
                    heard_at = time.monotonic()
                    if isinstance(message, StepPlan | Operation):
                        self._silence_s = self._computing_silence_s
                    if message is not None and not isinstance(message, Alive):
                        self._deliver(message)
                now = time.monotonic()
                if now - heard_at > self._silence_s:
                    self._end(f"has been silent for {self._silence_s:g} s")
                    return
                if now - sent_at >= ALIVE_S:
                    sent_at = now
                    self.offer(self._alive())  # what another thread sends is a sign of life too
        except (OSError, EOFError):
            self._end("has closed the connection")
        except ValueError as error:
            self._end(f"has sent what is no message: {error}")

    def _alive(self) -> Alive:
        return Alive()

    def _deliver(self, message: RankMessage) -> None:
        self._messages.put(message)

    def _end(self, why: str) -> None:
        logger.warning("rank 0 at %s %s: rank %d ends", self.address, why, self._rank)
        self._exit_process(RANK_0_ENDED)


LinkOf = Callable[[socket.socket, int, Callable[[int], None]], JoinedLink]


def join(
    address: str,
    port: int,
    join_of: Callable[[str], Join],
    limit_s: float = JOIN_LIMIT_S,
    exit_process: Callable[[int], None] = os._exit,
    link_of: LinkOf = JoinedLink,
) -> tuple[JoinedLink, Start]:
    """Connects to rank 0, and waits for it and for the other ranks.

    Args:
        join_of: makes the first message, from the address by which this machine reaches rank 0.
        exit_process: called when rank 0 has ended.
        link_of: makes the link.

    Raises JoinRefused, or TimeoutError if rank 0 does not come.
    """
    deadline, line_at = time.monotonic() + limit_s, 0.0
    while True:
        try:
            connection = socket.create_connection((address, port), SILENCE_S)
            try:
                return _joined(connection, join_of, exit_process, link_of)
            except BaseException:
                connection.close()
                raise
        except (OSError, EOFError, ValueError) as error:  # a ValueError of another program's answer
            reason = (isinstance(error, OSError) and error.strerror) or str(error) or "it has closed the connection"
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError(f"node 0 was not found at {address}:{port} within {limit_s:g} s: {reason}")
        if now - line_at > WAITING_LINE_S:
            line_at = now
            logger.warning("waiting for node 0 at %s:%d: %s", address, port, reason)
        time.sleep(_RETRY_S)


def _joined(
    connection: socket.socket,
    join_of: Callable[[str], Join],
    exit_process: Callable[[int], None],
    link_of: LinkOf,
) -> tuple[JoinedLink, Start]:
    """Sends this rank's Join, and waits for the answer. Raises JoinRefused; OSError or EOFError if rank 0 ends,
    ValueError for an answer that is none of its messages."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    asked = join_of(connection.getsockname()[0])
    RankLink(connection).send(asked)
    while True:  # rank 0 sends Alive until all ranks are there
        match RankLink(connection).receive(_MAX_ANSWER_BYTES):
            case Failed(reason):
                raise JoinRefused(f"rank 0 refuses rank {asked.rank}: {reason}")
            case Start() as start:
                connection.settimeout(None)  # silence is the limit, however long a message takes
                link = link_of(connection, asked.rank, exit_process)
                link.start()
                return link, start
