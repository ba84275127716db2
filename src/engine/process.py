"""The engine process: `python -m stoker.engine.process --sockets FD FD`, a Resolved as one line of JSON on stdin.

Accepts its client on two listening sockets that it inherits: one for requests in and outputs out, one for a heartbeat
every second, from a thread. Reports its start-up phases, then Ready; runs EngineLoop.
SIGTERM stops it cleanly. It never outlives its parent: stdin stays open as long as the parent lives, and on Linux the
kernel kills it when the parent dies.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import zmq

from ..config import Resolved
from ..config.exit_codes import EXIT_FAILED
from ..logs import configure_logging
from .executor.build import build_core, exit_code_of
from .host.neighbours import Doorbell, Neighbours
from .host.parent_death import die_with_parent
from .loop.engine_core import EngineCore
from .loop.engine_loop import EngineLoop
from .transport.messages import ExitReason, Heartbeat, Hello, Message, Phase, Ready
from .transport.records import WireError
from .transport.wire import decode, encode

HELLO_LIMIT_S = 30.0
HEARTBEAT_INTERVAL_S = 1.0
logger = logging.getLogger(__name__)

BuildCore = Callable[..., EngineCore]  # of the configuration, what takes the phases, and `neighbours` if there are any


def build_from_json(config: str, phase: Callable[[str], None], neighbours: Neighbours | None = None) -> EngineCore:
    """neighbours: replicas that share the experts of the model with this one."""
    resolved = Resolved.model_validate_json(config)
    configure_logging(resolved.server)
    logger.debug("the engine process %d loads %s", os.getpid(), resolved.model_path)
    return build_core(resolved, phase, may_compile_later=True, rank_lost=_stop_this_process, neighbours=neighbours)


def _stop_this_process() -> None:
    """The loop may be idle: the signal ends it, and `_run` says why."""
    os.kill(os.getpid(), signal.SIGTERM)


def main(argv: Sequence[str] | None = None, *, build: BuildCore = build_from_json) -> int:
    """Run an engine until SIGTERM. Returns the exit code; `build` makes the core from the JSON."""
    parser = argparse.ArgumentParser(prog="stoker.engine.process", description=__doc__)
    parser.add_argument("--sockets", type=int, nargs=2, required=True, metavar="FD")
    parser.add_argument("--neighbours", type=int, nargs="+", metavar="NUMBER")  # of replicas that share experts
    given = parser.parse_args(argv)
    for_messages, for_heartbeats = given.sockets
    die_with_parent()
    gc.disable()  # loading makes objects that stay; collecting garbage meanwhile takes a tenth of the import time
    stop = StopSignal()
    link = Link(for_messages, stop)
    if given.neighbours is not None:
        neighbours = Neighbours.inherited(given.neighbours)
        link.watch(neighbours.own_doorbell)
        build = partial(build, neighbours=neighbours)
    try:
        if not link.wait_for_client(HELLO_LIMIT_S):
            return 0 if stop.is_set else EXIT_FAILED
        return _run(link, for_heartbeats, stop, build)
    finally:
        link.close()


def _run(link: Link, for_heartbeats: int, stop: StopSignal, build: BuildCore) -> int:
    try:
        config = _read_line(0)
        threading.Thread(target=_exit_at_eof, name="parent-watch", daemon=True).start()
        core = build(config, lambda name: link.broadcast(Phase(name)))
        # objects made so far live as long as the process: the collector need not visit them in every full pass
        gc.collect()
        gc.freeze()
        gc.enable()
        link.broadcast(Ready(core.info))
        with _heartbeats(for_heartbeats, core), contextlib.closing(core):
            EngineLoop(core, link).run()
            core.check()
        gc.unfreeze()  # libraries in C++ complain at the end about objects that were not freed
    except Exception as error:
        code = exit_code_of(error)
        if code == EXIT_FAILED:  # a bug of ours; the message of the others is enough
            logger.critical("the engine process ends", exc_info=error)
        link.broadcast(ExitReason(type(error).__name__, str(error), code))
        return code
    return 0


class StopSignal:
    """SIGTERM as a flag, and as a readable socket that ends a poll.

    SIGINT and SIGHUP, which a terminal sends to all processes, are ignored: the parent handles them.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._reader, writer = socket.socketpair()
        writer.setblocking(False)
        self._writer = writer
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._set)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _set(self, *_: object) -> None:
        self.is_set = True

    def fileno(self) -> int:
        return self._reader.fileno()


