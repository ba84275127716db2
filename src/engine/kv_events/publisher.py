"""EventPublisher: sends KV cache events over ZMQ, from a thread, and answers subscribers that have missed some.

Two sockets: PUB, for all who listen, and ROUTER, for replay and snapshots. Steps only append to a queue. Nothing here
waits for a reader: what a slow one cannot take is dropped for it, and its next sequence number shows that. Memory is
bounded: the queue, the batches kept for replay, the number of readers, the queue of each, and the frames that it sends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from ...config.schema.kv_events import KVEventsConfig, is_bound
from ...logs import RareLogger
from ..core.block_events import BlockEvent, BlocksCleared
from .connection_limit import ConnectionLimit
from .payloads import CacheView, EventPayloads

SNAPSHOT = b"snapshot"  # a request; any other is the sequence number to replay from
END = (-1).to_bytes(8, "big", signed=True)  # in place of a sequence number, after the last answer
MAX_CONNECTIONS = 256  # to each endpoint; one more is closed
SNAPSHOT_BLOCKS = 512  # in one message: encoding them takes about a millisecond, in which no step can be planned
_SEQUENCE_BYTES = 8
_MAX_FRAME_BYTES = 1 << 10  # of what arrives: requests of 8 bytes, and subscriptions to a topic
_GATHER_S = 0.01  # between two turns: a thread that wakes up in each step takes the interpreter away from it
logger = logging.getLogger(__name__)


class CannotPublish(OSError):
    """An address of the events cannot be used."""

    def __init__(self, option: str, address: str, reason: str) -> None:
        super().__init__(f"`kv_events.{option}`: cannot use {address}: {reason}")


class EventPublisher:
    """Publishes events. It takes its addresses when it is created, before a model is loaded; it sends after `start`."""

    def __init__(self, config: KVEventsConfig, clock: Callable[[], float] = time.time) -> None:
        """clock: seconds since 1970. Raises CannotPublish."""
        self._config = config
        self._clock = clock
        self._topic = config.topic.encode()
        self._wrong_requests = RareLogger(logger)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._replay: zmq.Socket[bytes] | None = None
        self._limits: list[ConnectionLimit] = []
        self._id = os.urandom(16)  # another one shows readers of snapshots that the engine was restarted
        try:
            self._publisher = self._socket(zmq.PUB, config.hwm, "endpoint", config.endpoint)
            if config.replay_endpoint is not None:
                # Room for one whole answer. One more is refused until its reader has taken this one.
                room = max(config.hwm, config.buffer_steps + 1)
                self._replay = self._socket(zmq.ROUTER, room, "replay_endpoint", config.replay_endpoint)
                self._replay.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a full queue fails, instead of dropping
        except CannotPublish:
            self._context.destroy(linger=0)
            raise
        self._queue: deque[Sequence[BlockEvent]] = deque()
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._sent: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)  # sequence number, payload
        self._sequence = 0
        self._is_closing = False
        self._is_waiting = False  # the thread, for `_waker` or a request
        self._thread: threading.Thread | None = None

    def _socket(self, kind: int, hwm: int, option: str, address: str) -> zmq.Socket[bytes]:
        made: zmq.Socket[bytes] = self._context.socket(kind)
        made.set_hwm(hwm)
        # A longer frame ends its connection before it is received: else a reader decides how much memory it takes.
        made.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES + len(self._topic))
        made.linger = 0
        made.ipv6 = "[" in address
        try:
            if kind == zmq.PUB and not is_bound(address):
                made.connect(address)
            elif _is_listening(address):
                raise zmq.ZMQError(zmq.EADDRINUSE)
            else:
                self._limits.append(ConnectionLimit(made, MAX_CONNECTIONS))
                made.bind(address)
        except zmq.ZMQError as error:
            raise CannotPublish(option, address, zmq.strerror(error.errno or 0).lower()) from None
        return made

    def start(self, payloads: EventPayloads) -> None:
        """Send what `put` is given. The first batch says that nothing is cached."""
        self._payloads = payloads
        self._view = CacheView(len(payloads.windows))
        self.put([BlocksCleared()])
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def put(self, events: Sequence[BlockEvent]) -> None:
        """Send these as one batch, soon. Never waits: when the queue is full, readers start from an empty cache."""
        if not events:
            return
        if len(self._queue) >= self._config.max_queue_size:
            logger.warning("the queue of KV cache events is full: it is dropped, and readers start from an empty cache")
            self._queue.clear()
            events = [BlocksCleared(), *events]
        self._queue.append(events)
        if self._is_waiting:
            self._rouse()

    def close(self) -> None:
        """Send what is queued, and release the addresses."""
        self._is_closing = True
        self._rouse()
        if self._thread is not None:
            self._thread.join()
        self._context.destroy(linger=100)
        self._wake.close()
        self._waker.close()

    def _rouse(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it wakes up anyway
            self._waker.send(b"\0")

    # ---- in the thread

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        for limit in self._limits:
            poller.register(limit.events, zmq.POLLIN)
        while True:
            self._is_waiting = True
            if not (self._queue or self._is_closing):
                poller.poll()
            self._is_waiting = False
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(4096)
            for limit in self._limits:
                limit.check()
            self._send_queued()
            if self._replay is not None:
                self._answer(self._replay)
            if self._is_closing and not self._queue:
                return
            time.sleep(_GATHER_S)

    def _send_queued(self) -> None:
        while self._queue:
            try:
                events = self._queue.popleft()
            except IndexError:  # it has just been cleared
                return
            self._view.apply(events, self._payloads.block_size)
            sequence = self._sequence.to_bytes(_SEQUENCE_BYTES, "big")
            payload = self._payloads.encode(events, self._clock())
            self._sent.append((sequence, payload))
            self._sequence += 1
            with contextlib.suppress(zmq.ZMQError):  # PUB never waits, and an error concerns single readers
                self._publisher.send_multipart((self._topic, sequence, payload), zmq.NOBLOCK)

    def _answer(self, replay: zmq.Socket[bytes]) -> None:
        """Answer all requests that have arrived."""
        while True:
            try:
                client, *frames = replay.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            envelope = [client, *frames[:-1]]  # a REQ socket puts an empty frame before its request
            request = frames[-1] if frames else b""
            if request != SNAPSHOT and len(request) != _SEQUENCE_BYTES:
                self._wrong_requests.log(
                    logging.WARNING, "a request for KV cache events is neither `snapshot` nor 8 bytes; it was dropped"
                )
                continue
            with contextlib.suppress(zmq.ZMQError):  # its queue is full, or it has gone: it sees no end, and asks again
                if request == SNAPSHOT:
                    self._send_snapshot(replay, envelope)
                else:
                    for sequence, payload in self._sent:
                        if sequence >= request:
                            replay.send_multipart((*envelope, sequence, payload), zmq.NOBLOCK)
                replay.send_multipart((*envelope, END, b""), zmq.NOBLOCK)

    def _send_snapshot(self, replay: zmq.Socket[bytes], envelope: list[bytes]) -> None:
        sequence = (self._sequence - 1).to_bytes(_SEQUENCE_BYTES, "big")
        for events in self._view.events(SNAPSHOT_BLOCKS):
            payload = self._payloads.encode(events, self._clock())
            replay.send_multipart((*envelope, sequence + self._id, payload), zmq.NOBLOCK)


def _is_listening(address: str) -> bool:
    """Whether a program listens on this path: binding would take it away from that one."""
    if not address.startswith("ipc:///"):
        return False
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(address.removeprefix("ipc://"))
        except OSError:
            return False
    return True
