"""Number of tokens in one event of a stream: one if the client keeps up, several if it is slow."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.engine.api import EngineInfo, EngineOutput, FinishReason
from stoker.engine.client.engine_client import EngineState, StreamingClient
from stoker.engine.transport.messages import Message, Outputs, Submit

from ..fakes import FakeEngine
from ..tiny_tokenizer import write_tokenizer
from .deployment import MODEL, events, on_a_socket

TOKEN = 40  # a character
NUM_TOKENS = 4000


class FedClient(StreamingClient):
    """An engine client whose messages come from the test."""

    def __init__(self) -> None:
        super().__init__()
        self._state = EngineState.READY
        self._info = FakeEngine(max_model_len=8192, num_blocks=1024).info
        self.handle = asyncio.Queue[int]()

    async def start(self) -> EngineInfo:
        return self.info

    async def close(self) -> None:
        self._streams.abort_all()

    def _send(self, message: Message) -> None:
        if isinstance(message, Submit):
            self.handle.put_nowait(message.handle)

    def token(self, handle: int) -> None:
        self._receive(Outputs(np.array([handle], np.int32), np.array([TOKEN], np.int32)))

    def last(self, handle: int) -> None:
        end = EngineOutput(request_id="", token_ids=[TOKEN], finish_reason=FinishReason.LENGTH)
        self._receive(Outputs(record_handles=[handle], records=[end]))


async def stream(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    body = json.dumps({"model": MODEL, "prompt": "Hello", "stream": True, "max_tokens": NUM_TOKENS}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return reader, writer


def texts(received: bytes) -> list[str]:
    """The text of each event, in order."""
    _, _, body = received.partition(b"\r\n\r\n")
    whole = b""
    while body:  # chunked
        size, _, body = body.partition(b"\r\n")
        whole, body = whole + body[: int(size, 16)], body[int(size, 16) + 2 :]
    chunks: list[Any] = [json.loads(event) for event in events(whole.decode()) if event != "[DONE]"]
    return [chunk["choices"][0]["text"] for chunk in chunks]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "m")


def options(tmp_path: Path) -> dict[str, Any]:
    return {"uds": str(tmp_path / "s"), "model": {"max_model_len": 8192}}


def test_a_client_that_keeps_up_gets_one_event_for_each_token(folder: Path, tmp_path: Path):
    async def scenario() -> bytes:
        engine = FedClient()
        async with on_a_socket(folder, engine, **options(tmp_path)):  # type: ignore[arg-type]
            reader, writer = await stream(tmp_path / "s")
            handle = await engine.handle.get()
            received = b""
            for index in range(20):
                engine.token(handle)
                while received.count(b"data: ") <= index:
                    received += await reader.read(1 << 16)
            engine.last(handle)
            received += await reader.read(-1)
            writer.close()
            return received

    found = texts(asyncio.run(scenario()))
    assert found[:20] == [found[0]] * 20
    assert "".join(found) == found[0] * 21


def test_a_slow_client_gets_several_tokens_in_one_event(folder: Path, tmp_path: Path):
    async def scenario() -> bytes:
        engine = FedClient()
        async with on_a_socket(folder, engine, **options(tmp_path)):  # type: ignore[arg-type]
            reader, writer = await stream(tmp_path / "s")
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            handle = await engine.handle.get()
            for _ in range(NUM_TOKENS - 1):
                engine.token(handle)
                for _ in range(6):  # iterations of the loop in which a client that reads would receive it
                    await asyncio.sleep(0)
            engine.last(handle)
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            received = await reader.read(-1)
            writer.close()
            return received

    found = texts(asyncio.run(scenario()))
    assert "".join(found) == found[0] * NUM_TOKENS
    assert len(found) < NUM_TOKENS / 2
