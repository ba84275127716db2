"""The socket side of the server, with real sockets and small apps."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from stoker.server.address import CannotListen, bind
from stoker.server.serve import Shutdown, serve

App = Callable[..., Awaitable[None]]
OK = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}


class Stream:
    """Sends a byte, then waits to be ended; remembers how each request ended."""

    def __init__(self) -> None:
        self.end = asyncio.Event()
        self.endings: list[str] = []
        self.started = 0

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send(OK)
        await send({"type": "http.response.body", "body": b".", "more_body": True})
        self.started += 1
        left = asyncio.ensure_future(receive())
        ended = asyncio.ensure_future(self.end.wait())
        await asyncio.wait([left, ended], return_when=asyncio.FIRST_COMPLETED)
        self.endings.append("left" if left.done() else "ended")
        left.cancel()
        ended.cancel()
        if self.endings[-1] != "left":
            await send({"type": "http.response.body", "body": b"!"})

    async def end_all(self) -> None:
        self.end.set()


@contextlib.asynccontextmanager
async def serving(app: App, end: Callable[[], Awaitable[None]], **options: Any) -> AsyncIterator[tuple[int, Shutdown]]:
    sockets, shutdown = bind("127.0.0.1", 0), Shutdown()
    port = sockets[0].getsockname()[1]
    task = asyncio.ensure_future(
        serve(app, sockets, shutdown, end_streams=end, handle_signals=False, exit_hard=False, **options)
    )
    await asyncio.sleep(0)
    try:
        yield port, shutdown
    finally:
        shutdown.request()
        shutdown.request()
        await asyncio.wait_for(task, 5)


async def get(port: int, extra: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + extra)
    return reader, writer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def run_drain(cut_after_s: float | None) -> tuple[Stream, bytes, float]:
    app = Stream()
    async with serving(app, app.end_all, drain_timeout=0.3) as (port, shutdown):
        reader, writer = await get(port)
        await until(lambda: app.started == 1)
        began = time.monotonic()
        shutdown.request()
        if cut_after_s is not None:
            await asyncio.sleep(cut_after_s)
            shutdown.request()
        answer = await reader.read()
        took = time.monotonic() - began
        writer.close()
    return app, answer, took


def test_a_live_stream_is_ended_at_the_drain_deadline_and_its_last_bytes_arrive():
    app, answer, took = asyncio.run(run_drain(None))
    assert app.endings == ["ended"]
    assert b"1\r\n!\r\n0\r\n\r\n" in answer
    assert took >= 0.29


def test_a_second_request_to_stop_does_not_wait_for_the_deadline():
    _, answer, took = asyncio.run(run_drain(0.01))
    assert b"!" in answer
    assert took < 0.29


def test_new_connections_are_refused_once_stopping():
    async def run() -> None:
        app = Stream()
        async with serving(app, app.end_all, drain_timeout=5) as (port, shutdown):
            _, writer = await get(port)
            await until(lambda: app.started == 1)
            shutdown.request()
            await asyncio.sleep(0.05)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            writer.close()

    asyncio.run(run())


def test_a_client_that_never_reads_cannot_delay_the_end():
    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send(OK)
        while True:
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})

    async def nothing() -> None: ...

    async def run() -> float:
        async with serving(endless, nothing, drain_timeout=0.1) as (port, shutdown):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await asyncio.sleep(0.1)
            began = time.monotonic()
            shutdown.request()
        sock.close()
        return time.monotonic() - began

    assert asyncio.run(run()) < 2


@pytest.mark.effect("server.send_stall_timeout")
def test_a_client_that_stops_reading_is_cut_after_the_stall_timeout():
    async def run() -> list[str]:
        endings: list[str] = []

        async def endless(scope: Any, receive: Any, send: Any) -> None:
            await send(OK)
            left = asyncio.ensure_future(_disconnect(receive))
            while not left.done():
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            endings.append("left")

        async def nothing() -> None: ...

        async with serving(endless, nothing, send_stall_timeout=0.2) as (port, _):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await until(lambda: bool(endings))
            sock.close()
        return endings

    assert asyncio.run(run()) == ["left"]


async def _disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def test_a_close_behind_pipelined_bytes_is_seen():
    """hypercorn alone stops reading at the second request, and the first ran to its end for nobody."""

    async def run() -> Stream:
        app = Stream()
        async with serving(app, app.end_all) as (port, _):
            _, writer = await get(port, extra=b"GET /second HTTP/1.1\r\nhost: x\r\n\r\n")
            await until(lambda: app.started == 1)
            writer.close()
            await until(lambda: bool(app.endings))
        return app

    app = asyncio.run(run())
    assert app.endings == ["left"]
    assert app.started == 1


@pytest.mark.parametrize(
    "request_bytes", [b"garbage\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"]
)
def test_a_closed_connection_leaves_nothing_behind(request_bytes: bytes):
    """hypercorn swallows a cancellation while it closes: the reader of each broken request stayed for ever."""

    async def hello(scope: Any, receive: Any, send: Any) -> None:
        await send(OK)
        await send({"type": "http.response.body", "body": b"hello"})

    async def nothing() -> None: ...

    async def run() -> int:
        async with serving(hello, nothing) as (port, _):
            before = len(asyncio.all_tasks())
            for _ in range(5):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request_bytes)
                await reader.read()
                writer.close()
            await until(lambda: len(asyncio.all_tasks()) == before)
        return before

    asyncio.run(run())


def test_pipelined_requests_are_answered_in_order():
    async def echo(scope: Any, receive: Any, send: Any) -> None:
        await send(OK)
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    async def nothing() -> None: ...

    async def run() -> bytes:
        async with serving(echo, nothing) as (port, _):
            reader, writer = await get(port, extra=b"GET /2 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
        return answer

    answer = asyncio.run(run())
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.index(b"1\r\n/\r\n") < answer.index(b"2\r\n/2\r\n")


def test_an_upgrade_to_http2_or_a_web_socket_is_not_taken():
    async def echo(scope: Any, receive: Any, send: Any) -> None:
        await send(OK)
        await send({"type": "http.response.body", "body": scope["type"].encode()})

    async def nothing() -> None: ...

    async def run(upgrade: bytes) -> bytes:
        async with serving(echo, nothing) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: %b\r\nhttp2-settings: \r\n\r\n"
            writer.write(head % upgrade)
            answer = await reader.readuntil(b"0\r\n\r\n")
            writer.close()
        return answer

    for upgrade in (b"h2c", b"websocket"):
        assert b"HTTP/1.1 200" in asyncio.run(run(upgrade))


def test_a_port_in_use_is_named_with_its_address():
    first = bind("127.0.0.1", 0)
    first[0].listen()
    port = first[0].getsockname()[1]
    with pytest.raises(CannotListen) as caught:
        bind("127.0.0.1", port)
    assert str(caught.value) == f"cannot listen on 127.0.0.1:{port}: address already in use"
    first[0].close()


PROGRAM = """
import asyncio, sys
from stoker.server.address import bind
from stoker.server.serve import Shutdown, serve

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b".", "more_body": True})
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass  # as stubborn as an app can be

async def nothing(): pass

async def main():
    sockets = bind("127.0.0.1", 0)
    told = lambda: print(sockets[0].getsockname()[1], flush=True)
    await serve(
        app, sockets, Shutdown(), end_streams=nothing, drain_timeout=0.5, on_listening=told, exit_code=lambda: 7
    )

asyncio.run(main())
"""


def test_the_process_is_gone_two_seconds_after_the_drain_deadline_whatever_hangs():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        process.terminate()
        assert process.wait(timeout=5) == 7
    assert time.monotonic() - began < 0.5 + 2
    process.stdout.close()


def test_an_address_that_is_bound_is_ours_before_it_listens():
    """Two servers that were starting at the same time once both got it, and the second failed after its load."""
    first = bind("127.0.0.1", 0)
    with pytest.raises(CannotListen, match="address already in use"):
        bind("127.0.0.1", first[0].getsockname()[1])
    first[0].close()
