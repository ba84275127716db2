"""A small MCP server for tests: `python mcp_server.py [PORT]`; standard input and output without a port."""

from __future__ import annotations

import asyncio
import os
import sys

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("test")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Raise an error."""
    raise ValueError("it failed")


@server.tool()
def leave() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
def environment(name: str) -> str:
    """The value of a variable."""
    return os.environ.get(name, "unset")


@server.tool()
def secret_header(context: Context) -> str:
    """What the client sent as X-Secret."""
    return dict(context.request_context.request.headers).get("x-secret", "unset")


@server.tool()
def long(num: int) -> str:
    """A text of this length."""
    return "x" * num


@server.tool()
async def wait() -> str:
    """Take long."""
    await asyncio.sleep(3600)
    return "late"


@server.tool()
def hidden() -> str:
    """Not in the list of any test."""
    return "hidden"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
