"""An EngineCore as speed.py measures engines. `build_core` builds it, as in the server."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.config.resolve.gpu import interpreted_gpu
from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.executor.build import build_core
from stoker.engine.loop.engine_core import EngineCore

from .part import Context
from .requests import TEMPERATURE
from .speed import Model, Served


class Engine(Served):
    def __init__(self, context: Context, model: Model, **options: Any) -> None:
        """options: of the deployment, in addition to those common to all measurements."""
        super().__init__(context, model)
        arguments: dict[str, Any] = {
            "model": str(model.shape.folder),
            "load_format": "dummy",
            "dtype": "float32" if context.is_reduced else "bfloat16",
            "skip_tokenizer_init": True,
            "device": context.config.engine_device,
            "max_model_len": model.max_len,
            "max_num_seqs": model.max_rows,
            **({"max_num_batched_tokens": 16} if context.is_reduced else {}),
            "kv_cache_memory_bytes": model.kv_tokens
            * model.shape.kv_bytes_per_token
            * (2 if context.is_reduced else 1),
            **options,
        }
        deployment = load_deployment([], arguments=arguments)
        machine = read_machine_spec()
        if machine.gpu is None and context.config.engine_device == "cuda":
            interpreted = interpreted_gpu(machine.total_memory_bytes, machine.available_memory_bytes)
            machine = machine.model_copy(update={"gpu": interpreted})
        self.core: EngineCore = build_core(resolve_deployment(deployment, read_model_files(deployment), machine))

    def finish_start(self) -> float:
        """Seconds of the work that a server does while idle: capturing the remaining CUDA graphs."""
        began = time.perf_counter()
        while self.core.idle():
            pass
        return time.perf_counter() - began

    def request(self, name: str, prompt_ids: list[int], answer: int) -> EngineRequest:
        sampling = SamplingParams(temperature=TEMPERATURE, max_tokens=answer, ignore_eos=True)
        return EngineRequest(request_id=name, inputs=RequestInputs(prompt_ids, sampling))

    def add(self, request: EngineRequest) -> None:
        self.core.add(request)

    def step(self) -> Any:
        return self.core.step()

    def count(self, outputs: Any) -> int:
        for output in outputs.records:
            if output.error is not None:
                raise RuntimeError(output.error)
        return len(outputs.token_ids) + sum(len(output.token_ids) for output in outputs.records)

    def names_in(self, outputs: Any) -> Iterable[str]:
        return (output.request_id for output in outputs)

    def abort(self, names: list[str]) -> None:
        for name in names:
            self.core.abort(name)

    @property
    def has_work(self) -> bool:
        return self.core.has_work
