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
from stoker.engine.layers.expert_lists import ExpertLists
from stoker.engine.models.decoder import Decoder
from stoker.engine.runner.cuda.device_step import DeviceStep
from stoker.engine.runner.cuda.slot_arena import SlotArena
from stoker.engine.runner.kv_cache import KVCache
from stoker.engine.runner.state_cache import StateCache
from stoker.engine.runner.step_shape import StepFlag, StepShape
from stoker.model.cache_groups import model_cache_groups
from stoker.model.feed_forwards import MLP
from stoker.model.mixers import Attention, RopeSpec
from stoker.model.spec import LayerSpec, ModelSpec

CAPTURABLE = frozenset(
    (
        *("empty.memory_format", "empty_like.default", "zeros.default", "select.int", "slice.Tensor"),
        *("index.Tensor", "searchsorted.Tensor", "sub.Tensor", "arange.default", "add.Tensor", "lt.Scalar"),
        *("masked_fill_.Scalar", "to.dtype", "linear.default", "permute.default", "alias.default", "mm.out"),
        *("add_.Tensor", "mul.Tensor", "div.Tensor", "div.Tensor_mode", "sum.dim_IntList", "clamp_.default"),
        *("softplus.default", "sqrt.default", "gather.default", "embedding.default", "contiguous.default"),
        *("view.default", "unsqueeze.default", "transpose.int", "chunk.default", "flatten.using_ints"),
        "matmul.default",
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
    yield from steps_of(name, model_spec)


def steps_of(name: str, model_spec: ModelSpec) -> Iterator[tuple[str, Callable[[], object]]]:
    for what, shape in _SHAPES.items():
        yield f"{name} step, {what}", partial(_compute, model_spec, shape)


def _compute(model_spec: ModelSpec, shape: StepShape) -> None:
    device, block_size = torch.device("meta"), max(_BLOCK_SIZE, model_spec.tokens_of_vector)
    with torch.inference_mode():
        model = Decoder(model_spec, gpu_kernels(device, _SLOTS), _LENGTH, torch.bfloat16, device)
        if not model.is_capturable:
            raise NotCapturable(f"{model_spec.model_type} has ops that read the device")
        for part in model.loadables():
            if not isinstance(part, ExpertLists):  # their values are checked, and tensors on `meta` have none
                part.load(_NoWeights())
        zeros, groups = partial(torch.zeros, device=device), model_cache_groups(model_spec, _LENGTH, is_hybrid=True)
        states = StateCache(model_spec, _SLOTS, torch.bfloat16, zeros=zeros) if model_spec.has_states else None
        cache = KVCache(
            groups,
            1000 * groups.num_groups,
            block_size,
            model_spec.keeps.tensors,
            torch.bfloat16,
            zeros=zeros,
            states=states,
            tensors_by_layer=[None if keeps is None else keeps.tensors for keeps in model_spec.kept_by_layer],
        )
        arena = SlotArena(_SLOTS, _LENGTH, block_size, model_spec.vocab_size, device, groups.num_groups)
        step = DeviceStep(model, cache, arena, _SLOTS, _TOKENS, _LENGTH, block_size, device, has_guides=False)
        step.send_nothing(shape)
        with OnlyCapturable():
            step.compute(shape)
