"""Part `memory moves`: what goes to host memory and comes back. Weights and cache of an engine that sleeps at level 1,
and a prefix that the KV cache has evicted.

The floor is the time to copy the bytes at the measured speed of copies between pinned host memory and the device.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from functools import partial

import torch

from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams

from .engine import Engine
from .part import Case, Context
from .requests import prompt_of
from .speed import model_named

_ROUNDS = 5
_COPIED_BYTES = 1 << 30
_PREFIX = 4096


def copy_speed(context: Context) -> float | None:
    """Bytes per second from pinned host memory to the device; None without a device."""
    if context.config.device != "cuda":
        return None

    def measure() -> float:
        source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
        target = torch.empty_like(source, device="cuda", pin_memory=False)
        seconds = []
        for _ in range(_ROUNDS):
            torch.cuda.synchronize()
            began = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        return _COPIED_BYTES / min(seconds)

    return context.shared("copy speed", measure)


def sleep(context: Context, name: str) -> None:
    """Twice: the first sleep takes host memory for the weights that later ones find faster."""
    engine = Engine(context, model_named(name, context), enable_sleep_mode=True)
    engine.finish_start()
    prompt = [(32, 8)]
    engine.serve(prompt)
    shape, speed = engine.model.shape.name, copy_speed(context)
    floor = None if speed is None else engine.core.info.weights_bytes / speed * 1e3  # the bus is as fast both ways
    for number in ("first", "second"):
        before = _used_gib(context)
        began = time.perf_counter()
        engine.core.free_memory()
        asleep = time.perf_counter()
        context.record(f"sleep at level 1, {number}", shape, (asleep - began) * 1e3, "ms", floor)
        context.record(f"memory of the device awake, {number}", shape, before, "GiB")
        context.record(f"memory of the device asleep, {number}", shape, _used_gib(context), "GiB")
        began = time.perf_counter()
        engine.core.take_memory()
        engine.serve([(1, 1)])
        context.record(f"first token after sleep, {number}", shape, (time.perf_counter() - began) * 1e3, "ms", floor)
        engine.serve(prompt)


def _used_gib(context: Context) -> float:
    if context.config.device != "cuda":
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return float(total - free) / (1 << 30)


def stored(context: Context, name: str) -> None:
    """A prefix is computed, evicted by another one, and read from host memory."""
    length = 128 if context.is_reduced else _PREFIX
    model = model_named(name, context)
    model = replace(model, kv_tokens=length + 64, max_rows=1, max_len=length + 32)
    engine = Engine(context, model, kv_offloading_size=0.01 if context.is_reduced else 8, num_gpu_blocks_override=None)
    engine.finish_start()

    def first_token(seed: str) -> tuple[float, int]:
        """Milliseconds, and tokens of the prompt that were not computed."""
        ids = prompt_of(length + 1, seed, engine.core.info.vocab_size)
        sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        request = EngineRequest(request_id=seed, inputs=RequestInputs(ids, sampling))
        began, cached = time.perf_counter(), 0
        engine.core.add(replace(request, request_id=f"{seed} {began}"))
        while engine.core.has_work:
            for output in engine.core.step().records:
                cached = output.num_cached_tokens
        seconds = time.perf_counter() - began
        store = engine.core._store
        assert store is not None
        store._waiter.submit(lambda: None).result()  # type: ignore[attr-defined]  # until blocks have arrived
        return seconds * 1e3, cached

    first_token("warm-up")
    computed, read = [], []
    for number in range(1 if context.is_reduced else _ROUNDS):
        computed.append(first_token(f"prefix {number}")[0])
        first_token(f"other {number}")
        milliseconds, cached = first_token(f"prefix {number}")
        if not cached:
            raise AssertionError("nothing was read")
        read.append(milliseconds)
    speed, shape = copy_speed(context), f"{model.shape.name}, {length} tokens"
    floor = None if speed is None else length * model.shape.kv_bytes_per_token / speed * 1e3
    context.record("prefix computed", shape, statistics.median(computed), "ms")
    context.record("prefix read from host memory", shape, statistics.median(read), "ms", floor)
    context.record("computed / read", shape, statistics.median(computed) / statistics.median(read), "x")


def cases(context: Context) -> list[Case]:
    names = ["qwen3-0.6b"] if context.is_reduced else ["qwen3-0.6b", "llama-3.1-8b"]
    return [
        Case(f"{work.__name__}, {name}", partial(work, name=name), 0.0 if context.is_reduced else 8.0)
        for name in names
        for work in (sleep, stored)
    ]
