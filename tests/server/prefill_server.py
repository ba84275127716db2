"""PrefillServer: a small HTTP server that answers prompts as a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

HOST = "127.0.0.1"
NAMES = ["00" * 32, "11" * 32]
PARAMS = {"do_remote_prefill": True, "remote_block_ids": NAMES, "remote_host": "10.0.0.9", "remote_port": 5601}


@dataclass(frozen=True, slots=True)
class Answer:
    """None as the status closes the connection instead."""

    body: Any = None  # bytes as they are, else as JSON
    status: int | None = 200

    def __bytes__(self) -> bytes:
        data = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        head = f"HTTP/1.1 {self.status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        return f"{head}Connection: close\r\n\r\n".encode() + data


READ = Answer({"kv_transfer_params": PARAMS})


class PrefillServer:
    """Within `async with`. prompt, health: make the answers to POST and GET."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.prompt: Callable[[], Awaitable[Answer]] = _at_once(READ)
        self.health: Callable[[], Awaitable[Answer]] = _at_once(Answer())
        self.bodies: list[dict[str, Any]] = []  # of prompts
        self.headers: list[dict[str, str]] = []
        self.num_probes = 0
        self.num_open = 0  # prompts
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def answer(self, answer: Answer) -> None:
        """To each prompt from now on."""
        self.prompt = _at_once(answer)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for _ in range(3):  # a connection that is accepted while the server closes would never be closed
            await asyncio.sleep(0)
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # connections close in the next iteration of the loop

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._handle(reader, writer))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            writer.close()  # here and not in the task, which may be cancelled before it begins

        task.add_done_callback(ended)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answered(reader)
            if answer is not None and answer.status is not None:
                writer.write(bytes(answer))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has left

    async def _answered(self, reader: asyncio.StreamReader) -> Answer | None:
        """None if the client leaves first."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        fields = (line.partition(": ") for line in lines)
        headers = {name.lower(): value for name, _, value in fields}
        if first.startswith("GET /health "):
            self.num_probes += 1
            return await self.health()
        assert first.startswith("POST /inference/v1/generate "), first
        self.bodies.append(json.loads(await reader.readexactly(int(headers["content-length"]))))
        self.headers.append(headers)
        self.num_open += 1
        answering = asyncio.ensure_future(self.prompt())
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else None
        finally:
            self.num_open -= 1
            answering.cancel()
            leaving.cancel()


def _at_once(answer: Answer) -> Callable[[], Awaitable[Answer]]:
    async def make() -> Answer:
        return answer

    return make
