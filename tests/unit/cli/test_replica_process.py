"""A server of a replica, seen from its supervisor. In its place: a process that writes and reads the same lines."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stoker.cli import replica_process
from stoker.cli.replica_process import ReplicaProcess

LIMIT_S = 60.0
SERVER = """
import json, socket, sys
control = socket.socket(fileno=int(sys.argv[sys.argv.index("--control") + 1])).makefile("rw")
control.readline()
control.write(json.dumps({"summary": "it listens"}) + chr(10))
control.flush()
"""
TO_THE_END = SERVER + "sys.exit(3 if control.read() else 0)"
CUT_SHORT = SERVER + "control.write('{'); control.flush(); control.readline()"
SILENT = SERVER + "control.readline(); control.readline()"


@asynccontextmanager
async def running(process: ReplicaProcess, listens: asyncio.Event) -> AsyncIterator[asyncio.Task[int]]:
    task = asyncio.create_task(process.run(b"{}\n", os.environ, []))
    try:
        await asyncio.wait_for(listens.wait(), LIMIT_S)
        yield task
    finally:
        process.send(signal.SIGKILL)
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), LIMIT_S)


def uses(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "server.py"
    file.write_text(script)
    monkeypatch.setattr(replica_process, "COMMAND", (sys.executable, str(file)))


def listening() -> tuple[ReplicaProcess, asyncio.Event]:
    listens = asyncio.Event()
    return ReplicaProcess(0, 0.0, lambda phase: None, lambda summary: listens.set()), listens


def test_a_server_that_is_being_replaced_is_not_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe between SIGKILL and the end of the process wrote to a closed connection, and no other probe followed."""
    uses(TO_THE_END, tmp_path, monkeypatch)

    async def check() -> None:
        process, listens = listening()
        async with running(process, listens) as task:
            assert process.is_listening
            replacing = asyncio.create_task(process.replace(is_answering=True))
            await asyncio.sleep(0)
            assert not task.done()
            assert not process.is_listening
            await replacing
            assert await task == 0

    asyncio.run(check())


def test_a_probe_returns_when_the_server_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for its timeout, and the next start of the server was not probed meanwhile."""
    uses(SILENT, tmp_path, monkeypatch)

    async def check() -> None:
        process, listens = listening()
        async with running(process, listens) as task:
            probe = asyncio.create_task(process.probe(86_400))
            await asyncio.sleep(0)
            process.send(signal.SIGKILL)
            assert await asyncio.wait_for(probe, LIMIT_S) is None
            assert await task == -signal.SIGKILL

    asyncio.run(check())


def test_a_failure_to_report_a_server_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a closed standard output no answer of the server was read any more: it was replaced again and again."""
    uses(TO_THE_END, tmp_path, monkeypatch)

    def closed(summary: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    async def check() -> None:
        with pytest.raises(BrokenPipeError):
            await asyncio.wait_for(ReplicaProcess(0, 0.0, print, closed).run(b"{}\n", os.environ, []), LIMIT_S)

    asyncio.run(check())


def test_a_server_that_ends_in_the_middle_of_a_line_has_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses(CUT_SHORT, tmp_path, monkeypatch)

    async def check() -> None:
        process, listens = listening()
        async with running(process, listens) as task:
            await process.replace(is_answering=True)
            assert await task == 0

    asyncio.run(check())
