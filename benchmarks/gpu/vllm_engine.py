"""Parts `vllm qwen3-0.6b` and `vllm llama-3.1-8b`: the measurements of model_speed.py, with vLLM.

Measures vLLM's EngineCore in this process, below its output processing and detokenisation, as speed.py measures this
project's. Compilation, CUDA graphs, the number of tokens of a step and asynchronous scheduling are vLLM's defaults.
Its prefix cache is off: no two prompts share one, and without it vLLM hashes no blocks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from typing import Any

from .part import Case, Context
from .requests import TEMPERATURE, prefill_cases, steady_cases, workload
from .speed import Model, Served, model_named, record_prefill, record_steady, record_workload
from .table import VLLM

_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "GLOO_SOCKET_IFNAME": "lo",  # its process groups of one process need no network
    "HF_HUB_OFFLINE": "1",
    "VLLM_CACHE_ROOT": "/tmp/vllm-cache",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # its EngineCore runs in this process
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
}


class VllmEngine(Served):
    def __init__(self, context: Context, model: Model) -> None:
        super().__init__(context, model)
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if find_spec("flashinfer") is None:
            os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        from vllm import LLM, SamplingParams

        llm = LLM(
            model=str(model.shape.folder),
            load_format="dummy",
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_model_len=model.max_len,
            max_num_seqs=model.max_rows,
            kv_cache_memory_bytes=model.kv_tokens * model.shape.kv_bytes_per_token,
            enable_prefix_caching=False,
        )
        self.config = llm.llm_engine.vllm_config
        self._engine, self._params = llm.llm_engine, SamplingParams
        self._client = self._engine.engine_core  # calls the EngineCore without messages between processes
        self._core = self._client.engine_core
        self._tasks = self._engine.get_supported_tasks()

    def request(self, name: str, prompt_ids: list[int], answer: int) -> Any:
        params = self._params(temperature=TEMPERATURE, max_tokens=answer, ignore_eos=True, detokenize=False)
        prompt: Any = {"type": "token", "prompt_token_ids": prompt_ids}
        return self._engine.input_processor.process_inputs(name, prompt, params, self._tasks)

    def add(self, request: Any) -> None:
        self._client.add_request(request)

    def step(self) -> Any:
        return self._client.get_output()

    def count(self, outputs: Any) -> int:
        return sum(len(output.new_token_ids) for output in outputs.outputs)

    def names_in(self, outputs: Any) -> Iterable[str]:
        return (output.request_id for output in outputs.outputs if output.new_token_ids)

    def abort(self, names: list[str]) -> None:
        self._client.abort_requests(names)

    @property
    def has_work(self) -> bool:
        return self._core.scheduler.has_requests() or bool(self._core.batch_queue)


def _engine(context: Context) -> VllmEngine:
    """Started once: a start that fails may take a minute, and the next one would fail too."""
    engines: list[VllmEngine | None] = context.shared("engines", list)
    if not engines:
        engines.append(None)
        engines[0] = VllmEngine(context, model_named(context.config.part.removeprefix(VLLM), context))
    if engines[0] is None:
        raise RuntimeError("vLLM did not start")
    return engines[0]


def ready(context: Context) -> None:
    """Time from the start of this process. vLLM's cache may contain compiled code of an earlier run."""
    import vllm

    engine = _engine(context)
    seconds = time.time() - context.config.started_at
    context.record("ready, first start", engine.model.shape.name, seconds, "s")
    scheduler, compilation = engine.config.scheduler_config, engine.config.compilation_config
    context.record_machine(
        **{
            "vllm": vllm.__version__,
            "vllm, tokens in a step": scheduler.max_num_batched_tokens,
            "vllm, asynchronous scheduling": scheduler.async_scheduling,
            "vllm, compilation": compilation.mode.name,
            "vllm, graphs": compilation.cudagraph_mode.name,
        }
    )


def decode(context: Context, rows: int, length: int) -> None:
    record_steady(context, _engine(context), "decode", rows, length)


def prefill(context: Context, tokens: int) -> None:
    record_prefill(context, _engine(context), "prefill", tokens)


def mixed(context: Context) -> None:
    record_workload(context, _engine(context), "workload of 256", workload(context))


def skipped(context: Context, reason: str) -> None:
    context.record(context.config.part, "", error=f"skipped: {reason}", is_time=False)


def _reason_to_skip(context: Context) -> str | None:
    if find_spec("vllm") is None:
        return "vllm is not installed"
    if context.config.device != "cuda" or context.config.engine_device != "cuda":
        return "vllm is measured on a GPU"
    return "vllm has no reduced shapes" if context.is_reduced else None


def cases(context: Context) -> list[Case]:
    if (reason := _reason_to_skip(context)) is not None:
        return [Case(context.config.part, partial(skipped, reason=reason), 0.0)]
    steps = [
        Case(f"decode, {rows} x {length}", partial(decode, rows=rows, length=length), 4.0)
        for rows, length in sorted(
            steady_cases(context), key=lambda case: case == (64, 2048)
        )  # a case without a target
    ]
    prefills = [Case(f"prefill, {tokens}", partial(prefill, tokens=tokens), 2.0) for tokens in prefill_cases(context)]
    # Ordered by importance: vLLM's start takes most of the part's time.
    whole = Case("workload of 256", mixed, 8.0)
    return [Case("ready", ready, 45.0), steps[0], whole, *steps[1:-1], *prefills, steps[-1]]
