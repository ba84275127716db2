"""Whole steps of the CUDA runner: what a graph captures, with torch's operations between the kernels.

Nothing in a step may wait for the device or copy from the host. Tensors without memory cannot be read, and only
operations that are known to be a launch, or nothing, are allowed: check another one before adding it to the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stoker.engine.kernels.capture import NotCapturable
from stoker.engine.kernels.gpu.kernels import gpu_kernels
from stoker.engine.models.decoder import Decoder
from stoker.engine.runner.cuda.device_step import DeviceStep
from stoker.engine.runner.cuda.slot_arena import SlotArena
from stoker.engine.runner.kv_cache import KVCache
from stoker.engine.runner.step_shape import StepFlag, StepShape
from stoker.model.cache_groups import all_in_one
from stoker.model.feed_forwards import MLP
from stoker.model.mixers import Attention, RopeSpec
from stoker.model.spec import LayerSpec, ModelSpec

CAPTURABLE = frozenset(
    (
        *("empty.memory_format", "empty_like.default", "zeros.default", "select.int", "slice.Tensor"),
        *("index.Tensor", "searchsorted.Tensor", "sub.Tensor", "arange.default", "add.Tensor", "lt.Scalar"),
        *(
            "masked_fill_.Scalar",
            "to.dtype",
            "linear.default",
            "permute.default",
            "alias.default",
            "mm.out",
            "add_.Tensor",
        ),
    )
)
_SHAPES = {
    "decode, fast path": StepShape(1, 1, 1),
    "decode": StepShape(64, 64, 1, StepFlag.FULL_SAMPLER),
    "mixed, few tokens": StepShape(64, 256, 0),
    "mixed": StepShape(8192, 256, 0, StepFlag.FULL_SAMPLER),
}
_SLOTS, _TOKENS, _LENGTH, _BLOCK_SIZE = 256, 8192, 8192, 64


class OnlyCapturable(TorchDispatchMode):
    """Refuses every operation of torch that is not listed."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if str(func).removeprefix("aten.") not in CAPTURABLE:
            raise NotCapturable(
                f"{func}: does it wait for the device, or read host memory? If not, add it to CAPTURABLE"
            )
        return func(*args, **kwargs or {})


class _NoWeights:
    def read(self, name: str, into: torch.Tensor) -> None:
        """Read nothing: tensors on `meta` have no memory."""

    def view(self, name: str, dtype: torch.dtype) -> None:
        """Return None: there is no file."""

    def grouped(self, name: str, dtype: torch.dtype) -> None:
        """Return None: there are no codes."""


def whole_steps(
    name: str, hidden: int, intermediate: int, vocab_size: int, num_heads: int, num_kv_heads: int, head_dim: int
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Steps of a model of two layers, a first and a last one: there is no other kind."""
    attention = Attention(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        head_norm="head",
        rope=RopeSpec(theta=1e6),
    )
    model_spec = ModelSpec(
        architecture="Qwen3ForCausalLM",
        model_type="qwen3",
        hidden_size=hidden,
        vocab_size=vocab_size,
        max_position_embeddings=_LENGTH,
        is_tied=True,
        layers=(LayerSpec(mixer=attention, feed_forward=MLP(width=intermediate)),) * 2,
    )
    for what, shape in _SHAPES.items():
        yield f"{name} step, {what}", partial(_compute, model_spec, attention, shape)


def _compute(model_spec: ModelSpec, attention: Attention, shape: StepShape) -> None:
    device = torch.device("meta")
    with torch.inference_mode():
        model = Decoder(model_spec, gpu_kernels(device, _SLOTS), _LENGTH, torch.bfloat16, device)
        model.load(_NoWeights())
        heads = [(attention.num_kv_heads, attention.head_dim)] * 2
        zeros = partial(torch.zeros, device=device)
        cache = KVCache(all_in_one(model_spec.num_layers), 1000, _BLOCK_SIZE, heads, torch.bfloat16, zeros=zeros)
        arena = SlotArena(_SLOTS, _LENGTH, _BLOCK_SIZE, model_spec.vocab_size, device)
        step = DeviceStep(model, cache, arena, _SLOTS, _TOKENS, _LENGTH, _BLOCK_SIZE, device, has_guides=False)
        step.send_nothing(shape)
        with OnlyCapturable():
            step.compute(shape)
