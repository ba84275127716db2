"""Whole steps of the runner of CUDA devices: what a graph captures, with torch's operations between the kernels.

Nothing in it may wait for the device or copy from the host. Tensors without memory cannot be read, and operations that
are known to be only a launch, or none, are listed: whoever needs another one finds out first what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stoker.config import ModelFacts
from stoker.config.resolve.resolved import RopeFacts
from stoker.engine.kernels.gpu.kernels import gpu_kernels
from stoker.engine.models.decoder import Decoder
from stoker.engine.runner.cuda.buckets import StepShape
from stoker.engine.runner.cuda.slot_arena import SlotArena
from stoker.engine.runner.cuda.step_program import StepProgram

CAPTURABLE = frozenset(
    (
        *("empty.memory_format", "empty_like.default", "zeros.default", "select.int", "slice.Tensor"),
        *("index.Tensor", "searchsorted.Tensor", "sub.Tensor", "arange.default", "add.Tensor", "lt.Scalar"),
        *("masked_fill_.Scalar", "to.dtype", "linear.default"),
    )
)
_SHAPES = {
    "decode lean": StepShape(1, 1, is_decode=True, is_lean=True),
    "decode": StepShape(64, 64, is_decode=True, is_lean=False),
    "mixed, few tokens": StepShape(64, 256, is_decode=False, is_lean=True),
    "mixed": StepShape(8192, 256, is_decode=False, is_lean=False),
}
_SLOTS, _TOKENS, _LENGTH, _BLOCK_SIZE = 256, 8192, 8192, 64


class NotCapturable(Exception):
    """A step calls what a graph may not be able to hold."""


class OnlyCapturable(TorchDispatchMode):
    """Refuses every other operation of torch."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if str(func).removeprefix("aten.") not in CAPTURABLE:
            raise NotCapturable(f"{func}: is it known to wait for nothing, and to read nothing of the host's memory?")
        return func(*args, **kwargs or {})


class _NoWeights:
    def read(self, name: str, into: torch.Tensor) -> None:
        """There is no memory to fill."""

    def view(self, name: str, dtype: torch.dtype) -> None:
        """It lies nowhere."""


def whole_steps(
    name: str, hidden: int, intermediate: int, vocab_size: int, num_heads: int, num_kv_heads: int, head_dim: int
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Of two layers, the first and the last, which are all there are."""
    facts = ModelFacts.model_construct(
        architecture="Qwen3ForCausalLM", hidden_act="silu", hidden_size=hidden, intermediate_size=intermediate,
        vocab_size=vocab_size, num_layers=2, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
        rms_norm_eps=1e-6, tie_word_embeddings=True, attention_bias=False, attention_out_bias=False, mlp_bias=False,
        qk_norm=True, sliding_window=None, sliding_window_layers=(False, False), rope=RopeFacts(theta=1e6),
        max_position_embeddings=_LENGTH,
    )  # fmt: skip
    for what, shape in _SHAPES.items():
        yield f"{name} step, {what}", partial(_compute, facts, shape)


def _compute(facts: ModelFacts, shape: StepShape) -> None:
    device = torch.device("meta")
    with torch.inference_mode():
        model = Decoder(facts, gpu_kernels(device, _SLOTS), _LENGTH, torch.bfloat16, device)
        model.load(_NoWeights())
        cache = torch.empty(1000, facts.num_kv_heads, _BLOCK_SIZE, facts.head_dim, dtype=torch.bfloat16, device=device)
        arena = SlotArena(_SLOTS, _LENGTH, _BLOCK_SIZE, facts.vocab_size, device)
        program = StepProgram(
            model, [(cache, cache)] * facts.num_layers, arena, _SLOTS, _TOKENS, _LENGTH, _BLOCK_SIZE, device
        )
        program.send_nothing(shape)
        with OnlyCapturable():
            program.compute(shape)
