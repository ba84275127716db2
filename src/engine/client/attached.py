"""AttachedClient: a client of an engine process that another process has started and supervises.

That process (an EngineProcessClient with `is_shared`) reports where the engine listens and when it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from ..api import EngineInfo, InvalidRequest
from ..host.supervision import STALL_LIMIT_S, Watchdog
from ..transport.messages import ExitReason, Heartbeat, Message, Ready
from .connection import EngineConnection
from .engine_client import EngineState, StreamingClient


class AttachedClient(StreamingClient):
    def __init__(self, stall_limit_s: float = STALL_LIMIT_S) -> None:
        super().__init__(stall_limit_s)
        self._connection: EngineConnection | None = None
        self._ready = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the engine process, which runs on this machine; None while there is none."""
        return None if self._connection is None or self._info is None else self._info.pid

    async def start(self) -> EngineInfo:
        """Wait until it was attached to an engine that is ready."""
        await self._ready.wait()
        return self.info

    async def attach(self, paths: Sequence[Path]) -> None:
        """Connect to the sockets of an engine that is ready. Raises OSError."""
        await self._detach()
        connection = EngineConnection(self._receive)
        try:
            await connection.open(*paths)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        connection.read()

    async def lose(self, state: EngineState, reason: str) -> None:
        """The engine has ended; open streams fail."""
        await self._detach()
        self._lose(state, reason)

    async def close(self) -> None:
        self._streams.abort_all()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._detach()
        if self._state is not EngineState.DEAD:
            self._set(EngineState.DEAD, "the engine was detached")

    async def _detach(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.stop_reading()
            connection.close()

    def _send(self, message: Message) -> None:
        if self._connection is None:
            return
        try:
            self._connection.send(message)
        except OverflowError:
            raise InvalidRequest("token ids must be 32-bit integers", param="prompt", code="invalid_token_id") from None

    def _receive(self, message: Message) -> None:
        now = asyncio.get_running_loop().time()
        match message:
            case Ready():
                self._info = message.info
                self._watchdog = Watchdog(now, limit_s=self._stall_limit_s)
                self._set(EngineState.READY)
                self._watching = self._watching or asyncio.create_task(self._watch_progress())
                self._ready.set()
            case Heartbeat():
                self._watchdog.heartbeat(message, now)
            case ExitReason():
                pass  # the process that supervises the engine reports it
            case _:
                super()._receive(message)
