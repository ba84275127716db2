"""What src/server/http/connection.py relies on in hypercorn: names and signatures, then behaviour on a fake transport.

The same tests run against the newest release of PyPI (slow): a release that breaks them is found here, before the
version limit in pyproject.toml is raised. Time is virtual, see tests/virtual_time.py.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import inspect
import logging
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypercorn.config import Config

from stoker.server.http.connection import FIRST_REQUEST_S, LINGER_S, PARTS_PER_TURN, PENDING_BYTES
from stoker.server.http.connections import FLUSH_S, KEEP_ALIVE_S, Connections

from ..virtual_time import now, run

ROOT = Path(__file__).parents[2]
STALL_S = 60.0
MAX_INCOMPLETE = 1000
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]

# module -> name -> names of the parameters of its constructor (None: not called)
NAMES: dict[str, dict[str, list[str] | None]] = {
    "hypercorn.app_wrappers": {"ASGIWrapper": ["app"]},
    "hypercorn.asyncio.task_group": {"TaskGroup": ["loop"]},
    "hypercorn.asyncio.tcp_server": {
        "TCPServer": ["app", "loop", "config", "context", "state", "reader", "writer"],
    },
    "hypercorn.asyncio.worker_context": {"WorkerContext": ["max_requests"]},
    "hypercorn.config": {"Config": []},
    "hypercorn.events": {"Closed": [], "Event": None, "RawData": ["data", "address"], "Updated": ["idle"]},
    "hypercorn.protocol.events": {
        "Body": ["stream_id", "data"],
        "Event": None,
        "Request": ["stream_id", "headers", "http_version", "method", "raw_path", "state"],
    },
    "hypercorn.protocol.h11": {
        "STREAM_ID": None,
        "H11Protocol": [
            "app", "config", "context", "task_group", "connection_state", "ssl", "client", "server", "send"
        ],
    },
    "hypercorn.protocol.http_stream": {
        "HTTPStream": ["app", "config", "context", "task_group", "ssl", "client", "server", "send", "stream_id"],
    },
    "hypercorn.typing": {"ConnectionState": None},
    "hypercorn.utils": {"parse_socket_addr": ["family", "address"]},
}  # fmt: skip
COROUTINES = {
    "hypercorn.asyncio.tcp_server:TCPServer": ["run", "protocol_send", "_read_data", "_close", "_idle_timeout"],
    "hypercorn.protocol.h11:H11Protocol": [
        "handle", "stream_send", "_check_protocol", "_create_stream", "_send_error_response"
    ],
    "hypercorn.protocol.http_stream:HTTPStream": ["handle"],
    "hypercorn.asyncio.worker_context:AsyncioSingleTask": ["restart", "stop"],
    "hypercorn.asyncio.worker_context:EventWrapper": ["set"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "name", "parameters"),
    [(module, name, NAMES[module][name]) for module in NAMES for name in NAMES[module]],
)
def test_each_name_is_there_with_the_parameters_we_pass(module: str, name: str, parameters: list[str] | None):
    found = getattr(importlib.import_module(module), name)
    if parameters is not None:
        assert list(inspect.signature(found).parameters) == parameters


@pytest.mark.parametrize(("path", "method"), [(path, method) for path in COROUTINES for method in COROUTINES[path]])
def test_each_method_that_we_call_or_override_is_a_coroutine_function(path: str, method: str):
    module, _, name = path.partition(":")
    assert inspect.iscoroutinefunction(getattr(getattr(importlib.import_module(module), name), method))


def test_the_table_of_names_is_complete():
    imported = set()
    for file in (ROOT / "src").rglob("*.py"):
        source = file.read_text()
        for node in ast.walk(ast.parse(source if "hypercorn" in source else "")):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "hypercorn":
                imported |= {(node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                assert not [alias.name for alias in node.names if alias.name.startswith("hypercorn")]
    assert imported == {(module, name) for module in NAMES for name in NAMES[module]}


def test_the_settings_we_change_exist_and_have_the_expected_defaults():
    config = Config()
    assert config.keep_alive_timeout > 0
    assert config.h11_max_incomplete_size > 0
    assert config.include_server_header is True
    assert config.max_app_queue_size > 0
    assert config.read_timeout is None  # it would cut event streams, whose clients send nothing


class FakeSocket:
    family = socket.AF_INET

    def getpeername(self) -> tuple[str, int]:
        return "192.0.2.1", 5555

    def getsockname(self) -> tuple[str, int]:
        return "192.0.2.2", 80


class FakeTransport(asyncio.Transport):
    """A client's side of a connection. With `is_stalled` the client reads nothing."""

    def __init__(self, protocol: asyncio.StreamReaderProtocol) -> None:
        super().__init__({"socket": FakeSocket(), "peername": ("192.0.2.1", 5555)})
        self.protocol = protocol
        self.received = b""
        self.is_stalled = False
        self.is_reading_paused = False
        self.has_eof = False
        self.was_aborted = False
        self.closed_at: float | None = None
        self._unsent = b""
        self._is_closing = False
        protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing:
            return
        if self.is_stalled:
            if not self._unsent and data:
                self.protocol.pause_writing()  # the limit is 0, set by Connections
            self._unsent += bytes(data)
        else:
            self.received += bytes(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_eof = True

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True
        if not self._unsent:
            self._lose()

    def abort(self) -> None:
        self.was_aborted = True
        self._lose()

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False

    def _lose(self) -> None:
        self._is_closing = True
        if self.closed_at is None:
            self.closed_at = now()
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class Client:
    """One connection to `app`."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        loop = asyncio.get_running_loop()
        self.reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(self.reader, loop=loop)
        self.transport = FakeTransport(protocol)
        writer = asyncio.StreamWriter(self.transport, protocol, self.reader, loop)
        self.serving = asyncio.ensure_future(connections.serve(self.reader, writer))

    def send(self, data: bytes) -> None:
        self.transport.protocol.data_received(data)

    def leave(self) -> None:
        self.transport.protocol.eof_received()

    @property
    def received(self) -> bytes:
        return self.transport.received


@contextlib.asynccontextmanager
async def connected(app: App) -> AsyncIterator[Client]:
    """A connection; at the end every task of it must be gone."""
    before = len(asyncio.all_tasks())
    client = Client(Connections(app, STALL_S, MAX_INCOMPLETE))
    try:
        yield client
    finally:
        if not client.serving.done() and not client.reader.at_eof():
            client.leave()
        await client.serving
        await settle()
        assert len(asyncio.all_tasks()) == before


async def settle() -> None:
    """Let every task run that does not wait for time to pass."""
    for _ in range(100):
        await asyncio.sleep(0)


async def hello(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


class Held:
    """Begins each response at once and ends it when the test says so."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.messages: list[dict[str, Any]] = []
        self.finish = asyncio.Event()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        while (message := await receive()).get("more_body"):
            self.messages.append(message)
        self.messages.append(message)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        left = asyncio.ensure_future(receive())
        finish = asyncio.ensure_future(self.finish.wait())
        await asyncio.wait([left, finish], return_when=asyncio.FIRST_COMPLETED)
        if left.done():
            self.messages.append(left.result())
        left.cancel()
        finish.cancel()
        await send({"type": "http.response.body", "body": b"z"})

    @property
    def has_seen_disconnect(self) -> bool:
        return self.messages[-1]["type"] == "http.disconnect"


async def endless(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Sends until the client is gone."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while (await receive()).get("more_body"):
        pass
    left = asyncio.ensure_future(receive())
    while not left.done():
        await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
        await asyncio.sleep(0)


def test_a_request_becomes_an_asgi_call_and_its_response_is_framed():
    calls: list[tuple[dict[str, Any], bytes]] = []

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        calls.append((scope, body))
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x-a", b"1")]})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    async def main() -> bytes:
        async with connected(app) as client:
            client.send(b"post /a%20b?c=d HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.send(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
            await settle()
            return client.received

    received = run(main())
    ((scope, body),) = calls
    assert body == b"abcde"
    expected = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": "/a b",
        "raw_path": b"/a%20b", "query_string": b"c=d", "root_path": "",
        "client": ("192.0.2.1", 5555), "server": ("192.0.2.2", 80),
        "headers": [(b"host", b"x"), (b"transfer-encoding", b"chunked")],
    }  # fmt: skip
    assert {name: scope[name] for name in expected} == expected
    head, _, framed = received.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"http/1.1 201 "
    assert {b"x-a: 1", b"transfer-encoding: chunked"} <= set(lines)
    assert not [line for line in lines if line.startswith(b"server:")]
    assert framed == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


def test_other_tasks_run_while_a_body_of_many_small_chunks_is_handled():
    """64 KiB of chunks of one byte held the event loop for 0.3 s, and a longer body delayed others by seconds."""
    num_parts = 30 * PARTS_PER_TURN
    turns = 0

    async def main() -> None:
        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        app = Held()
        async with connected(app) as client:
            counting = asyncio.ensure_future(count())
            client.send(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * num_parts)
            most_waiting = handled = 0
            while handled < num_parts:
                await asyncio.sleep(0)
                most_waiting = max(most_waiting, len(app.messages) - handled)
                handled = len(app.messages)
            counting.cancel()
            assert most_waiting <= PARTS_PER_TURN
            app.finish.set()

    run(main())
    assert turns >= num_parts / PARTS_PER_TURN


def test_pipelined_requests_are_answered_one_after_the_other():
    async def main() -> None:
        app = Held()
        async with connected(app) as client:
            client.send(b"GET /1 HTTP/1.1\r\nhost: x\r\n\r\nGET /2 HTTP/1.1\r\nhost: x\r\n\r\n")
            await settle()
            assert app.paths == ["/1"]
            app.finish.set()
            await settle()
            assert app.paths == ["/1", "/2"]
            assert client.received.count(b"HTTP/1.1 200") == 2

    run(main())


def test_a_close_is_seen_while_a_request_waits_for_the_response_to_an_earlier_one():
    async def main() -> None:
        app = Held()
        async with connected(app) as client:
            client.send(GET + b"GET /second HTTP/1.1\r\nhost: x\r\n\r\n")
            await settle()
            client.leave()
            await settle()
            assert app.has_seen_disconnect
            assert app.paths == ["/"]
            assert now() == 0

    run(main())


def test_reading_goes_on_while_a_request_is_answered_up_to_a_limit():
    async def main() -> None:
        app = Held()
        async with connected(app) as client:
            client.send(GET)
            await settle()
            for _ in range(PENDING_BYTES // 50_000):
                client.send(b"x" * 50_000)
                await settle()
                assert not client.transport.is_reading_paused
            for _ in range(10):
                client.send(b"x" * 50_000)
                await settle()
            assert client.transport.is_reading_paused
            app.finish.set()  # what follows has no end of line, so it is refused
            await client.serving
            assert b"HTTP/1.1 431" in client.received

    run(main())


def test_a_client_that_stops_reading_is_cut_after_the_stall_timeout(caplog: pytest.LogCaptureFixture):
    async def main() -> None:
        async with connected(endless) as client:
            client.transport.is_stalled = True
            client.send(GET)
            await client.serving
            assert client.transport.was_aborted
            assert client.transport.closed_at == STALL_S

    run(main())
    assert "192.0.2.1:5555 cut: the client has stopped reading" in caplog.text


def test_a_client_that_does_not_read_the_end_of_a_response_is_cut_too():
    async def main() -> None:
        async with connected(hello) as client:
            client.transport.is_stalled = True
            client.send(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            await client.serving
            assert client.transport.was_aborted
            assert client.transport.closed_at == STALL_S

    run(main())


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nhost", GET], ids=["nothing", "part of a head", "a request"])
def test_a_connection_that_its_client_has_closed_is_released_at_once(sent: bytes):
    """The idle timer held it for 30 s: without a key, 1000 requests and closes used up all file descriptors."""

    async def main() -> None:
        async with connected(hello) as client:
            client.send(sent)
            await settle()
            client.leave()
            await client.serving
            assert client.transport.closed_at == now() == 0

    run(main())


def test_a_connection_is_released_while_its_app_still_runs():
    """The response that ends after the client has left does not start the idle timer again."""

    async def main() -> None:
        finish = asyncio.Event()

        async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
            await finish.wait()
            await hello(scope, receive, send)

        async with connected(app) as client:
            client.send(GET)
            await settle()
            client.leave()
            await settle()
            assert (client.transport.closed_at, client.serving.done()) == (0, False)
            finish.set()
            await client.serving
            assert (now(), client.received) == (0, b"")

    run(main())


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nhost", GET], ids=["nothing", "part of a head", "a request"])
def test_an_idle_connection_is_closed_after_the_keep_alive_time(sent: bytes):
    async def main() -> None:
        async with connected(hello) as client:
            client.send(sent)
            await client.serving
            assert client.transport.closed_at == KEEP_ALIVE_S
            assert client.received.count(b"hello") == (sent == GET)

    run(main())


def test_the_keep_alive_time_does_not_run_while_a_request_is_answered():
    async def main() -> None:
        app = Held()
        async with connected(app) as client:
            client.send(GET)
            await asyncio.sleep(10 * KEEP_ALIVE_S)  # virtual
            assert client.transport.closed_at is None
            app.finish.set()
            await client.serving
            assert client.transport.closed_at == 11 * KEEP_ALIVE_S

    run(main())


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\nx-big: " + b"x" * MAX_INCOMPLETE, b"431"),
        (b"garbage\r\n\r\n", b"400"),
        (b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n", b"400"),
    ],
    ids=["too long", "garbage", "not ASCII"],
)
def test_a_head_that_cannot_be_served_is_one_refusal_and_a_close(sent: bytes, status: bytes):
    async def main() -> None:
        async with connected(hello) as client:
            client.send(sent)
            await client.serving
            assert client.received.startswith(b"HTTP/1.1 " + status)
            assert client.received.count(b"HTTP/1.1") == 1
            assert now() == 0

    run(main())


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket"])
def test_an_upgrade_is_ignored(upgrade: bytes):
    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await hello(scope, receive, send)

    async def main() -> None:
        async with connected(app) as client:
            head = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: %b\r\nhttp2-settings: \r\n"
            client.send(head % upgrade + b"sec-websocket-version: 13\r\nsec-websocket-key: eA==\r\n\r\n")
            await settle()
            assert client.received.startswith(b"HTTP/1.1 200")

    run(main())


def test_the_first_bytes_of_http2_are_not_taken_as_http2():
    async def main() -> None:
        async with connected(hello) as client:
            client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            await client.serving
            responses = client.received.split(b"HTTP/1.1 ")
            assert [response[:3] for response in responses] == [b"", b"200", b"400"]  # an unknown method, then garbage

    run(main())


def test_a_client_that_waits_for_100_continue_gets_it():
    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"abc"
        await hello(scope, receive, send)

    async def main() -> None:
        async with connected(app) as client:
            client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n")
            await settle()
            assert client.received.startswith(b"HTTP/1.1 100 ")
            client.send(b"abc")
            await settle()
            assert b"HTTP/1.1 200 " in client.received

    run(main())


def test_an_early_refusal_is_sent_while_the_client_is_still_sending():
    """The connection is closed in our direction at once; the client's bytes are discarded for LINGER_S."""

    async def main() -> None:
        async with connected(hello) as client:
            client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n")
            for _ in range(20):  # more messages than any default queue between hypercorn and the app holds
                client.send(b"x" * 1000)
                await settle()
            assert client.received.endswith(b"hello")
            assert client.transport.has_eof
            assert client.transport.closed_at is None
            client.send(b"x" * 1000)
            await client.serving
            assert client.transport.closed_at == LINGER_S

    run(main())


@pytest.mark.parametrize("when", ["before the response", "within the response"])
def test_an_app_that_raises_ends_its_connection_and_is_logged(when: str, caplog: pytest.LogCaptureFixture):
    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if when == "within the response":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise RuntimeError("a bug")

    async def main() -> bytes:
        async with connected(app) as client:
            client.send(GET)
            await client.serving
            assert now() == 0
            return client.received

    received = run(main())
    assert received.startswith(b"HTTP/1.1 500" if when == "before the response" else b"HTTP/1.1 200")
    assert not received.endswith(b"0\r\n\r\n")  # an incomplete body must not look complete
    (record,) = [record for record in caplog.records if record.exc_info]
    assert str(record.exc_info[1]) == "a bug"
    assert (record.name, record.levelno) == ("stoker.server.http", logging.ERROR)


def test_draining_closes_idle_connections_and_lets_a_response_end():
    async def main() -> None:
        app = Held()
        connections = Connections(app, STALL_S, MAX_INCOMPLETE)
        idle, busy = Client(connections), Client(connections)
        busy.send(GET)
        await settle()
        draining = asyncio.ensure_future(connections.drain(100, asyncio.Event()))
        await asyncio.sleep(FIRST_REQUEST_S)  # for the first request of a connection
        await settle()
        assert (idle.serving.done(), busy.serving.done(), draining.done()) == (True, False, False)
        app.finish.set()
        await draining
        assert busy.received.endswith(b"0\r\n\r\n")
        assert (busy.serving.done(), now()) == (True, FIRST_REQUEST_S)

    run(main())


def test_draining_ends_at_its_deadline_and_a_cut_ends_every_connection():
    async def main() -> None:
        held, stubborn = Held(), asyncio.Event()

        async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
            await (held(scope, receive, send) if scope["path"] == "/held" else stubborn.wait())

        connections = Connections(app, STALL_S, MAX_INCOMPLETE)
        clients = [Client(connections), Client(connections)]
        clients[0].send(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
        clients[1].send(b"GET /stubborn HTTP/1.1\r\nhost: x\r\n\r\n")
        await settle()
        await connections.drain(100, asyncio.Event())
        assert now() == 100

        async def end_streams() -> None:
            held.finish.set()

        await connections.cut(end_streams)
        assert now() == 100 + FLUSH_S
        assert clients[0].received.endswith(b"0\r\n\r\n")
        assert clients[0].transport.closed_at == 100
        assert clients[1].transport.was_aborted
        assert all(client.serving.done() for client in clients)

    run(main())


@pytest.mark.slow
def test_the_newest_release_keeps_the_contract(tmp_path: Path):
    """With the newest hypercorn and h11, and what they need, in front of the installed ones."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
    done = subprocess.run(
        [*install, "--target", str(tmp_path), "hypercorn"], capture_output=True, text=True, timeout=200, check=False
    )
    if done.returncode:
        pytest.skip(f"hypercorn cannot be installed from PyPI: {done.stderr.strip().splitlines()[-1]}")
    program = (
        "import sys, hypercorn, h11, pytest\n"
        "for module in (hypercorn, h11):\n"
        "    assert module.__file__.startswith(sys.argv[1]), module.__file__\n"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', *sys.argv[2:]]))\n"
    )
    files = [f"tests/server/{name}.py" for name in ("test_hypercorn_contract", "test_serve", "test_interruption")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / ".dev")])}
    tested = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), *files],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    (release,) = [path.name for path in tmp_path.glob("hypercorn-*.dist-info")]
    assert tested.returncode == 0, f"{release}:\n{tested.stdout}{tested.stderr}"
