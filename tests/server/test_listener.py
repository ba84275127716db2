"""Accepting connections: limits, refusals, and what happens without file descriptors."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import resource
import socket
from pathlib import Path
from typing import Any

import pytest

from stoker.config.open_files import max_open_files, raise_limit
from stoker.server.http.address import bind
from stoker.server.http.admission import Admission
from stoker.server.http.connections import Connections
from stoker.server.http.listener import ACCEPTED_PER_TURN, LOG_INTERVAL_S, PAUSE_S, Listener

from ..fakes import FakeEngine
from ..virtual_time import now, run
from .deployment import on_a_socket

GET = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET)
    return reader, writer


async def status(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(60):
        head = await reader.readuntil(b"\r\n\r\n")
    return head[9:12]


@pytest.mark.effect("server.max_connections", "server.max_connections_per_client")
@pytest.mark.parametrize("option", ["max_connections", "max_connections_per_client"])
def test_a_connection_above_the_limit_is_answered_503_until_another_one_ends(folder: Path, option: str):
    async def main() -> tuple[list[bytes], bytes, bytes]:
        async with on_a_socket(folder, FakeEngine(), **{option: 2}) as (port, _):
            clients = [await connect(port), await connect(port)]
            first = [await status(reader) for reader, _ in clients]
            async with asyncio.timeout(60):
                refused, writer = await connect(port)
                answer = await refused.read()  # to the end: the connection is closed
                writer.close()
                clients[0][1].close()
                last = b"503"
                while last == b"503":  # until the server has seen the close
                    reader, writer = await connect(port)
                    last = await status(reader)
                    writer.close()
            clients[1][1].close()
        return first, answer, last

    first, answer, last = asyncio.run(main())
    assert (first, last) == ([b"200", b"200"], b"200")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert {b"retry-after: 1", b"connection: close"} <= set(head.split(b"\r\n"))
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == ("too_many_connections", "server_error")
    assert f"`server.{option}`" in error["message"]


def test_a_refused_client_that_is_still_sending_gets_its_answer(folder: Path):
    """After an immediate close the kernel would answer the bytes of the client with a reset."""

    async def main() -> bytes:
        async with on_a_socket(folder, FakeEngine(), max_connections=1) as (port, _):
            reader, writer = await connect(port)
            await status(reader)
            refused, sending = await connect(port)
            sending.write(b"x" * 1_000_000)
            async with asyncio.timeout(60):
                answer = await refused.read()
            sending.close()
            writer.close()
        return answer

    assert asyncio.run(main()).startswith(b"HTTP/1.1 503 ")


def test_closed_connections_leave_no_file_open(folder: Path):
    async def main() -> tuple[int, int]:
        async with on_a_socket(folder, FakeEngine()) as (port, _):
            before = len(os.listdir("/dev/fd"))
            for _ in range(20):
                reader, writer = await connect(port)
                assert await status(reader) == b"200"
                writer.close()
                await writer.wait_closed()
            async with asyncio.timeout(60):
                while (after := len(os.listdir("/dev/fd"))) > before:
                    await asyncio.sleep(0.01)
        return before, after

    before, after = asyncio.run(main())
    assert after <= before


class NoDescriptors:
    """A bound socket whose `accept` fails until `has_some`."""

    def __init__(self) -> None:
        self.attempts: list[float] = []
        self.has_some = False
        (self._sock,) = bind("127.0.0.1", 0)

    def accept(self) -> Any:
        self.attempts.append(now())
        if self.has_some:
            return self._sock.accept()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def listener_on(sock: Any) -> Listener:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    return Listener(sock, Connections(app, 60, 1000), Admission())


def test_without_file_descriptors_accepting_pauses_and_is_logged_once(caplog: pytest.LogCaptureFixture):
    """asyncio's server logged 4,500 lines a second, occupied a core, and did not recover within a minute."""

    async def main() -> list[float]:
        sock = NoDescriptors()
        listener = listener_on(sock)
        for _ in range(10):
            listener._accept()  # the selector reports the socket: a connection waits
            await asyncio.sleep(PAUSE_S)
        listener.close()
        return sock.attempts

    attempts = run(main())
    assert attempts == [pytest.approx(number * PAUSE_S) for number in range(10)]  # one for each pause
    (record,) = caplog.records
    assert (record.levelno, record.name) == (logging.ERROR, "stoker.server.http")
    assert "Too many open files" in record.message


def test_the_same_trouble_is_logged_again_after_a_while(caplog: pytest.LogCaptureFixture):
    async def main() -> None:
        listener = listener_on(NoDescriptors())
        for _ in range(3):
            listener._accept()
            await asyncio.sleep(LOG_INTERVAL_S / 2)
        listener.close()

    run(main())
    assert len(caplog.records) == 2


def test_accepting_resumes_by_itself_when_descriptors_are_free_again():
    async def main() -> bytes:
        sock: Any = NoDescriptors()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        listener = Listener(sock, Connections(app, 60, 1000), Admission())
        reader, writer = await connect(sock.getsockname()[1])
        async with asyncio.timeout(60):
            while not sock.attempts:
                await asyncio.sleep(0)
        sock.has_some = True
        answer = await status(reader)
        listener.close()
        writer.close()
        return answer

    assert asyncio.run(main()) == b"200"


def test_a_burst_of_connections_lets_other_tasks_run():
    async def main() -> int:
        (sock,) = bind("127.0.0.1", 0)
        listener = listener_on(sock)
        clients = [socket.create_connection(sock.getsockname()) for _ in range(ACCEPTED_PER_TURN + 5)]
        before = len(asyncio.all_tasks())
        listener._accept()
        accepted = len(asyncio.all_tasks()) - before
        listener.close()
        for client in clients:
            client.close()
        await asyncio.sleep(0)
        return accepted

    assert asyncio.run(main()) == ACCEPTED_PER_TURN


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == max_open_files() == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
