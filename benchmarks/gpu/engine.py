"""An EngineCore of true shape and random weights, and its speed: steady decode, prompts, a whole workload.

The engine is built by `build_core`, as the server builds it. What it is asked for comes from requests.py.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stoker.config import load_deployment, read_machine_facts, read_model_facts, resolve_deployment
from stoker.config.resolve.gpu import interpreted_gpu
from stoker.engine.api import EngineRequest, SamplingParams
from stoker.engine.engine_core import EngineCore
from stoker.engine.startup import build_core

from .part import Context
from .requests import TEMPERATURE, prompt_of
from .shapes import LLAMA, QWEN, SMALL, Shape, decode_cost, prefill_cost, workload_cost

_STEPS = 64  # of steady decode that are measured
_WARM_STEPS = 8
_PREFILLS = 5


@dataclass(frozen=True, slots=True)
class Model:
    shape: Shape
    room: int  # tokens of KV cache
    max_rows: int
    max_len: int


def model_named(name: str, context: Context) -> Model:
    """name: qwen3-0.6b or llama-3.1-8b. The reduced form takes a small one for either."""
    if context.is_reduced:
        return Model(SMALL, 1024, 4, 64)
    return Model({"qwen3-0.6b": QWEN, "llama-3.1-8b": LLAMA}[name], 256 * (2048 + 512), 256, 16384)


@dataclass(frozen=True, slots=True)
class Steady:
    seconds: float  # of a step
    spread: float
    tokens_in_cache: float  # of all rows, on average
    host_seconds: float  # processor time of a step, of all threads


class Engine:
    def __init__(self, context: Context, model: Model, **options: Any) -> None:
        """options: of the deployment, besides those that every measurement has."""
        self.model = model
        arguments: dict[str, Any] = {
            "model": str(model.shape.folder),
            "load_format": "dummy",
            "dtype": "float32" if context.is_reduced else "bfloat16",
            "skip_tokenizer_init": True,
            "device": context.order.engine_device,
            "max_model_len": model.max_len,
            "max_num_seqs": model.max_rows,
            **({"max_num_batched_tokens": 16} if context.is_reduced else {}),
            "kv_cache_memory_bytes": model.room * model.shape.kv_bytes_per_token * (2 if context.is_reduced else 1),
            **options,
        }
        deployment = load_deployment([], arguments=arguments)
        machine = read_machine_facts()
        if machine.gpu is None and context.order.engine_device == "cuda":
            stand_in = interpreted_gpu(machine.total_memory_bytes, machine.available_memory_bytes)
            machine = machine.model_copy(update={"gpu": stand_in})
        self.core: EngineCore = build_core(resolve_deployment(deployment, read_model_facts(deployment), machine))
        self._warm_steps = 1 if context.is_reduced else _WARM_STEPS
        self._names = itertools.count()

    def finish_start(self) -> float:
        """Seconds of what a server does while nothing is asked of it: the graphs that are still to be captured."""
        began = time.perf_counter()
        while self.core.idle():
            pass
        return time.perf_counter() - began

    def serve(self, lengths: list[tuple[int, int]]) -> float:
        """Seconds that all requests together take. lengths: of prompt and answer of each."""
        wanted = sum(answer for _, answer in lengths)
        requests = [self._request(prompt, answer) for prompt, answer in lengths]
        began, got = time.perf_counter(), 0
        for request in requests:
            self.core.add(request)
        while self.core.has_work:
            got += _count(self.core.step())
        seconds = time.perf_counter() - began
        if got != wanted:
            raise AssertionError(f"{got} tokens came, {wanted} were asked for")
        return seconds

    def steady(self, rows: int, context_len: int, steps: int = _STEPS) -> Steady:
        """Steps of `rows` sequences that all decode, each with about `context_len` tokens in the cache."""
        prompt = max(1, context_len - steps // 2 - self._warm_steps)
        names = [self._add(prompt, self.model.max_len - prompt) for _ in range(rows)]
        got, first = 0, set[str]()
        while len(first) < rows:  # until the last prompt is computed the first rows get tokens already
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
                raise AssertionError(f"a step of steady decode gave {count} tokens to {rows} rows")
            times.append(time.perf_counter())
        host = time.process_time() - host
        for name in names:
            self.core.abort(name)
        while self.core.has_work:
            self.core.step()
        apart = sorted(later - sooner for sooner, later in itertools.pairwise(times))
        tenths = statistics.quantiles(apart, n=10)
        mean = (times[-1] - times[0]) / steps
        return Steady(mean, (tenths[-1] - tenths[0]) / mean, cached + rows * steps / 2, host / steps)

    def run_steps(self, rows: int, context_len: int, work: Callable[[Callable[[], object]], None]) -> None:
        """Hands `work` what carries out one step of steady decode."""
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


def tell_steady(context: Context, engine: Engine, name: str, rows: int, context_len: int) -> None:
    shape = engine.model.shape
    found = engine.steady(rows, context_len, 2 if context.is_reduced else _STEPS)
    floor = context.seconds_at_best(*decode_cost(shape, rows, found.tokens_in_cache))
    of = f"{shape.name}, {rows} x {context_len}"
    context.tell(name, of, found.seconds * 1e3, "ms/step", floor and floor * 1e3, found.spread)
    context.tell(f"{name}, tokens", of, rows / found.seconds, "token/s", floor and rows / floor)
    context.tell(f"{name}, processor time", of, found.host_seconds * 1e3, "ms/step")


def tell_prefill(context: Context, engine: Engine, name: str, tokens: int) -> None:
    """From the request to its first token."""
    shape = engine.model.shape
    engine.serve([(tokens, 1)])
    times = [engine.serve([(tokens, 1)]) for _ in range(1 if context.is_reduced else _PREFILLS)]
    floor = context.seconds_at_best(*prefill_cost(shape, tokens))
    middle = statistics.median(times)
    spread = (max(times) - min(times)) / middle
    context.tell(name, f"{shape.name}, {tokens} tokens", middle * 1e3, "ms", floor and floor * 1e3, spread)


def tell_workload(context: Context, engine: Engine, name: str, lengths: list[tuple[int, int]]) -> None:
    shape = engine.model.shape
    answers = sum(answer for _, answer in lengths)
    seconds = engine.serve(lengths)
    parts = [context.seconds_at_best(*cost) for cost in workload_cost(shape, lengths)]
    floor = answers / sum(part for part in parts if part is not None) if None not in parts else None
    of = f"{shape.name}, {len(lengths)} requests, {answers} tokens"
    context.tell(name, of, answers / seconds, "token/s", floor)