class Link:
    """The Port of the process: the engine's end of the socket that its clients connect to."""

    def __init__(self, listener: int, stop: StopSignal) -> None:
        """listener: descriptor of a listening unix socket."""
        self._stop = stop
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.set_hwm(0)  # no limit: clients merge what they cannot use yet, and nothing may be dropped
        self._socket.linger = 1000
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a client that is gone fails, instead of dropping
        _listen(self._socket, listener)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(stop.fileno(), zmq.POLLIN)
        self._clients: set[bytes] = set()
        self._doorbell: Doorbell | None = None

    def watch(self, doorbell: Doorbell) -> None:
        """Let `receive` end its wait when the doorbell is rung."""
        self._doorbell = doorbell
        self._poller.register(doorbell.fd, zmq.POLLIN)

    def wait_for_client(self, limit_s: float) -> bool:
        """Returns whether one sent Hello in time. From then on phases and an exit reason can be reported."""
        deadline = time.monotonic() + limit_s
        while not (self._clients or self._stop.is_set or _is_closed(0)) and time.monotonic() < deadline:
            self.receive(0.1)  # a client waits for Ready before it sends requests
        return bool(self._clients)

    @property
    def is_stopped(self) -> bool:
        return self._stop.is_set

    def receive(self, wait_s: float | None) -> list[tuple[bytes, Message]]:
        messages: list[tuple[bytes, Message]] = []
        if wait_s != 0:
            self._poller.poll(None if wait_s is None else int(wait_s * 1000))
        if self._doorbell is not None:
            self._doorbell.silence()  # before the loop looks why it was rung
        while True:
            try:
                client, data = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            except ValueError:
                logger.error("a message of the wrong number of parts was dropped")
                continue
            try:
                message = decode(data)
            except WireError as error:
                logger.error("a message was dropped: %s", error)
                continue
            if isinstance(message, Hello):
                self._clients.add(client)
            messages.append((client, message))

    def send(self, client: bytes, message: Message) -> bool:
        try:
            self._socket.send_multipart((client, encode(message)), zmq.NOBLOCK)
        except zmq.ZMQError:
            self._clients.discard(client)
            return False
        return True

    def broadcast(self, message: Message) -> None:
        for client in list(self._clients):
            self.send(client, message)

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def _listen(accepting: zmq.Socket[bytes], listener: int) -> None:
    accepting.setsockopt(zmq.USE_FD, listener)
    accepting.bind("ipc:///inherited")  # the name is required, and not used


@contextlib.contextmanager
def _heartbeats(listener: int, core: EngineCore) -> Iterator[None]:
    """Heartbeats are sent from a thread, through a separate socket, while the body runs."""
    done = threading.Event()

    def publish() -> None:
        publisher: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
        publisher.linger = 0
        _listen(publisher, listener)
        while not done.wait(HEARTBEAT_INTERVAL_S):
            heartbeat = Heartbeat(core.num_steps, core.is_stepping, time.process_time(), core.is_reading)
            publisher.send(encode(heartbeat))
        publisher.close()

    thread = threading.Thread(target=publish, name="heartbeats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _is_closed(fd: int) -> bool:
    """Whether the other end of a pipe is closed: the parent may have died before `die_with_parent`."""
    poll = select.poll()
    poll.register(fd, 0)  # only POLLHUP, which is always reported
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _read_line(fd: int) -> str:
    """One line from a pipe, unbuffered. Raises EOFError if the pipe ends before it."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(fd, 1 << 16)
        if not piece:
            raise EOFError("standard input ended before the configuration")
        line += piece
    return line.decode()


def _exit_at_eof() -> None:
    # os.read, not sys.stdin: a thread blocked in a buffered read aborts the interpreter at its end
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    if exit_code := main():  # a thread may wait for a rank of another node without end, and Python would wait for it
        sys.stderr.flush()
        os._exit(exit_code)
