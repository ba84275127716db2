"""Steps of the engine as its runner computes them, on torch's "meta" device: all launches of a step, one after another.

What a kernel's own case cannot show: that what one kernel leaves is what the next one takes, in type, shape and
divisibility, and that nothing on the way reads a number on the host, which no CUDA graph could hold.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch

from stoker.config import load_deployment, read_model_facts
from stoker.engine.kernels.gpu.kernels import gpu_kernels
from stoker.engine.models.registry import model_class
from stoker.engine.runner.cuda.buckets import StepShape
from stoker.engine.runner.cuda.slot_arena import SlotArena
from stoker.engine.runner.cuda.step_program import StepProgram
from stoker.engine.runner.kv_cache import KVCache

_MODELS = Path(__file__).parents[2] / "benchmarks" / "models"
_META = torch.device("meta")
_ROWS, _TOKENS, _MODEL_LEN, _BLOCK_SIZE, _BLOCKS = 256, 2048, 8192, 64, 1000


class _NoWeights:
    """On "meta" there are no numbers."""

    def read(self, name: str, into: torch.Tensor) -> None:
        pass

    def view(self, name: str, dtype: torch.dtype) -> None:
        pass


@cache
def _program(model: str) -> StepProgram:
    """Of two layers: of the last one only the tokens that are wanted are computed, the others launch as the first."""
    arguments = {
        "model": str(_MODELS / model),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "hf_overrides": {"num_hidden_layers": 2},
    }
    facts = read_model_facts(load_deployment([], arguments=arguments))
    kernels = gpu_kernels(_META, "compiled", max_rows=_ROWS)
    decoder = model_class(facts)(facts, kernels, _MODEL_LEN, torch.bfloat16, _META)
    decoder.load(_NoWeights())
    shape = (facts.num_layers, _BLOCKS, facts.num_kv_heads, _BLOCK_SIZE, facts.head_dim)
    cache = KVCache(*shape, torch.bfloat16, device=_META)
    arena = SlotArena(_ROWS, _MODEL_LEN, _BLOCK_SIZE, facts.vocab_size, _META)
    return StepProgram(decoder, cache.layers, arena, _ROWS, _TOKENS, _MODEL_LEN, _BLOCK_SIZE, _META)


def engine_steps(model: str) -> list[tuple[str, Callable[[], object]]]:
    """model: a folder of benchmarks/models."""
    shapes = (
        StepShape(1, 1, is_decode=True, is_lean=True),
        StepShape(64, 64, is_decode=True, is_lean=False),
        StepShape(256, 256, is_decode=True, is_lean=True),
        StepShape(512, _ROWS, is_decode=False, is_lean=True),
    )
    return [
        (
            f"{model}, step of {shape.num_tokens} tokens in {shape.num_rows} rows",
            partial(_compute, model, shape),
        )
        for shape in shapes
    ]


def _compute(model: str, shape: StepShape) -> None:
    with torch.inference_mode():
        _program(model).compute(shape)
