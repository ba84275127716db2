"""Processor time of the API process per streamed token: decode the engine's message, fan out, detokenise, SSE.

Runs the whole server on a unix socket without an engine. The benchmark passes one message per step to the engine
client, as an engine with `rows` sequences would send it, and the next one when all streams have written the token. A
child process reads the streams.

Usage: python -m benchmarks.streams [rows ...] [--profile]
"""

from __future__ import annotations

import asyncio
import cProfile
import itertools
import multiprocessing
import pstats
import socket
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.config.resolve.resolved import Resolved
from stoker.engine.api import EngineInfo, EngineOutput, FinishReason
from stoker.engine.client.engine_client import EngineState, StreamingClient
from stoker.engine.transport.messages import Message, Outputs, Submit
from stoker.engine.transport.wire import decode, encode
from stoker.server.http.serve import Shutdown
from stoker.server.run import load_text, run_server

NUM_STEPS = 200
BODY = b'{"model":"m","messages":[{"role":"user","content":"Hello"}],"stream":true}'
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
)


class FedClient(StreamingClient):
    """An engine client that receives its messages from the benchmark."""

    def __init__(self) -> None:
        super().__init__()
        self.handles: list[int] = []
        self._state = EngineState.READY
        self._info = EngineInfo(
            model="m", max_model_len=512, vocab_size=1 << 20, num_blocks=9, block_size=16, max_cached_len=144,
            max_num_seqs=1024, max_num_batched_tokens=1024, eos_token_ids=(), weights_bytes=0, kv_cache_bytes=0,
            dtype="float32", device="cpu", kernels={}, phases={},
        )  # fmt: skip

    async def start(self) -> EngineInfo:
        return self.info

    async def close(self) -> None:
        self._streams.abort_all()

    def _send(self, message: Message) -> None:
        if isinstance(message, Submit):
            self.handles.append(message.handle)

    def feed(self, data: bytes) -> None:
        self._receive(decode(data))


def step_message(handles: list[int], token_id: int, reason: FinishReason | None = None) -> bytes:
    if reason is None:
        return encode(Outputs(np.array(handles, np.int32), np.full(len(handles), token_id, np.int32)))
    records = [EngineOutput(request_id="", token_ids=[token_id], finish_reason=reason) for _ in handles]
    return encode(Outputs(record_handles=handles, records=records))


def read_all(path: str, num_streams: int) -> None:
    """The HTTP clients, in a separate process; they discard what they read."""
    opened = [socket.socket(socket.AF_UNIX) for _ in range(num_streams)]
    for each in opened:
        each.connect(path)
        each.sendall(REQUEST % (len(BODY), BODY))

    async def drain(each: socket.socket) -> None:
        reader, _ = await asyncio.open_unix_connection(sock=each, limit=1 << 20)
        while not (await reader.read(1 << 16)).endswith(b"0\r\n\r\n"):
            pass

    async def drain_all() -> None:
        await asyncio.gather(*map(drain, opened))

    asyncio.run(drain_all())


async def measure(resolved: Resolved, folder: Path, num_rows: int, profile: cProfile.Profile | None) -> float:
    """Microseconds of processor time per token."""
    client, shutdown, listening = FedClient(), Shutdown(), asyncio.Event()
    path = str(folder / f"{num_rows}.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(2048)
    server = asyncio.ensure_future(
        run_server(
            resolved, client, load_text(resolved), [listener], shutdown,
            on_listening=listening.set, exit_hard=False,
        )
    )  # fmt: skip
    await listening.wait()
    readers = multiprocessing.get_context("spawn").Process(target=read_all, args=(path, num_rows))
    readers.start()
    while len(client.handles) < num_rows:  # noqa: ASYNC110 (the readers' requests arrive asynchronously)
        await asyncio.sleep(0.01)
    token_ids = itertools.count(100)

    async def step(reason: FinishReason | None = None) -> None:
        client.feed(step_message(client.handles, next(token_ids) % 26 + 97, reason))
        for _ in range(6):  # event loop iterations from the message to the socket write
            await asyncio.sleep(0)

    for _ in range(20):
        await step()
    if profile is not None:
        profile.enable()
    start = time.process_time()
    for _ in range(NUM_STEPS):
        await step()
    seconds = time.process_time() - start
    if profile is not None:
        profile.disable()
    await step(FinishReason.LENGTH)
    await asyncio.to_thread(readers.join)
    shutdown.request()
    shutdown.request()
    await server
    return seconds / NUM_STEPS / num_rows * 1e6


def main() -> None:
    deployment = load_deployment(
        [], arguments={"model": "builtin:tiny", "served_model_name": "m", "disable_access_log": True}
    )
    resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
    profile = cProfile.Profile() if "--profile" in sys.argv else None
    rows = [int(argument) for argument in sys.argv[1:] if argument != "--profile"] or [1, 32, 128, 256]
    print(f"{'rows':>6} {'per token':>10}   microseconds of processor time")
    with tempfile.TemporaryDirectory() as folder:
        for num_rows in rows:
            spent = asyncio.run(measure(resolved, Path(folder), num_rows, profile))
            print(f"{num_rows:>6} {spent:>10.1f}")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
