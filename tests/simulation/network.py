"""Network: connections between engines' block servers and their readers, in memory. Both sides are the real code.

A server answers when its reader first waits for it. A connection may be refused, end early, or fall silent.
"""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import ExitStack
from random import Random
from typing import Any
from unittest.mock import patch

from stoker.engine.kv_stores import block_connection, engine_blocks
from stoker.engine.kv_stores.block_connection import SILENCE_S, Answer

HOST = "engine"


class _Pipe:
    """What one side has sent, as the socket from which the other side reads."""

    def __init__(self, data: bytearray) -> None:
        self._data = data
        self.sent = bytearray()

    def settimeout(self, seconds: float) -> None:
        assert 0 < seconds <= SILENCE_S, "a wait without a limit"

    def sendall(self, data: Any) -> None:
        self.sent += data

    def recv_into(self, view: memoryview) -> int:
        count = min(len(view), len(self._data))
        view[:count] = self._data[:count]
        del self._data[:count]
        return count


class _Connection(_Pipe):
    """The reader's end."""

    def __init__(self, server: Server, length: int | None, *, is_silent: bool) -> None:
        """length: of the answer, in bytes, if it ends early. is_silent: nothing comes then, not even an end."""
        super().__init__(bytearray())
        self._server, self._length, self._is_silent = server, length, is_silent
        self._is_answered = False

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def recv_into(self, view: memoryview) -> int:
        if not self._is_answered:
            self._is_answered = True
            end = _Pipe(self.sent)
            block_connection._serve(end, self._server.fingerprint, self._server.answer)  # type: ignore[arg-type]
            self._data = end.sent[: self._length]
        count = super().recv_into(view)
        if not count and self._is_silent:
            raise TimeoutError("timed out")
        return count


class Server:
    """Takes the place of BlockServer."""

    def __init__(self, network: Network, port: int, fingerprint: str, answer: Answer) -> None:
        self._network, self.port, self.fingerprint, self.answer = network, port, fingerprint, answer

    def close(self) -> None:
        self._network.servers.pop(self.port, None)


class Network:
    def __init__(self, random: Random, failure_rate: float) -> None:
        self._random, self._failure_rate = random, failure_rate
        self._ports = itertools.count(1)
        self.servers: dict[int, Server] = {}  # by port
        self.faults: Counter[str] = Counter()

    def serve(self, host: str, port: int, fingerprint: str, answer: Answer) -> Server:
        server = Server(self, port or next(self._ports), fingerprint, answer)
        self.servers[server.port] = server
        return server

    def connect(self, address: tuple[str, int], timeout: float) -> _Connection:
        server = self.servers.get(address[1])
        if server is None:
            self.faults["connections refused"] += 1
            raise ConnectionRefusedError("Connection refused")
        random, length, is_silent = self._random, None, False
        if random.random() < self._failure_rate:
            length, is_silent = random.choice((0, 3, 20, 60, 200, 1000)), random.random() < 0.5
            self.faults["answers that stop" if is_silent else "answers that end early"] += 1
        return _Connection(server, length, is_silent=is_silent)

    def patched(self) -> ExitStack:
        """While it is open, connections are made here."""
        stack = ExitStack()
        stack.enter_context(patch.object(engine_blocks, "BlockServer", self.serve))
        stack.enter_context(patch.object(block_connection.socket, "create_connection", self.connect))
        return stack
