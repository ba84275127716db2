"""One start of the server of a replica, seen from its supervisor. The other side: replica_server.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence

from ..server.http.serve import EXIT_S
from ..server.replica_health import ProbeAnswer
from .serving_process import command_of, start

COMMAND = command_of("replica_server")


class ReplicaProcess:
    def __init__(
        self, rank: int, began: float, on_phase: Callable[[str], None], on_summary: Callable[[str], None]
    ) -> None:
        """began: the command, of time.monotonic, which all processes share. on_phase: of its start.
        on_summary: called once it accepts requests."""
        self._rank = rank
        self._began = began
        self._on_phase = on_phase
        self._on_summary = on_summary
        self._num_probes = 0
        self._answer: asyncio.Future[ProbeAnswer | None] | None = None  # to the last of them
        self._process: Process | None = None
        self._control: asyncio.StreamWriter | None = None
        self._is_stopped_early = False  # while it was being started
        self.is_listening = False

    async def run(self, config: bytes, environment: Mapping[str, str], sockets: Sequence[socket.socket]) -> int:
        """From its start to its end. Returns the exit code, negative for a signal. Raises what a callback has raised.

        config: one line. sockets: from `take_ports`; closed here, so that clients are refused once it has ended.
        """
        command = (*COMMAND, "--rank", str(self._rank), "--began", str(self._began))
        process, reader, self._control = await start(command, config, environment, sockets)
        self._process = process
        for sock in sockets:
            sock.close()
        if self._is_stopped_early:
            process.terminate()
        reading = asyncio.create_task(self._read(reader))
        try:
            code = await process.wait()
            if reading.done():
                reading.result()
            return code
        finally:
            self.is_listening = False
            reading.cancel()
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(None)
            self._control.close()

    @property
    def pid(self) -> int | None:
        """None while it is being started."""
        return None if self._process is None else self._process.pid

    async def probe(self, timeout_s: float) -> ProbeAnswer | None:
        """None without an answer in time, or if it ended meanwhile."""
        assert self._control is not None, "it listens"
        self._num_probes += 1
        self._answer = asyncio.get_running_loop().create_future()
        self._control.write(b"%d\n" % self._num_probes)
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self._answer, timeout_s)
        return None

    async def replace(self, *, is_answering: bool) -> None:
        """End it without a drain; at once if it does not answer. Returns when it has ended, or was killed."""
        assert self._process is not None, "it listened"
        assert self._control is not None
        self.is_listening = False  # from now on it is not probed
        if is_answering:
            self._control.write_eof()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), 2 * EXIT_S)
        self.send(signal.SIGKILL)

    def send(self, number: int) -> None:
        """A signal, if it runs."""
        if self._process is None:
            self._is_stopped_early = True
        elif self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await _next_line(reader):
            try:
                self._take(json.loads(line))
            except Exception:
                self.send(signal.SIGTERM)  # no answer will be read
                raise

    def _take(self, line: dict[str, object]) -> None:
        match line:
            case {"phase": str(name)}:
                self._on_phase(name)
            case {"summary": str(text)}:
                self.is_listening = True
                self._on_summary(text)
            case {"probe": int(number), "answer": dict(answer)}:
                if number == self._num_probes and self._answer is not None and not self._answer.done():
                    self._answer.set_result(ProbeAnswer(**answer))


async def _next_line(reader: asyncio.StreamReader) -> bytes:
    """Empty at the end, which a process that is killed may reach in the middle of a line."""
    try:
        line = await reader.readline()
    except ConnectionError:
        return b""
    return line if line.endswith(b"\n") else b""
