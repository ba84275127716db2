"""The server with builtin:tiny, an engine that drafts, and step times that are the same on each machine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx

from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.engine.client.in_process import InProcessClient
from stoker.engine.core import Scheduler
from stoker.engine.executor.build import build_core
from stoker.engine.executor.scheduler import draft_settings, scheduler_settings
from stoker.engine.loop.engine_core import EngineCore
from stoker.engine.spec_decode.step_times import DraftTimes, StepTimes
from stoker.server.app import build_app
from stoker.server.run import load_text
from stoker.server.service import Service

from .deployment import PROCESSES


class KnownTimes(StepTimes):
    """A step of 100 tokens takes little longer than one of a single token, whatever is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.measure({1: 1.0, 100: 1.1})

    def record(self, num_rows: int, num_drafts: int, seconds: float) -> None:
        pass


def asked(
    requests: Sequence[tuple[str, dict[str, Any]]], *, method: str | None = "ngram", **options: Any
) -> list[httpx.Response]:
    """Responses to requests, each a path and a body, one after the other. options: of the deployment, by name."""
    own = {} if method is None else {"method": method}
    own |= {name: options.pop(name) for name in ("past_output_tokens",) if name in options}
    speculative = {"speculative_config": own} if own else {}
    arguments = {"model": "builtin:tiny", "dtype": "float32", "num_threads": 1, "num_gpu_blocks_override": 64}
    deployment = load_deployment([], env={}, arguments=arguments | speculative | options)
    files, machine = read_model_files(deployment), read_machine_spec()
    resolved = resolve_deployment(deployment, files, machine)

    def build(_: object) -> EngineCore:
        core = build_core(resolved_without)
        core._scheduler = Scheduler(
            scheduler_settings(resolved, drafting=draft_settings(resolved, DraftTimes(KnownTimes())))
        )
        return core

    plain = load_deployment([], env={}, arguments=arguments | options)
    resolved_without = resolve_deployment(plain, files, machine)  # its start measures no steps

    async def run() -> list[httpx.Response]:
        client = InProcessClient(build)
        await client.start()
        try:
            tokenizer, renderer, answers = load_text(resolved, PROCESSES)
            app = build_app(Service(resolved, client, tokenizer, renderer, answers=answers))
            transport = httpx.ASGITransport(app, raise_app_exceptions=True)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as http:
                return [await http.post(path, json=body) for path, body in requests]
        finally:
            await client.close()

    return asyncio.run(run())
