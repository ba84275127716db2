"""Compiles the launches of a model's step for Hopper, on a machine with no GPU, and tells what came out, as JSON.

A program of its own: the tests run kernels in the interpreter, which is chosen when triton is imported. Nothing is
launched. Run as `python -m tests.kernels.compile_launches`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

TARGET = GPUTarget("cuda", 90, 32)
ROWS, BLOCK_SIZE = 5, 64
MEMORY = re.compile(r"\b(ld\.global|st\.global|red\.|atom\.|cp\.async|bra)[^;]*;")


class Hopper:
    """What the compiler asks of a driver."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass
class Step:
    query_start: torch.Tensor = field(default_factory=lambda: torch.zeros(ROWS + 1, dtype=torch.int32))
    context_lens: torch.Tensor = field(default_factory=lambda: torch.zeros(ROWS, dtype=torch.int32))
    block_tables: torch.Tensor = field(default_factory=lambda: torch.zeros(ROWS, 32, dtype=torch.int32))
    max_query_len: int = 9
    max_context_len: int = 99
    plans: dict = field(default_factory=dict)


found: list[dict[str, Any]] = []


def compiled(function: JITFunction, *arguments: Any, grid: Any, **options: Any) -> None:
    kernel = function.run(*arguments, grid=grid, warmup=True, **options)
    ptx = kernel.asm["ptx"]
    before, waits, _ = ptx.partition("griddepcontrol.wait")
    found.append(
        {
            "kernel": f"{function.__module__.rpartition('.')[2]}.{function.__name__.lstrip('_')}",
            "may_start_early": bool(kernel.metadata.launch_pdl),
            "waits": bool(waits),
            "before_it_waits": sorted({match[1] for match in MEMORY.finditer(before)}),
            "shared_bytes": kernel.metadata.shared,
        }
    )


def compile_all() -> None:
    from stoker.engine.kernels.gpu.add_layer_norm import add_layer_norm_gpu
    from stoker.engine.kernels.gpu.add_rms_norm import add_rms_norm_gpu
    from stoker.engine.kernels.gpu.attention_variant import AttentionVariant
    from stoker.engine.kernels.gpu.decode_attention import decode_attention, decode_workspace
    from stoker.engine.kernels.gpu.embed import embed_gpu
    from stoker.engine.kernels.gpu.gelu_and_mul import gelu_and_mul_gpu
    from stoker.engine.kernels.gpu.linear_few import linear_few
    from stoker.engine.kernels.gpu.prefill_attention import prefill_attention
    from stoker.engine.kernels.gpu.rope_and_store import rope_and_store_gpu
    from stoker.engine.kernels.gpu.silu_and_mul import silu_and_mul_gpu

    def numbers(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.bfloat16)

    heads, kv_heads, head_dim, hidden, inner = 16, 8, 128, 1024, 3072
    x, norm, ids = numbers(ROWS, hidden), numbers(hidden), torch.zeros(ROWS, dtype=torch.int64)
    cache, q = numbers(2, kv_heads, BLOCK_SIZE, head_dim), numbers(ROWS, heads, head_dim)
    embed_gpu(ids, numbers(100, hidden))
    add_rms_norm_gpu(x, x, norm, 1e-6)
    add_layer_norm_gpu(x, x, norm, norm, 1e-6)
    gelu_and_mul_gpu(numbers(ROWS, 2 * inner), True)
    gelu_and_mul_gpu(numbers(ROWS, 2 * inner), False)
    silu_and_mul_gpu(numbers(ROWS, 2 * inner))
    for tokens in (1, 64):
        few = numbers(tokens, hidden)
        linear_few(few, numbers(4096, hidden), norm=norm, residual=few)
        linear_few(few, numbers(2 * inner, hidden), norm=norm, residual=few, is_gated=True)
        linear_few(numbers(tokens, inner), numbers(hidden, inner))
        linear_few(few, numbers(9000, hidden), numbers(9000))
    rope_and_store_gpu(
        numbers(ROWS, (heads + 2 * kv_heads) * head_dim), numbers(head_dim), numbers(head_dim), 1e-6,
        torch.zeros(8, head_dim), ids, ids, cache, cache, heads, kv_heads,
    )  # fmt: skip
    workspace = decode_workspace(ROWS, heads, kv_heads, head_dim, "cpu", 8)
    for variant in (AttentionVariant(), AttentionVariant(window=100)):
        decode_attention(q, cache, cache, Step(), 0.1, q.flatten(1), workspace, variant)
        prefill_attention(q, cache, cache, Step(), 0.1, q.flatten(1), 4, variant)


if __name__ == "__main__":
    driver.set_active(Hopper())
    torch.cuda.get_device_name = lambda: "NVIDIA H200"
    JITFunction.__getitem__ = lambda function, grid: partial(compiled, function, grid=grid)
    compile_all()
    json.dump(found, sys.stdout)
