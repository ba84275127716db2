"""Serves an ASGI app: listeners, and a shutdown with a deadline.

After a request to stop, no connection is accepted. Running requests have until the drain deadline; then each is ended
by an error event, then the connections are cut, then the process exits even if something hangs. A second request skips
the drain.
address.py binds the sockets, listener.py accepts connections, connections.py handles them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Awaitable, Callable

from .address import CannotListen, reason_of, shown
from .admission import Admission
from .connections import Connections
from .listener import Listener
from .shutdown import Shutdown
from .tls import Tls

EXIT_S = 1.9  # after the drain deadline the process exits, even if something hangs


async def serve(
    app: Callable[..., Awaitable[None]],
    sockets: list[socket.socket],
    shutdown: Shutdown,
    *,
    end_streams: Callable[[], Awaitable[None]],
    drain_timeout: float = 30.0,
    send_stall_timeout: float = 60.0,
    max_incomplete_bytes: int = 64 * 1024,
    admission: Admission | None = None,
    tls: Tls | None = None,
    is_shared: bool = False,
    on_listening: Callable[[], None] = lambda: None,
    exit_hard: bool = True,
    exit_code: Callable[[], int] = lambda: 0,
) -> None:
    """Serve until `shutdown` is requested and every connection has ended or been cut.

    Args:
        sockets: from `take_address`; closed on return.
        end_streams: called at the drain deadline; ends every running request with an error.
        drain_timeout: seconds that running requests have after the shutdown was requested.
        send_stall_timeout: seconds after which a client that does not read is cut.
        max_incomplete_bytes: limit of a request head that has not arrived completely.
        admission: limits the number of open connections; None is no limit.
        tls: None is plain HTTP.
        is_shared: whether other processes accept connections of these sockets too.
        on_listening: called once connections are accepted.
        exit_hard: exit the process, with `exit_code`, if it still runs `EXIT_S` after the deadline.
    """
    admission = admission or Admission()
    server = Connections(app, send_stall_timeout, max_incomplete_bytes)
    listeners: list[Listener] = []
    try:
        for sock in sockets:
            # set again, now for accepted connections: a restart must be able to bind while they are in TIME_WAIT
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listeners.append(Listener(sock, server, admission, tls.context if tls else None, is_shared=is_shared))
            except OSError as error:
                raise CannotListen(shown(sock), reason_of(error)) from None
        on_listening()
        await shutdown.requested.wait()
        for listener in listeners:
            await listener.stop()
        if exit_hard:
            _exit_after(drain_timeout + EXIT_S, shutdown, asyncio.get_running_loop(), exit_code)
        await server.drain(drain_timeout, shutdown.cut)
    finally:
        for listener in listeners:
            listener.close()
        await server.cut(end_streams)


def _exit_after(
    seconds: float, shutdown: Shutdown, loop: asyncio.AbstractEventLoop, exit_code: Callable[[], int]
) -> None:
    """A thread that exits the process if the event loop, or the interpreter's shutdown, takes too long."""

    def watch() -> None:
        cut = asyncio.run_coroutine_threadsafe(shutdown.cut.wait(), loop)
        with contextlib.suppress(Exception):
            cut.result(seconds - EXIT_S)
        threading.Event().wait(EXIT_S)
        os._exit(exit_code())

    threading.Thread(target=watch, name="exit-deadline", daemon=True).start()
