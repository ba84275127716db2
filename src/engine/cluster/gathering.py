"""Gathering: on node 0, waits until the ranks of all nodes have connected, and refuses ranks that do not belong."""

from __future__ import annotations

import contextlib
import hmac
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...config.exit_codes import EXIT_INVALID_CONFIGURATION
from ...logs import RareLogger
from ..transport.rank_link import RankLink
from ..transport.rank_messages import Alive, Failed, Join
from .fingerprint import Fingerprint, differences
from .limits import ALIVE_S, JOIN_LIMIT_S, SILENCE_S

MAX_JOIN_BYTES = 1 << 20
_POLL_S = 0.25
NOT_UNDERSTOOD = "%s does not ask to join as nodes of this version do: another version, or another program; %s"
logger = logging.getLogger(__name__)
rare = RareLogger(logger)


@dataclass(frozen=True, slots=True)
class Joined:
    """A rank that has connected."""

    link: RankLink
    join: Join


class NotGathered(Exception):
    """A rank has not come in time, or was refused."""


class CannotGather(OSError):
    """The address of node 0 cannot be listened on."""


class Gathering:
    """Use as a context manager: listens until the end of the block."""

    def __init__(
        self,
        address: str,
        port: int,
        ranks: Iterable[int],
        fingerprint: Fingerprint,
        secret: str,
        *,
        ends_when_refused: bool = False,
    ) -> None:
        """Listen. Raises CannotGather.

        Args:
            address, port: of this node.
            ranks: the ranks to wait for.
            fingerprint, secret: of this deployment; ranks with others are refused.
            ends_when_refused: whether `wait` ends when a rank is refused: it cannot come back with other values.
        """
        self._ends_when_refused = ends_when_refused
        self._refusal = ""  # why a rank was refused, if that ends `wait`
        self._missing_or_joined: dict[int, Joined | None] = dict.fromkeys(ranks)
        self._fingerprint, self._secret = fingerprint, secret
        self._changed = threading.Condition()
        try:
            family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((address, port), family=family, backlog=128)
        except OSError as error:
            raise CannotGather(f"node 0 cannot listen on {address}:{port}: {error.strerror or error}") from None
        self.address, self.port = self._listener.getsockname()[:2]

    def __enter__(self) -> Gathering:
        threading.Thread(target=self._accept, name="ranks-join", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._listener.close()

    @property
    def missing(self) -> list[int]:
        return [rank for rank, joined in self._missing_or_joined.items() if joined is None]

    def wait(
        self, check: Callable[[], None], report: Callable[[list[int]], None], limit_s: float = JOIN_LIMIT_S
    ) -> dict[int, Joined]:
        """Wait for all ranks.

        Args:
            check: called several times a second; may raise, if a rank of this node has ended.
            report: called with the ranks that have not connected, whenever these have changed.

        Raises NotGathered.
        """
        deadline, alive_at, reported = time.monotonic() + limit_s, 0.0, None
        try:
            while True:
                check()
                with self._changed:
                    if time.monotonic() - alive_at >= ALIVE_S:
                        alive_at = time.monotonic()
                        self._drop_ended()
                    missing = self.missing
                    if not missing:
                        return {rank: each for rank, each in self._missing_or_joined.items() if each is not None}
                    self._changed.wait(_POLL_S)
                if self._refusal:
                    raise NotGathered(self._refusal)
                if missing != reported:
                    report(missing)
                    reported = missing
                if time.monotonic() > deadline:
                    names = ", ".join(map(str, missing))
                    raise NotGathered(f"rank {names} of the model has not connected within {limit_s:g} s")
        except BaseException:
            for each in self._missing_or_joined.values():
                if each is not None:
                    each.link.close()
            raise

    def _drop_ended(self) -> None:
        """Forget ranks that have ended meanwhile: they are started again, and connect again."""
        for rank, each in self._missing_or_joined.items():
            if each is None:
                continue
            try:
                poll = select.poll()
                poll.register(each.link.fileno(), select.POLLRDHUP)
                if poll.poll(0):
                    raise EOFError
                each.link.offer(Alive())
            except (OSError, EOFError):
                each.link.close()
                self._missing_or_joined[rank] = None

    def _accept(self) -> None:
        while True:
            try:
                connection, (host, *_) = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._admit, args=(connection, host), name="rank-joins", daemon=True).start()

    def _admit(self, connection: socket.socket, host: str) -> None:
        connection.settimeout(SILENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = RankLink(connection)
        try:
            join = link.receive(MAX_JOIN_BYTES)
            if not isinstance(join, Join):
                raise ValueError("not a rank")
            reason = self._reason_against(join)
            connection.settimeout(None)  # silence is the limit, however long a message takes
        except (OSError, EOFError):
            link.close()  # a probe
            return
        except (ValueError, TypeError) as error:
            rare.log(logging.WARNING, NOT_UNDERSTOOD, host, error)
            link.close()
            return
        with self._changed:
            if not reason and self._missing_or_joined[join.rank] is not None:
                self._drop_ended()
                if (other := self._missing_or_joined[join.rank]) is not None:
                    reason = f"rank {join.rank} has connected already, from {other.join.host}"
            if not reason:
                self._missing_or_joined[join.rank] = Joined(link, join)
                self._changed.notify_all()
                return
        logger.error("rank %s of %s was refused: %s", join.rank, host, reason)
        with contextlib.suppress(OSError):
            link.send(Failed(reason, EXIT_INVALID_CONFIGURATION))
        if self._ends_when_refused and hmac.compare_digest(join.secret, self._secret):
            self._refusal = f"rank {join.rank} of the model was refused: {reason}"
        link.close()

    def _reason_against(self, join: Join) -> str:
        if reason := reason_against(join, self._fingerprint, self._secret):
            return reason
        if join.rank not in self._missing_or_joined:
            return f"rank {join.rank} is not one of this deployment's other ranks"
        return ""


def reason_against(join: Join, fingerprint: Fingerprint, secret: str) -> str:
    """Why a process is not of this deployment; empty if it is. fingerprint, secret: of node 0. Raises TypeError."""
    if not hmac.compare_digest(join.secret, secret):
        return "the secrets of the nodes differ (environment variable STOKER_NODE_SECRET)"
    return differences(fingerprint, join.fingerprint, join.host)
