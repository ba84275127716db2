"""Part `transformers`: the same work with `generate` and with continuous batching, also with random weights."""

from __future__ import annotations

import gc
import time
from functools import partial
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.generation import ContinuousBatchingConfig
from transformers.utils import logging

from .part import Case, Context
from .requests import prompt_of, workload
from .shapes import LLAMA, QWEN, SMALL, Shape, decode_cost, workload_cost

_STEPS = 64  # measured tokens per row


class Peer:
    def __init__(self, context: Context, shape: Shape) -> None:
        self.shape = shape
        self.device = torch.device(context.config.device)
        config = AutoConfig.from_pretrained(shape.folder)
        config.eos_token_id = None
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        with self.device:
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
        self.model = model.eval()
        self.model.generation_config.eos_token_id = None
        logging.set_verbosity_error()

    def generate(self, rows: int, prompt: int, answer: int, seed: str, **options: Any) -> float:
        """Seconds of a batch of prompts of one length. options: of `generate`."""
        ids = [prompt_of(prompt, f"{seed} {row}", self.shape.vocab) for row in range(rows)]
        given = torch.tensor(ids, device=self.device)
        self.wait()
        began = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(
                given, attention_mask=torch.ones_like(given), max_new_tokens=answer, min_new_tokens=answer,
                do_sample=False, pad_token_id=0, **options,
            )  # fmt: skip
        self.wait()
        seconds = time.perf_counter() - began
        assert out.shape[1] == prompt + answer
        return seconds

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def peer_of(context: Context, shape: Shape) -> Peer:
    """Keeps one shape in memory at a time, so that its caches have enough memory."""
    if (found := context.shared("peer", dict)).get("shape") is not shape:
        found.clear()
        gc.collect()
        if context.config.device == "cuda":
            torch.cuda.empty_cache()
        found.update(shape=shape, peer=Peer(context, shape))
    peer: Peer = found["peer"]
    return peer


def generate(context: Context, shape: Shape, rows: int, length: int, **options: Any) -> None:
    """Time of a step: the difference between a long and a short output, which cancels the prompt's time."""
    peer, steps = peer_of(context, shape), 3 if context.is_reduced else _STEPS
    prompt = max(1, length - steps // 2)
    peer.generate(rows, prompt, 2 + steps if options else 2, "warm-up", **options)
    short = peer.generate(rows, prompt, 2, "short", **options)
    long = peer.generate(rows, prompt, 2 + steps, "long", **options)
    seconds = (long - short) / steps
    floor = context.seconds_at_best(*decode_cost(shape, rows, rows * length))
    settings = "".join(f", {name}={value}" for name, value in options.items())
    of = f"{shape.name}, {rows} x {length}"
    context.record(f"generate, sdpa{settings}", of, seconds * 1e3, "ms/step", floor and floor * 1e3)


def batching(context: Context, shape: Shape) -> None:
    """Continuous batching with its default settings and paged attention by SDPA, without flash-attn.

    It is stopped at the deadline: then only tokens of finished requests count, and the record contains a note.
    """
    peer, lengths = peer_of(context, shape), workload(context)
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=max(answer for _, answer in lengths), eos_token_id=-1, pad_token_id=0
    )
    batching_config = (
        ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64) if context.is_reduced else None
    )  # None: default
    tokens, finished, note = 0, 0, None
    with (
        torch.no_grad(),  # not inference mode: its thread writes to tensors created here
        peer.model.continuous_batching_context_manager(
            settings, continuous_batching_config=batching_config, timeout=5
        ) as manager,
    ):
        began = time.perf_counter()
        for number, (prompt, answer) in enumerate(lengths):
            ids = prompt_of(prompt, f"request {number}", shape.vocab)
            manager.add_request(ids, request_id=f"r{number}", max_new_tokens=answer, eos_token_id=-1)
        while finished < len(lengths):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                if result.error is not None:
                    raise RuntimeError(result.error)
                finished, tokens = finished + 1, tokens + len(result.generated_tokens)
            elif result is None and not manager.is_running():
                raise RuntimeError("the batching thread ended before all requests were finished")
            if context.config.deadline - time.time() < 8 and finished < len(lengths):
                note = f"stopped with {finished} of {len(lengths)} requests finished"
                break
        seconds = time.perf_counter() - began
    parts = [context.seconds_at_best(*cost) for cost in workload_cost(shape, lengths)]
    answers = sum(answer for _, answer in lengths)
    floor = answers / sum(part for part in parts if part is not None) if None not in parts else None
    of = f"{shape.name}, {len(lengths)} requests, {answers} tokens"
    context.record("continuous batching, sdpa", of, tokens / seconds, "token/s", floor, error=note)


def cases(context: Context) -> list[Case]:
    if context.is_reduced:
        return [
            Case("generate, 2 x 8", partial(generate, shape=SMALL, rows=2, length=8), 0.0),
            Case("continuous batching", partial(batching, shape=SMALL), 0.0),
        ]
    made = [
        Case(f"generate, {shape.name}, {rows} x {length}", partial(generate, shape=shape, rows=rows, length=length), 8)
        for shape, rows, length in ((LLAMA, 1, 512), (LLAMA, 64, 512), (QWEN, 1, 512), (QWEN, 64, 512))
    ]
    # Runs last: the static cache compiles the model, which may take all of the remaining time.
    static = partial(generate, shape=QWEN, rows=1, length=512, cache_implementation="static")
    return [*made, Case("continuous batching", partial(batching, shape=QWEN), 20), Case("static cache", static, 30)]
