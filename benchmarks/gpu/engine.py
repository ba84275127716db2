"""An EngineCore of true shape and random weights, and its speed: steady decode, prompts, a whole workload.

Usage by parts: engine_0_6b.py and others below; the engine is built by `build_core`, as the server builds it.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.config import load_deployment, read_machine_facts, read_model_facts, resolve_deployment
from stoker.engine.api import EngineRequest, SamplingParams
from stoker.engine.engine_core import EngineCore
from stoker.engine.startup import build_core

from .part import Context
from .requests import TEMPERATURE, prompt_of
from .shapes import LLAMA, MODELS, QWEN, Shape, decode_cost, prefill_cost, workload_cost

_STEPS = 64  # of steady decode that are measured
_WARM_STEPS = 8
_PREFILLS = 5
_TINY = Shape("builtin:tiny", 1, 1, 1, 1, 1, 1, 1, False, True)  # stands in where nothing is timed: no floor is told


@dataclass(frozen=True, slots=True)
class Model:
    path: str
    shape: Shape
    room: int  # tokens of KV cache
    max_rows: int
    max_len: int


def model_named(name: str, context: Context) -> Model:
    """name: qwen3-0.6b or llama-3.1-8b. The reduced form takes the built-in model."""
    if context.is_reduced:
        return Model("builtin:tiny", _TINY, 1024, 8, 128)
    shape = {"qwen3-0.6b": QWEN, "llama-3.1-8b": LLAMA}[name]
    return Model(str(Path(MODELS) / name), shape, 256 * (2048 + 512), 256, 16384)


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
            "model": model.path,
            "skip_tokenizer_init": True,
            "device": context.order.engine_device,
            "max_model_len": model.max_len,
            "max_num_seqs": model.max_rows,
            **({} if context.is_reduced else {"load_format": "dummy", "dtype": "bfloat16"}),
            **options,
        }
        deployment = load_deployment([], arguments=arguments)
        facts = read_model_facts(deployment)
        if context.is_reduced:
            kv_bytes = model.room * facts.kv_bytes_per_token("float32")
        else:
            kv_bytes = model.room * model.shape.kv_bytes_per_token
        deployment = load_deployment([], arguments={**arguments, "kv_cache_memory_bytes": kv_bytes})
        self.core: EngineCore = build_core(resolve_deployment(deployment, facts, read_machine_facts()))
        self._names = itertools.count()

    def serve(self, lengths: list[tuple[int, int]]) -> float:
        """Seconds that all requests together take. lengths: of prompt and answer of each."""
        wanted = sum(answer for _, answer in lengths)
        for prompt, answer in lengths:
            self._add(prompt, answer)
        began, got = time.perf_counter(), 0
        while self.core.has_work:
            got += _count(self.core.step())
        seconds = time.perf_counter() - began
        if got != wanted:
            raise AssertionError(f"{got} tokens came, {wanted} were asked for")
        return seconds

    def steady(self, rows: int, context_len: int, steps: int = _STEPS) -> Steady:
        """Steps of `rows` sequences that all decode, each with about `context_len` tokens in the cache."""
        prompt = max(1, context_len - steps // 2 - _WARM_STEPS)
        names = [self._add(prompt, self.model.max_len - prompt) for _ in range(rows)]
        got, first = 0, set[str]()
        while len(first) < rows:  # until the last prompt is computed the first rows get tokens already
            outputs = self.core.step()
            got += _count(outputs)
            first.update(output.request_id for output in outputs)
        for _ in range(_WARM_STEPS):
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

    def run_steps(self, rows: int, context_len: int, work: Callable[[Callable[[], None]], None]) -> None:
        """Hands `work` what carries out one step of steady decode."""
        names = [self._add(context_len, self.model.max_len - context_len) for _ in range(rows)]
        first = set[str]()
        while len(first) < rows:
            first.update(output.request_id for output in self.core.step())
        for _ in range(_WARM_STEPS):
            self.core.step()
        work(lambda: None if self.core.step() else None)
        for name in names:
            self.core.abort(name)
        while self.core.has_work:
            self.core.step()

    def _add(self, prompt: int, answer: int) -> str:
        name = f"request-{next(self._names)}"
        ids = prompt_of(prompt, name, self.core.info.vocab_size)
        sampling = SamplingParams(temperature=TEMPERATURE, max_tokens=answer, ignore_eos=True)
        self.core.add(EngineRequest(request_id=name, prompt_token_ids=ids, sampling=sampling))
        return name


def _count(outputs: Any) -> int:
    for output in outputs.records:
        if output.error is not None:
            raise RuntimeError(output.error)
    return len(outputs.token_ids) + sum(len(output.token_ids) for output in outputs.records)


def tell_steady(context: Context, engine: Engine, name: str, rows: int, context_len: int) -> None:
    shape = engine.model.shape
    found = engine.steady(rows, context_len, 6 if context.is_reduced else _STEPS)
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
