"""Speed of an EngineCore with a real shape and random weights: steady decode, prefill, a whole workload.

`build_core` builds the engine, as in the server. The requests come from requests.py.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.config.resolve.gpu import interpreted_gpu
from stoker.engine.api import EngineRequest, SamplingParams
from stoker.engine.loop.engine_core import EngineCore
from stoker.engine.starts.startup import build_core

from .part import Context
from .requests import TEMPERATURE, prompt_of
from .shapes import LLAMA, QWEN, SMALL, Shape, decode_cost, prefill_cost, workload_cost

_STEPS = 64  # measured steps of steady decode
_WARM_STEPS = 8
_PREFILLS = 5


@dataclass(frozen=True, slots=True)
class Model:
    shape: Shape
    kv_tokens: int  # capacity of the KV cache
    max_rows: int
    max_len: int


def model_named(name: str, context: Context) -> Model:
    """name: qwen3-0.6b or llama-3.1-8b. With reduced shapes both use the small model."""
    if context.is_reduced:
        return Model(SMALL, 1024, 4, 64)
    return Model({"qwen3-0.6b": QWEN, "llama-3.1-8b": LLAMA}[name], 256 * (2048 + 512), 256, 16384)


@dataclass(frozen=True, slots=True)
class Steady:
    seconds: float  # of a step
    spread: float
    tokens_in_cache: float  # of all rows, mean over the steps
    host_seconds: float  # processor time of a step, of all threads


class Engine:
    def __init__(self, context: Context, model: Model, **options: Any) -> None:
        """options: of the deployment, in addition to those common to all measurements."""
        self.model = model
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
        self._warm_steps = 1 if context.is_reduced else _WARM_STEPS
        self._names = itertools.count()

    def finish_start(self) -> float:
        """Seconds of the work that a server does while idle: capturing the remaining CUDA graphs."""
        began = time.perf_counter()
        while self.core.idle():
            pass
        return time.perf_counter() - began

    def serve(self, lengths: list[tuple[int, int]]) -> float:
        """Seconds to serve all requests. lengths: numbers of prompt and output tokens of each request."""
        wanted = sum(answer for _, answer in lengths)
        requests = [self._request(prompt, answer) for prompt, answer in lengths]
        began, got = time.perf_counter(), 0
        for request in requests:
            self.core.add(request)
        while self.core.has_work:
            got += _count(self.core.step())
        seconds = time.perf_counter() - began
        if got != wanted:
            raise AssertionError(f"generated {got} tokens instead of {wanted}")
        return seconds

    def steady(self, rows: int, context_len: int, steps: int = _STEPS) -> Steady:
        """Measures steps of `rows` decoding sequences, each with about `context_len` tokens in the cache."""
        prompt = max(1, context_len - steps // 2 - self._warm_steps)
        names = [self._add(prompt, self.model.max_len - prompt) for _ in range(rows)]
        got, first = 0, set[str]()
        while len(first) < rows:  # the first rows already generate tokens before the last prompt is computed
            outputs = self.core.step()
            got += _count(outputs)
            first.update(output.request_id for output in outputs)
        for _ in range(self._warm_steps):
            got += _count(self.core.step())
        cached = rows * prompt + got
        times, host = [time.perf_counter()], time.process_time()
        for _ in range(steps):
            count = _count(self.core.step())
            if count != rows:
                raise AssertionError(f"a step of steady decode generated {count} tokens for {rows} rows")
            times.append(time.perf_counter())
        host = time.process_time() - host
        for name in names:
            self.core.abort(name)
        while self.core.has_work:
            self.core.step()
        durations = sorted(later - sooner for sooner, later in itertools.pairwise(times))
        tenths = statistics.quantiles(durations, n=10)
        mean = (times[-1] - times[0]) / steps
        return Steady(mean, (tenths[-1] - tenths[0]) / mean, cached + rows * steps / 2, host / steps)

    def run_steps(self, rows: int, context_len: int, work: Callable[[Callable[[], object]], None]) -> None:
        """Calls `work` with a function that executes one step of steady decode."""
        names = [self._add(context_len, self.model.max_len - context_len) for _ in range(rows)]
        first = set[str]()
        while len(first) < rows:
            first.update(output.request_id for output in self.core.step())
        for _ in range(self._warm_steps):
            self.core.step()
        work(self.core.step)
        for name in names:
            self.core.abort(name)
        while self.core.has_work:
            self.core.step()

    def _add(self, prompt: int, answer: int) -> str:
        request = self._request(prompt, answer)
        self.core.add(request)
        return request.request_id

    def _request(self, prompt: int, answer: int) -> EngineRequest:
        name = f"request-{next(self._names)}"
        ids = prompt_of(prompt, name, self.core.info.vocab_size)
        sampling = SamplingParams(temperature=TEMPERATURE, max_tokens=answer, ignore_eos=True)
        return EngineRequest(request_id=name, prompt_token_ids=ids, sampling=sampling)


def _count(outputs: Any) -> int:
    for output in outputs.records:
        if output.error is not None:
            raise RuntimeError(output.error)
    return len(outputs.token_ids) + sum(len(output.token_ids) for output in outputs.records)


def record_steady(context: Context, engine: Engine, name: str, rows: int, context_len: int) -> None:
    shape = engine.model.shape
    found = engine.steady(rows, context_len, 2 if context.is_reduced else _STEPS)
    floor = context.seconds_at_best(*decode_cost(shape, rows, found.tokens_in_cache))
    of = f"{shape.name}, {rows} x {context_len}"
    context.record(name, of, found.seconds * 1e3, "ms/step", floor and floor * 1e3, found.spread)
    context.record(f"{name}, tokens", of, rows / found.seconds, "token/s", floor and rows / floor)
    context.record(f"{name}, processor time", of, found.host_seconds * 1e3, "ms/step")


def record_prefill(context: Context, engine: Engine, name: str, tokens: int) -> None:
    """Records the time from a request to its first token."""
    shape = engine.model.shape
    engine.serve([(tokens, 1)])
    times = [engine.serve([(tokens, 1)]) for _ in range(1 if context.is_reduced else _PREFILLS)]
    floor = context.seconds_at_best(*prefill_cost(shape, tokens))
    middle = statistics.median(times)
    spread = (max(times) - min(times)) / middle
    context.record(name, f"{shape.name}, {tokens} tokens", middle * 1e3, "ms", floor and floor * 1e3, spread)


def record_workload(context: Context, engine: Engine, name: str, lengths: list[tuple[int, int]]) -> None:
    shape = engine.model.shape
    answers = sum(answer for _, answer in lengths)
    seconds = engine.serve(lengths)
    parts = [context.seconds_at_best(*cost) for cost in workload_cost(shape, lengths)]
    floor = answers / sum(part for part in parts if part is not None) if None not in parts else None
    of = f"{shape.name}, {len(lengths)} requests, {answers} tokens"
    context.record(name, of, answers / seconds, "token/s", floor)
