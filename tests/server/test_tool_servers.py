"""The client of MCP servers, with a real one over both transports."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.free_ports import free_port

from stoker.server.tool_server import servers
from stoker.server.tool_server.servers import MAX_RESULT_CHARS, ToolResult, ToolServer, ToolServerError

pytest.importorskip("mcp")
pytestmark = pytest.mark.slow
PROGRAM = str(Path(__file__).parent / "mcp_server.py")
ALLOWED = ["add", "fail", "long", "environment", "leave", "wait"]
STDIO = {"command": [sys.executable, PROGRAM], "allowed_tools": ALLOWED}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen([sys.executable, PROGRAM, str(port)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def with_server(settings: dict[str, Any], scenario: Callable[[ToolServer], Awaitable[None]]) -> None:
    async def work() -> None:
        server = ToolServer("test", settings)
        try:
            await scenario(server)
        finally:
            await server.close()

    asyncio.run(work())


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_tools_are_listed_and_run(transport: str, url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STOKER_SECRET", "sk-1")
    settings = STDIO if transport == "stdio" else {"url": url, "allowed_tools": ALLOWED}

    async def scenario(server: ToolServer) -> None:
        tools = await server.tools()
        assert [tool.name for tool in tools if tool.name == "hidden"] == []
        add = next(tool for tool in tools if tool.name == "add")
        assert (add.description, set(add.parameters["properties"])) == ("Add two numbers.", {"a", "b"})
        assert await server.run("add", '{"a": 2, "b": 3}') == ToolResult("5")
        failed = await server.run("fail", "{}")
        assert failed.is_error
        assert "fail" in failed.text
        assert (await server.run("add", '{"a": "x", "b": 3}')).is_error
        assert (await server.run("add", "[")).is_error
        cut = (await server.run("long", '{"num": 1000000}')).text
        assert len(cut) < MAX_RESULT_CHARS + 100
        if transport == "stdio":
            assert (await server.run("environment", '{"name": "STOKER_SECRET"}')).text == "unset"
        with pytest.raises(ToolServerError, match="`allowed_tools`"):
            await server.run("hidden", "{}")

    with_server(settings, scenario)


def test_a_credential_is_sent_and_never_shown(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DOCS_SECRET", "Bearer sk-4711")
    settings = {"url": url, "allowed_tools": ["secret_header"], "headers_from_env": {"X-Secret": "DOCS_SECRET"}}

    async def scenario(server: ToolServer) -> None:
        assert (await server.run("secret_header", "{}")).text == "Bearer sk-4711"
        assert server._cause(ValueError("no token sk-4711")) == "no token [hidden]"

    with_server(settings, scenario)


def test_a_call_that_takes_too_long_ends_alone():
    async def scenario(server: ToolServer) -> None:
        server._timeout_s = 60.0
        await server.run("add", '{"a": 1, "b": 1}')
        server._timeout_s = 0.2
        with pytest.raises(ToolServerError, match=r"no answer within 0\.2 s"):
            await server.run("wait", "{}")
        server._timeout_s = 60.0
        connection = server._connection
        assert await server.run("add", '{"a": 2, "b": 3}') == ToolResult("5")
        assert server._connection is connection

    with_server(STDIO, scenario)


def test_a_server_that_hangs_at_its_start_is_started_again(monkeypatch: pytest.MonkeyPatch):
    """All later calls waited for the same connection, each to its limit. Its program was left running."""
    before = psutil.Process().children()

    async def scenario(server: ToolServer) -> None:
        monkeypatch.setattr(servers, "_CONNECT_S", 0.5)
        with pytest.raises(ToolServerError, match="no connection within"):
            await server.tools()
        assert psutil.Process().children() == before
        monkeypatch.setattr(servers, "_CONNECT_S", 60.0)
        server._settings = STDIO
        assert await server.run("add", '{"a": 2, "b": 3}') == ToolResult("5")

    with_server({**STDIO, "command": [sys.executable, "-c", "import time; time.sleep(100)"]}, scenario)


def test_a_server_that_ended_is_started_again():
    async def scenario(server: ToolServer) -> None:
        with pytest.raises(ToolServerError, match="failed running 'leave'"):
            await server.run("leave", "{}")
        assert await server.run("add", '{"a": 2, "b": 3}') == ToolResult("5")

    with_server(STDIO, scenario)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": ["/absent/program"], "allowed_tools": ["add"]}, "cannot be reached"),
        ({"command": ["true"], "allowed_tools": ["add"]}, "cannot be reached|failed"),
        ({"url": "http://127.0.0.1:9/mcp", "allowed_tools": ["add"]}, "cannot be reached"),
        ({**STDIO, "allowed_tools": ["absent"]}, "has no tool 'absent'"),
    ],
    ids=["no program", "ends at once", "no listener", "no such tool"],
)
def test_what_is_wrong_with_a_server_is_said(settings: dict[str, Any], message: str):
    async def scenario(server: ToolServer) -> None:
        with pytest.raises(ToolServerError, match=message):
            await server.tools()

    with_server(settings, scenario)
