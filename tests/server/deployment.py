"""A deployment for tests, called without a socket (Served) or served on one (on_a_socket)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx

from stoker.config import MachineSpec, MemoryPlan, ModelFiles, Resolved
from stoker.config.checkpoint.chat_templates import TemplateSource
from stoker.config.resolve.resolved import (
    ResolvedCache,
    ResolvedCompilation,
    ResolvedDevice,
    ResolvedLoad,
    ResolvedModel,
    ResolvedScheduler,
    ResolvedServer,
)
from stoker.config.schema.kv_transfer import KVTransferConfig
from stoker.config.schema.observability import ObservabilityConfig
from stoker.config.schema.parallel import ParallelConfig
from stoker.config.schema.structured_outputs import StructuredOutputsConfig
from stoker.formats.detect import Detection
from stoker.formats.format import Format
from stoker.isolated.isolation import IsolatedProcesses
from stoker.model.pooling import PoolHead, Pooling
from stoker.model.spec import ModelSpec
from stoker.server.app import build_app
from stoker.server.http.address import take_address
from stoker.server.http.shutdown import Shutdown
from stoker.server.request_jobs import REQUEST_JOBS
from stoker.server.run import Text, load_text, run_server
from stoker.server.service import Service

from ..fakes import FakeEngine

MODEL = "org/tiny"
PROCESSES = IsolatedProcesses(REQUEST_JOBS)  # of all tests: starting one takes long
_POOLS: dict[tuple[str, ...], IsolatedProcesses] = {}  # by purpose and limits
_TEXTS: dict[str, Text] = {}
SCHEDULER = {
    "async_scheduling": False,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "max_queued_tokens": 4096,
    "max_num_partial_prefills": 1,
    "max_long_partial_prefills": 1,
    "long_prefill_token_threshold": 0,
}
# A decoder embeds texts, too.
POOLING = Pooling(heads=(PoolHead(task="embed", width=8, activation="normalize"),))
SERVER = {
    "port": 0,
    "log_format": "human",
    "http_log_level": "info",
    "max_incomplete_header_bytes": 1 << 16,
    "max_connections": 100,
    "max_connections_per_client": 100,
    "max_total_request_bytes": 1 << 28,
}


def resolved(folder: Path, *, model: dict[str, Any] | None = None, scheduler: dict[str, Any] | None = None,
             sampling_defaults: dict[str, Any] | None = None,
             observability: dict[str, Any] | None = None, parallel: dict[str, Any] | None = None,
             kv_transfer: dict[str, Any] | None = None, structured_outputs: dict[str, Any] | None = None,
             chat_template: str | None = None, pooling: Pooling | None = POOLING, generates: bool = True,
             **server: Any) -> Resolved:  # fmt: skip
    names = {"model": MODEL, "served_model_name": (MODEL, "alias")}
    read = {"tokenizer": str(folder), "hf_config_path": str(folder), "config_format": "hf", "rope_theta": 1e4}
    return Resolved(
        model=ResolvedModel(**{**names, **read, "dtype": "float32", "max_model_len": 512, **(model or {})}),
        load=ResolvedLoad(load_format="dummy"),
        cache=ResolvedCache(block_size=16, kv_cache_memory_bytes=1, kv_cache_dtype="float32"),
        scheduler=ResolvedScheduler(**{**SCHEDULER, **(scheduler or {})}),
        parallel=ParallelConfig(**(parallel or {})),
        device=ResolvedDevice(device="cpu", num_threads=1),
        compilation=ResolvedCompilation(level=0),
        kv_transfer=KVTransferConfig(**(kv_transfer or {})),
        structured_outputs=StructuredOutputsConfig(**(structured_outputs or {})),
        observability=ObservabilityConfig(**(observability or {})),
        server=ResolvedServer(**{**SERVER, **server}),
        model_files=ModelFiles.model_construct(  # the server uses no other fields
            tokenizer_path=str(folder),
            spec=ModelSpec.model_construct(architecture="", pooling=pooling, generates=generates),
        ),
        machine=MachineSpec.model_construct(),
        memory=MemoryPlan.model_construct(),
        model_path=str(folder),
        num_kv_blocks=64,
        chat_template=None if chat_template is None else TemplateSource(chat_template, "server.chat_template"),
        sampling_defaults=sampling_defaults or {},
    )


def shared(purpose: str, pool: IsolatedProcesses) -> IsolatedProcesses:
    """The pool of all tests for this purpose that has the same limits."""
    return _POOLS.setdefault((purpose, *pool._processes[0]._arguments), pool)


def shared_text(settings: Resolved) -> Text:
    """What load_text makes of these settings, which takes longer than most requests of a test."""
    files = [(path.name, path.stat().st_mtime_ns) for path in sorted(Path(settings.model_path).iterdir())]
    key = repr((settings.model, settings.server, settings.structured_outputs, settings.chat_template, files))
    if key not in _TEXTS:
        _TEXTS[key] = load_text(settings, PROCESSES)
    return _TEXTS[key]


class Served:
    """An app called in process. Each call, such as `served.post("/v1/...", {...})`, runs in a new event loop."""

    def __init__(
        self, folder: Path, engine: FakeEngine | None = None, *, answer_format: Format | None = None, **options: Any
    ) -> None:
        self.engine = engine or FakeEngine()
        self.is_draining = False
        settings = resolved(folder, **options)
        tokenizer, renderer, _ = shared_text(settings)
        self.service = Service(
            settings,
            self.engine,
            tokenizer,
            renderer,
            answers=answer_format and Detection(answer_format, answer_format.name, "set", "", "set"),
            is_draining=lambda: self.is_draining,
        )
        self.service.long_bodies = shared("bodies", self.service.long_bodies)
        self.service.constraints._processes = shared("constraints", self.service.constraints._processes)
        if renderer is not None:
            renderer._processes_of_requests = shared("templates", renderer._processes_of_requests)
        self.app = build_app(self.service)

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost")

    def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        async def run() -> httpx.Response:
            async with self.client() as client:
                return await client.request(method, path, **arguments)

        return asyncio.run(run())

    def get(self, path: str, **arguments: Any) -> httpx.Response:
        return self.request("GET", path, **arguments)

    def post(self, path: str, body: Any = None, **arguments: Any) -> httpx.Response:
        if isinstance(body, bytes):
            arguments.setdefault("headers", {"content-type": "application/json"})
            return self.request("POST", path, content=body, **arguments)
        return self.request("POST", path, json=body, **arguments)

    def chat(self, text: str = "Hello", **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": text}]
        return self.post("/v1/chat/completions", {"model": MODEL, "messages": messages, **fields})

    def complete(self, prompt: Any = "Hello", **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"model": MODEL, "prompt": prompt, **fields})

    def metric(self, line: str) -> float:
        """The value of one line of /metrics, 0 if it is missing."""
        for found in self.service.metrics.render().decode().splitlines():
            if found.startswith(line + " "):
                return float(found.rsplit(" ", 1)[1])
        return 0.0


@contextlib.asynccontextmanager
async def on_a_socket(folder: Path, engine: FakeEngine, **options: Any) -> AsyncIterator[tuple[int, Shutdown]]:
    """The complete server on a port, or on a Unix socket with `uds`."""
    settings = resolved(folder, **options)
    server = settings.server
    sockets, shutdown = take_address(server.host, server.port, server.uds), Shutdown()
    listening = asyncio.Event()
    task = asyncio.ensure_future(
        run_server(settings, engine, load_text(settings, PROCESSES), sockets, shutdown,
                   on_listening=listening.set, exit_hard=False)
    )  # fmt: skip
    await asyncio.wait([task, asyncio.ensure_future(listening.wait())], return_when=asyncio.FIRST_COMPLETED)
    try:
        yield 0 if server.uds else sockets[0].getsockname()[1], shutdown
    finally:
        shutdown.request()
        shutdown.request()
        await asyncio.wait_for(task, 60)


def events(body: str) -> Iterator[str]:
    """The data of each event of a stream. Fails if there is anything else."""
    for block in body.split("\n\n"):
        if block:
            assert block.startswith("data: "), block
            assert "\n" not in block, block
            yield block.removeprefix("data: ")
