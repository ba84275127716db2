"""Serving an ASGI app: the address, the signals, and an end that comes in time.

After SIGTERM no connection is accepted. Requests under way have until the drain deadline, then an error event ends each
of them, then their connections are cut, then the process ends itself, whatever hangs. A second signal cuts at once.
What happens on a connection is connections.py's affair.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable

from .connections import Connections

EXIT_S = 1.9  # after the drain deadline the process is gone, whatever hangs


class CannotListen(Exception):
    """The address cannot be had; `reason` is the system's word for why."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"cannot listen on {host}:{port}: {reason}")
        self.host = host
        self.port = port
        self.reason = reason


def bind(host: str, port: int) -> list[socket.socket]:
    """Take the address without accepting connections yet: before the weights load, so that a port in use is known at
    once and stays ours. Port 0 takes a free one. Raises CannotListen."""
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # a name that has both kinds of address gets a socket for each
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            # Two sockets that both reuse may bind one address as long as none listens: until then nobody else may.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            sock.setblocking(False)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise CannotListen(host, port, _reason(error)) from None
    return sockets


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


class Shutdown:
    """What ends the server: the first request drains, the second cuts."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.cut = asyncio.Event()

    def request(self) -> None:
        if self.requested.is_set():
            self.cut.set()
        self.requested.set()


async def serve(
    app: Callable[..., Awaitable[None]],
    sockets: list[socket.socket],
    shutdown: Shutdown,
    *,
    end_streams: Callable[[], Awaitable[None]],
    drain_timeout: float = 30.0,
    send_stall_timeout: float = 60.0,
    max_header_bytes: int = 32 * 1024,
    on_listening: Callable[[], None] = lambda: None,
    handle_signals: bool = True,
    exit_hard: bool = True,
    exit_code: Callable[[], int] = lambda: 0,
) -> None:
    """Serve until `shutdown` is requested and every connection has ended or been cut.

    Args:
        sockets: of `bind`; closed on return.
        end_streams: called at the drain deadline; makes every request under way end now, with an error.
        drain_timeout: seconds for requests under way after the request to stop.
        send_stall_timeout: seconds a client may leave its bytes unread before it is cut.
        on_listening: called once connections are accepted.
        handle_signals: SIGTERM and SIGINT request the shutdown.
        exit_hard: end the process, with `exit_code`, if it is still there `EXIT_S` after the deadline.
    """
    server = Connections(app, send_stall_timeout, max_header_bytes)
    loop = asyncio.get_running_loop()
    handled = (signal.SIGTERM, signal.SIGINT) if handle_signals else ()
    for number in handled:
        loop.add_signal_handler(number, shutdown.request)
    listeners: list[asyncio.Server] = []
    try:
        for sock in sockets:
            # again, for what it accepts: the next start must not wait until closed connections are forgotten
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listeners.append(await asyncio.start_server(server.accept, sock=sock, backlog=1024))
            except OSError as error:
                host, port = sock.getsockname()[:2]
                raise CannotListen(host, port, _reason(error)) from None
        on_listening()
        await shutdown.requested.wait()
        for listener in listeners:
            listener.close()
        if exit_hard:
            _exit_after(drain_timeout + EXIT_S, shutdown, loop, exit_code)
        await server.drain(drain_timeout, shutdown.cut)
    finally:
        for listener in listeners:
            listener.close()
        await server.cut(end_streams)
        for number in handled:
            loop.remove_signal_handler(number)


def _exit_after(
    seconds: float, shutdown: Shutdown, loop: asyncio.AbstractEventLoop, exit_code: Callable[[], int]
) -> None:
    """A thread that ends the process if the loop, or the interpreter's own end, does not come in time."""

    def watch() -> None:
        cut = asyncio.run_coroutine_threadsafe(shutdown.cut.wait(), loop)
        with contextlib.suppress(Exception):
            cut.result(seconds - EXIT_S)
        threading.Event().wait(EXIT_S)
        os._exit(exit_code())

    threading.Thread(target=watch, name="exit-deadline", daemon=True).start()
