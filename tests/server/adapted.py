"""The server with builtin:tiny and adapters that PEFT has written, with an engine in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from tests.peft_adapters import write_adapter
from transformers import AutoModelForCausalLM, PreTrainedModel

from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.config.checkpoint.model_files import locate
from stoker.engine.client.in_process import InProcessClient
from stoker.engine.executor.build import build_core
from stoker.server.app import build_app
from stoker.server.run import load_text
from stoker.server.service import Service

from .deployment import PROCESSES

MODEL = "builtin:tiny"
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def tiny_model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(locate(MODEL), dtype="float32")


def write_adapters(folder: Path, *names: str) -> Path:
    """Adapters of builtin:tiny, each with other matrices, in folders of these names."""
    model = tiny_model()
    for seed, name in enumerate(names):
        write_adapter(folder / name, model, seed=seed, target_modules=LAYERS)
    return folder


class Running(NamedTuple):
    http: httpx.AsyncClient
    service: Service

    async def until(self, is_so: Callable[[], object]) -> None:
        while not is_so():
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def serving(*words: str, enable_lora: bool = True, **options: Any) -> AsyncIterator[Running]:
    """words: of the command line. options: of the deployment, by name."""
    arguments = {"model": MODEL, "dtype": "float32", "num_threads": 1, "num_gpu_blocks_override": 256}
    deployment = load_deployment([], ["--enable-lora", *words] if enable_lora else words, {}, arguments | options)
    resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
    client = InProcessClient(lambda _: build_core(resolved))
    await client.start()
    try:
        tokenizer, renderer, answers = load_text(resolved, PROCESSES)
        service = Service(resolved, client, tokenizer, renderer, answers=answers)
        await service.adapters.start()
        transport = httpx.ASGITransport(build_app(service), raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as http:
            yield Running(http, service)
    finally:
        await client.close()
