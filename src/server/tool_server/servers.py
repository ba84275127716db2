"""The configured MCP servers: their tools, and calls of these.

Each server is connected when it is needed first, and again after its connection ended. Only tools of its allow-list are
shown and run. There is no other network, and no other program, than what the deployment names.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp import Client

MAX_RESULT_CHARS = 1 << 18
MAX_TOOLS = 128
_CONNECT_S = 30.0
_CLOSE_S = 30.0
_DEFAULT_TIMEOUT_S = 60.0
_LISTED_S = 300.0  # a list of tools is kept
_MAX_ERROR_CHARS = 500


class ToolServersProblem(Exception):
    """The configured servers cannot be used in this environment."""


class ToolServerError(Exception):
    """A server that cannot be reached, or that did not answer as a server does. The message is for clients."""


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str | None
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """text: what the model reads. is_error: the tool failed, and the text says how."""

    text: str
    is_error: bool = False


def headers_of(label: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """The headers with credentials that a server gets. Raises ToolServersProblem, which does not show a value."""
    found: dict[str, str] = {}
    for name, variable in settings.get("headers_from_env", {}).items():
        value = os.environ.get(variable, "").strip()
        if not value or not value.isascii() or not value.isprintable():
            problem = "is not set" if not value else "has characters that a header cannot have"
            where = f"server.tool_server.{label}.headers_from_env.{name}"
            raise ToolServersProblem(f"the environment variable {variable} {problem} (`{where}`)")
        found[name] = value
    return found


class ToolServer:
    def __init__(self, label: str, settings: Mapping[str, Any]) -> None:
        """settings: `url` or `command`, `allowed_tools`, `timeout`, `headers_from_env`."""
        self.label = label
        self._headers = headers_of(label, settings)
        self._settings = settings
        self._allowed = frozenset(settings["allowed_tools"])
        self._timeout_s = float(settings.get("timeout", _DEFAULT_TIMEOUT_S))
        self._connecting = asyncio.Lock()
        self._connection: _Connection | None = None
        self._tools: tuple[float, list[Tool]] | None = None

    async def tools(self) -> list[Tool]:
        """Tools of the allow-list that the server has. Raises ToolServerError."""
        if self._tools is not None and time.monotonic() - self._tools[0] < _LISTED_S:
            return self._tools[1]
        async with self._asking("listing its tools") as client:
            found: list[Any] = []
            cursor = None
            while len(found) < MAX_TOOLS:
                page = await client.list_tools(cursor=cursor)
                found += [tool for tool in page.tools if tool.name in self._allowed]
                cursor = page.next_cursor
                if not cursor:
                    break
        tools = [Tool(tool.name, tool.description, tool.input_schema) for tool in found[:MAX_TOOLS]]
        if missing := sorted(self._allowed - {tool.name for tool in tools}):
            raise ToolServerError(f"the tool server {self.label!r} has no tool {missing[0]!r}")
        self._tools = time.monotonic(), tools
        return tools

    async def run(self, name: str, arguments: str) -> ToolResult:
        """arguments: a JSON object, as the model wrote it. Raises ToolServerError."""
        if name not in self._allowed:
            raise ToolServerError(f"the tool {name!r} of {self.label!r} is not in `allowed_tools`")
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            return ToolResult("the arguments are not a JSON object", is_error=True)
        async with self._asking(f"running {name!r}") as client:
            result = await client.call_tool(name, given)
        return ToolResult(_text_of(result), is_error=bool(result.is_error))

    async def close(self) -> None:
        await self._disconnect()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    @contextlib.asynccontextmanager
    async def _asking(self, what: str) -> Any:
        """A connected client for one question. Raises ToolServerError for whatever goes wrong, a timeout too."""
        where = f"the tool server {self.label!r} failed {what}"
        try:
            async with asyncio.timeout(_CONNECT_S):
                client = await self._connected()
        except TimeoutError:
            await self._disconnect()  # the next call tries a new one
            raise ToolServerError(f"{where}: no connection within {_CONNECT_S:.0f} s") from None
        try:
            async with asyncio.timeout(self._timeout_s):
                yield client
        except TimeoutError:
            raise ToolServerError(f"{where}: no answer within {self._timeout_s:g} s") from None
        except ToolServerError:
            raise
        except Exception as error:  # the library has no common class for its errors
            if _ends_connection(error):
                await self._disconnect()
            raise ToolServerError(f"{where}: {self._cause(error)}") from None

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                self._connection = _Connection(self._settings, self._headers)
            try:
                return await self._connection.client()
            except Exception as error:
                self._connection = None
                raise ToolServerError(
                    f"the tool server {self.label!r} cannot be reached: {self._cause(error)}"
                ) from None

    def _cause(self, error: BaseException) -> str:
        """Cause of an error, without a credential that its message repeats."""
        text = _cause(error)
        for value in self._headers.values():
            for secret in (value, *value.split()[1:]):  # such as "Bearer SECRET"
                text = text.replace(secret, "[hidden]")
        return text


class _Connection:
    """A client of the library in its own task, which enters and leaves it."""

    def __init__(self, settings: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._ready.add_done_callback(lambda ready: ready.exception())  # else asyncio warns when no call waits
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._hold(settings, headers))

    @property
    def is_open(self) -> bool:
        return not self._task.done()

    async def client(self) -> Client:
        return await asyncio.shield(self._ready)

    async def close(self) -> None:
        self._stop.set()
        if not self._ready.done():
            self._task.cancel()
        # The library ends a program in steps, each with a limit. A second cancellation would leave the program running.
        done, _ = await asyncio.wait([self._task], timeout=_CLOSE_S)
        if not done:
            self._task.cancel()

    async def _hold(self, settings: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        from mcp import Client  # an extra
        from mcp.client.stdio import StdioServerParameters
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        command = settings.get("command")
        server: Any = settings.get("url")
        if command is not None:  # its environment has none of the server's secrets: the library passes PATH and HOME
            server = StdioServerParameters(command=command[0], args=[*command[1:]])
        try:
            async with contextlib.AsyncExitStack() as stack:
                if headers:  # redirects to another origin are not followed, so that none gets them
                    http = await stack.enter_async_context(create_mcp_http_client(dict(headers)))
                    server = streamable_http_client(server, http_client=http)
                client = await stack.enter_async_context(Client(server))
                self._ready.set_result(client)
                await self._stop.wait()
        except Exception as error:
            if not self._ready.done():
                self._ready.set_exception(error)
        except asyncio.CancelledError:
            if not self._ready.done():
                self._ready.set_exception(ConnectionError("the connection took too long"))
            raise


class ToolServers:
    """All servers of a deployment, by label."""

    def __init__(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        self._servers = {label: ToolServer(label, each) for label, each in settings.items()}

    @property
    def labels(self) -> list[str]:
        return [*self._servers]

    def get(self, label: str) -> ToolServer | None:
        return self._servers.get(label)

    async def close(self) -> None:
        for server in self._servers.values():
            await server.close()


def _text_of(result: Any) -> str:
    """The texts of a result; of other content its type."""
    parts: Sequence[Any] = result.content
    texts = [part.text if part.type == "text" else f"[{part.type}]" for part in parts]
    if not texts and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(texts)
    if len(text) > MAX_RESULT_CHARS:
        return f"{text[:MAX_RESULT_CHARS]}\n[cut: the result has {len(text)} characters]"
    return text


def _ends_connection(error: Exception) -> bool:
    """Whether other calls cannot use the connection any more. They can after an error that is the server's answer."""
    from mcp import MCPError
    from mcp_types.jsonrpc import CONNECTION_CLOSED

    return not isinstance(error, MCPError) or error.code == CONNECTION_CLOSED


def _cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    sent = getattr(error, "error", None)  # of an MCPError
    if sent is not None:
        return str(sent.message)[:_MAX_ERROR_CHARS]
    return (str(error) or type(error).__name__)[:_MAX_ERROR_CHARS]
