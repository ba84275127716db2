"""Speed of an engine with a real shape and random weights: steady decode, prefill, a whole workload.

Measures every engine in the same way: an engine is a subclass of `Served`. Imports no engine, so that engines with
different packages run in processes of their own. The requests come from requests.py.
"""

from __future__ import annotations

import itertools
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .part import Context
from .requests import prompt_of
from .shapes import LLAMA, QWEN, SMALL, Shape, decode_cost, prefill_cost, workload_cost

_STEPS = 64  # measured steps of steady decode
_WARM_STEPS = 8
_PREFILLS = 5
_RESERVED_BYTES = 8 * 2**30  # of a GPU, beside weights and KV cache: CUDA, activations, captured graphs
_KV_TOKENS = 256 * (2048 + 512)


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
    shape, kv_tokens = {"qwen3-0.6b": QWEN, "llama-3.1-8b": LLAMA}[name], _KV_TOKENS
    if context.config.memory_bytes is not None:
        left = context.config.memory_bytes - _RESERVED_BYTES - shape.weights_bytes - 2 * shape.vocab * shape.hidden
        kv_tokens = min(kv_tokens, max(left // shape.kv_bytes_per_token, 0) // 1024 * 1024)
    return Model(shape, kv_tokens, 256, 16384)


@dataclass(frozen=True, slots=True)
class Steady:
    seconds: float  # of a step
    spread: float
    tokens_in_cache: float  # of all rows, mean over the steps
    host_seconds: float  # processor time of a step, of all threads


class Served(ABC):
    """An engine that is stepped in this process."""

    def __init__(self, context: Context, model: Model) -> None:
        self.model = model
        self._warm_steps = 1 if context.is_reduced else _WARM_STEPS
        self._names = itertools.count()

    @abstractmethod
    def request(self, name: str, prompt_ids: list[int], answer: int) -> Any:
        """A request of the engine that generates exactly `answer` tokens."""

    @abstractmethod
    def add(self, request: Any) -> None: ...

    @abstractmethod
    def step(self) -> Any:
        """Executes a step. The outputs may be those of an earlier step, if the engine plans ahead."""

    @abstractmethod
    def count(self, outputs: Any) -> int:
        """Number of tokens in the outputs of a step."""

    @abstractmethod
    def names_in(self, outputs: Any) -> Iterable[str]:
        """Names of the requests that received tokens in a step."""

    @abstractmethod
    def abort(self, names: list[str]) -> None: ...

    @property
    @abstractmethod
    def has_work(self) -> bool: ...

    def serve(self, lengths: list[tuple[int, int]]) -> float:
        """Seconds to serve all requests. lengths: numbers of prompt and output tokens of each request."""
        wanted = sum(answer for _, answer in lengths)
        requests = [self._made(prompt, answer)[1] for prompt, answer in lengths]
        began, got = time.perf_counter(), 0
        for request in requests:
            self.add(request)
        while got < wanted and self.has_work:
            got += self.count(self.step())
        seconds = time.perf_counter() - began
        while self.has_work:
            got += self.count(self.step())
        if got != wanted:
            raise AssertionError(f"generated {got} tokens instead of {wanted}")
        return seconds

    def steady(self, rows: int, context_len: int, steps: int = _STEPS) -> Steady:
        """Measures steps of `rows` decoding sequences, each with about `context_len` tokens in the cache.

        The time of a step is that of all steps, measured as a whole, divided by their number.
        """
        prompt = max(1, context_len - steps // 2 - self._warm_steps)
        names, got = self._start(rows, prompt)
        for _ in range(self._warm_steps):
            got += self.count(self.step())
        cached = rows * prompt + got
        times, host = [time.perf_counter()], time.process_time()
        for _ in range(steps):
            count = self.count(self.step())
            if count != rows:
                raise AssertionError(f"a step of steady decode generated {count} tokens for {rows} rows")
            times.append(time.perf_counter())
        host = time.process_time() - host
        self._abort_all(names)
        durations = sorted(later - sooner for sooner, later in itertools.pairwise(times))
        tenths = statistics.quantiles(durations, n=10)
        mean = (times[-1] - times[0]) / steps
        return Steady(mean, (tenths[-1] - tenths[0]) / mean, cached + rows * steps / 2, host / steps)

    def run_steps(self, rows: int, context_len: int, work: Callable[[Callable[[], object]], None]) -> None:
        """Calls `work` with a function that executes one step of steady decode."""
        names, _ = self._start(rows, context_len)
        for _ in range(self._warm_steps):
            self.step()
        work(self.step)
        self._abort_all(names)

    def _made(self, prompt: int, answer: int) -> tuple[str, Any]:
        """Name of a new request, and the request."""
        name = f"request-{next(self._names)}"
        return name, self.request(name, prompt_of(prompt, name, self.model.shape.vocab), answer)

    def _start(self, rows: int, prompt: int) -> tuple[list[str], int]:
        """Computes `rows` prompts. Returns the names of their requests and the number of tokens generated so far."""
        made = [self._made(prompt, self.model.max_len - prompt) for _ in range(rows)]
        for _, request in made:
            self.add(request)
        got, first = 0, set[str]()
        while len(first) < rows:  # the first rows already generate tokens before the last prompt is computed
            outputs = self.step()
            got += self.count(outputs)
            first.update(self.names_in(outputs))
        return [name for name, _ in made], got

    def _abort_all(self, names: list[str]) -> None:
        self.abort(names)
        while self.has_work:
            self.step()


def record_steady(context: Context, engine: Served, name: str, rows: int, context_len: int) -> None:
    model, steps = engine.model, 2 if context.is_reduced else _STEPS
    of = f"{model.shape.name}, {rows} x {context_len}"
    if rows * (context_len + steps) > model.kv_tokens:
        reason = f"skipped: the KV cache has memory for {model.kv_tokens} tokens"
        context.record(name, of, error=reason, is_time=False)
        return
    found = engine.steady(rows, context_len, steps)
    floor = context.seconds_at_best(*decode_cost(model.shape, rows, found.tokens_in_cache))
    context.record(name, of, found.seconds * 1e3, "ms/step", floor and floor * 1e3, found.spread)
    context.record(f"{name}, tokens", of, rows / found.seconds, "token/s", floor and rows / floor)
    context.record(f"{name}, processor time", of, found.host_seconds * 1e3, "ms/step")


def record_prefill(context: Context, engine: Served, name: str, tokens: int) -> None:
    """Records the time from a request to its first token."""
    shape = engine.model.shape
    engine.serve([(tokens, 1)])
    times = [engine.serve([(tokens, 1)]) for _ in range(1 if context.is_reduced else _PREFILLS)]
    floor = context.seconds_at_best(*prefill_cost(shape, tokens))
    middle = statistics.median(times)
    spread = (max(times) - min(times)) / middle
    context.record(name, f"{shape.name}, {tokens} tokens", middle * 1e3, "ms", floor and floor * 1e3, spread)


def record_workload(context: Context, engine: Served, name: str, lengths: list[tuple[int, int]]) -> None:
    shape = engine.model.shape
    answers = sum(answer for _, answer in lengths)
    seconds = engine.serve(lengths)
    parts = [context.seconds_at_best(*cost) for cost in workload_cost(shape, lengths)]
    floor = answers / sum(part for part in parts if part is not None) if None not in parts else None
    of = f"{shape.name}, {len(lengths)} requests, {answers} tokens"
    context.record(name, of, answers / seconds, "token/s", floor)
