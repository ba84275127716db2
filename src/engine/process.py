"""The engine process: `python -m stoker.engine.process --socket-dir DIR`, a Resolved as one line of JSON on stdin.

Binds two unix sockets in DIR, a private folder of the client: `engine.sock` (requests in, outputs out) and
`beats.sock` (a sign of life every second, from a thread). Tells the phases of its start, then Ready, then loops:
read the inbox, step, send. SIGTERM stops it cleanly. It never outlives its parent: stdin stays open as long as the
parent lives, and on Linux the kernel kills it when the parent dies.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import zmq

from ..config import Resolved
from ..config.errors import EXIT_FAILED
from ..logs import configure_logging
from .api import EngineStats
from .dispatch import Dispatch
from .engine_core import EngineCore
from .startup import build_core, exit_code_of
from .wire import (
    BEATS_SOCKET,
    ENGINE_SOCKET,
    Abort,
    Beat,
    Hello,
    LastWords,
    Message,
    Phase,
    Ready,
    Stats,
    Submit,
    WireError,
    decode,
    encode,
)

HELLO_LIMIT_S = 30.0
BEAT_INTERVAL_S = 1.0
STATS_INTERVAL_S = 1.0
BLOCKED_RETRY_MS = 20  # work that cannot be scheduled: look again soon, without spinning
PR_SET_PDEATHSIG = 1
logger = logging.getLogger(__name__)

BuildCore = Callable[[str, Callable[[str], None]], EngineCore]


def build_from_json(config: str, phase: Callable[[str], None]) -> EngineCore:
    resolved = Resolved.model_validate_json(config)
    configure_logging(resolved.server)
    logger.debug("the engine process %d loads %s", os.getpid(), resolved.model_path)
    return build_core(resolved, phase)


def main(argv: Sequence[str] | None = None, *, build: BuildCore = build_from_json) -> int:
    """Run an engine until it is told to stop. Returns the exit code; `build` makes the core from the JSON."""
    parser = argparse.ArgumentParser(prog="stoker.engine.process", description=__doc__)
    parser.add_argument("--socket-dir", type=Path, required=True)
    socket_dir: Path = parser.parse_args(argv).socket_dir
    _die_with_parent()
    gc.disable()  # what loads makes objects that stay: looking for garbage among them takes a tenth of the imports
    stop = StopSignal()
    link = Link(socket_dir, stop)
    try:
        if not link.wait_for_client(HELLO_LIMIT_S):
            return 0 if stop.is_set else EXIT_FAILED
        return _run(link, stop, build)
    finally:
        link.close()


def _run(link: Link, stop: StopSignal, build: BuildCore) -> int:
    try:
        config = _read_line(0)
        threading.Thread(target=_exit_at_eof, name="parent-watch", daemon=True).start()
        core = build(config, lambda name: link.broadcast(Phase(name)))
        # objects made so far live as long as the process: keep the collector from walking them in every full pass
        gc.collect()
        gc.freeze()
        gc.enable()
        link.broadcast(Ready(core.info))
        with _beats(link.socket_dir, core):
            _loop(core, link, stop)
        gc.unfreeze()  # what nobody frees at the end, libraries in C++ complain about
    except Exception as error:
        code = exit_code_of(error)
        if code == EXIT_FAILED:  # ours to debug; the others are explained by their message
            logger.critical("the engine process ends", exc_info=error)
        link.broadcast(LastWords(type(error).__name__, str(error), code))
        return code
    return 0


def _loop(core: EngineCore, link: Link, stop: StopSignal) -> None:
    dispatch: Dispatch[bytes] = Dispatch(core)
    sent, sent_at = EngineStats(), time.monotonic()
    wait_ms: int | None = 0  # what was put off at the start begins before anybody asks for anything
    while not stop.is_set:
        for client, message in link.receive(wait_ms):
            _take(client, message, dispatch, core, link)
        wait_ms = None
        if core.has_work:
            before = core.num_steps
            for client, outputs in dispatch.step().items():
                if not link.send(client, outputs):
                    dispatch.forget(client)
            wait_ms = 0 if core.num_steps != before else BLOCKED_RETRY_MS
        elif core.idle():
            wait_ms = 0
        stats, now = core.stats, time.monotonic()
        load_changed = (stats.num_running, stats.num_waiting) != (sent.num_running, sent.num_waiting)
        if load_changed or (now - sent_at >= STATS_INTERVAL_S and stats != sent):
            link.broadcast(Stats(stats))
            sent, sent_at = stats, now


def _take(client: bytes, message: Message, dispatch: Dispatch[bytes], core: EngineCore, link: Link) -> None:
    match message:
        case Submit():
            refused = dispatch.submit(client, message)
            if refused is not None:
                link.send(client, refused)
        case Abort():
            dispatch.abort(client, message)
        case Hello():
            link.send(client, Ready(core.info))
        case _:
            logger.error("a client sent %s, which only an engine may send", type(message).__name__)


class StopSignal:
    """SIGTERM as a flag, and as a readable socket that ends a poll. SIGINT is the parent's to handle."""

    def __init__(self) -> None:
        self.is_set = False
        self._reader, writer = socket.socketpair()
        writer.setblocking(False)
        self._writer = writer
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._set)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group

    def _set(self, *_: object) -> None:
        self.is_set = True

    def fileno(self) -> int:
        return self._reader.fileno()


class Link:
    """The engine's end of the socket that its clients connect to."""

    def __init__(self, socket_dir: Path, stop: StopSignal) -> None:
        self.socket_dir = socket_dir
        self._stop = stop
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.set_hwm(0)  # clients merge what they cannot use at once; nothing may be dropped here
        self._socket.linger = 1000
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # tells of clients that are gone, instead of dropping
        self._socket.bind(f"ipc://{socket_dir / ENGINE_SOCKET}")
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(stop.fileno(), zmq.POLLIN)
        self._clients: set[bytes] = set()

    def wait_for_client(self, limit_s: float) -> bool:
        """Whether one said hello in time: from then on there is somebody to tell phases and last words."""
        deadline = time.monotonic() + limit_s
        while not self._clients and not self._stop.is_set and time.monotonic() < deadline:
            self.receive(100)  # a client waits for Ready before it asks for anything
        return bool(self._clients)

    def receive(self, timeout_ms: int | None) -> list[tuple[bytes, Message]]:
        """All messages that are there, after waiting for the first of them (None: for as long as it takes)."""
        messages: list[tuple[bytes, Message]] = []
        if timeout_ms != 0:
            self._poller.poll(timeout_ms)
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
        """Whether the client is still there."""
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


@contextlib.contextmanager
def _beats(socket_dir: Path, core: EngineCore) -> Iterator[None]:
    """Beats go out from a thread with a socket of its own as long as the body runs."""
    done = threading.Event()

    def beat() -> None:
        publisher: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
        publisher.linger = 0
        publisher.bind(f"ipc://{socket_dir / BEATS_SOCKET}")
        while not done.wait(BEAT_INTERVAL_S):
            publisher.send(encode(Beat(core.num_steps, core.is_stepping, time.process_time())))
        publisher.close()

    thread = threading.Thread(target=beat, name="beats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


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
    sys.exit(main())
