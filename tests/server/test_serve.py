"""The server on real sockets, with small apps. Time limits are tested in virtual time in test_hypercorn_contract.py."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from stoker.server.http.address import CannotListen, bind
from stoker.server.http.serve import serve
from stoker.server.http.shutdown import Shutdown

App = Callable[..., Awaitable[None]]
OK = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}


class Stream:
    """Sends a byte, then waits until it is ended or the client leaves. Records how each request ended."""

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
    task = asyncio.ensure_future(serve(app, sockets, shutdown, end_streams=end, exit_hard=False, **options))
    await asyncio.sleep(0)
    try:
        yield port, shutdown
    finally:
        shutdown.request()
        shutdown.request()
        await asyncio.wait_for(task, 60)


async def get(port: int, extra: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + extra)
    return reader, writer


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("drain_timeout", "num_requests"),
    [(0.05, 1), (0, 1), (3600, 2)],
    ids=["at the deadline", "at once", "at the second request to stop"],
)
def test_a_running_stream_is_ended_and_its_last_bytes_arrive(drain_timeout: float, num_requests: int):
    async def run() -> tuple[list[str], bytes]:
        app = Stream()
        async with serving(app, app.end_all, drain_timeout=drain_timeout) as (port, shutdown):
            reader, writer = await get(port)
            await until(lambda: app.started == 1)
            for _ in range(num_requests):
                shutdown.request()
            answer = await reader.read()
            writer.close()
        return app.endings, answer

    endings, answer = asyncio.run(run())
    assert endings == ["ended"]
    assert answer.endswith(b"1\r\n!\r\n0\r\n\r\n")


def test_requests_of_clients_that_have_just_connected_are_answered_at_a_stop():
    """Of 500 clients some were reset, and others closed without a byte: the kernel had their connections, or their
    requests, and the server closed before it looked."""

    async def answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        await send(OK)
        await send({"type": "http.response.body", "body": b"answered"})

    async def run() -> list[bytes]:
        async with serving(answer, asyncio.Event().wait, drain_timeout=30) as (port, shutdown):
            # Without a pause of this task: the server accepts none of them before it is asked to stop.
            clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
            for client in clients[::2]:
                client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            shutdown.request()
            await asyncio.sleep(0)
            for client in clients[1::2]:
                client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")

            def read(client: socket.socket) -> bytes:
                with client:
                    return b"".join(iter(lambda: client.recv(4096), b""))

            return await asyncio.gather(*(asyncio.to_thread(read, client) for client in clients))

    answers = asyncio.run(run())
    assert len(answers) == 100
    assert [index for index, each in enumerate(answers) if b"answered" not in each] == []


def test_new_connections_are_refused_during_the_drain():
    async def run() -> None:
        app = Stream()
        async with serving(app, app.end_all, drain_timeout=3600) as (port, shutdown):
            _, writer = await get(port)
            await until(lambda: app.started == 1)
            shutdown.request()
            await asyncio.sleep(0)  # `serve` closes its listeners in the next iteration of the loop
            await asyncio.sleep(0)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            assert app.endings == []
            writer.close()

    asyncio.run(run())


@pytest.mark.slow
def test_a_client_that_never_reads_does_not_prevent_the_shutdown():
    started: list[str] = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send(OK)
        started.append(scope["path"])
        while True:
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})

    async def nothing() -> None: ...

    async def run() -> None:
        async with serving(endless, nothing, drain_timeout=0.05) as (port, shutdown):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await until(lambda: started)
            shutdown.request()  # leaving this block waits for the end
        sock.close()

    asyncio.run(run())


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


def test_a_close_after_pipelined_bytes_is_seen():
    """hypercorn stopped reading at the second request, so the first one ran to its end although its client had left."""

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
def test_a_closed_connection_leaves_no_task(request_bytes: bytes):
    """hypercorn suppresses a cancellation while it closes: the reading task of each broken request was never ended."""

    async def hello(scope: Any, receive: Any, send: Any) -> None:
        await send(OK)
        await send({"type": "http.response.body", "body": b"hello"})

    async def nothing() -> None: ...

    async def run() -> None:
        async with serving(hello, nothing) as (port, _):
            before = len(asyncio.all_tasks())
            for _ in range(5):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request_bytes)
                await reader.read()
                writer.close()
            await until(lambda: len(asyncio.all_tasks()) == before)

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


def test_an_upgrade_to_http2_or_a_web_socket_is_ignored():
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


def test_a_port_in_use_is_reported_with_its_address():
    first = bind("127.0.0.1", 0)
    first[0].listen()
    port = first[0].getsockname()[1]
    with pytest.raises(CannotListen) as caught:
        bind("127.0.0.1", port)
    said = f"cannot listen on 127.0.0.1:{port}: address already in use by process {os.getpid()} ("
    assert str(caught.value).startswith(said)
    assert caught.value.is_in_use
    first[0].close()


PROGRAM = """
import asyncio, sys
from stoker.server.http.address import bind
from stoker.server.http.serve import serve
from stoker.server.http.shutdown import Shutdown, on_signals

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b".", "more_body": True})
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass  # cannot be cancelled

async def nothing(): pass

async def main():
    sockets = bind("127.0.0.1", 0)
    report = lambda: print(sockets[0].getsockname()[1], flush=True)
    shutdown = Shutdown()
    with on_signals(shutdown):
        await serve(
            app, sockets, shutdown, end_streams=nothing, drain_timeout=0.1, on_listening=report, exit_code=lambda: 7
        )

asyncio.run(main())
"""


@pytest.mark.slow
def test_the_process_exits_after_the_drain_deadline_even_if_an_app_hangs():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        process.terminate()
        assert process.wait(timeout=120) == 7  # the exit code of `exit_code`: the exit was forced
    process.stdout.close()


def test_a_bound_address_is_reserved_before_it_listens():
    """Two servers that started at the same time both bound it, and the second failed after loading its weights."""
    first = bind("127.0.0.1", 0)
    with pytest.raises(CannotListen, match="address already in use"):
        bind("127.0.0.1", first[0].getsockname()[1])
    first[0].close()
