"""Replaces modules of a transformers model by this engine's layers where both compute the same.

Linear layers that read the same tensor become one product: a forward pass on the meta device has shown that they do.
A norm becomes the engine's if that reproduces the module on random input. Everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import nn

from ..kernels import KernelSet
from ..kernels.add_layer_norm import add_layer_norm_reference
from ..kernels.add_rms_norm import add_rms_norm_reference
from ..layers.embedding import TiedEmbedding
from ..layers.linear import Linear
from ..layers.norm import LayerNorm, RMSNorm

_EPS = ("variance_epsilon", "eps", "epsilon", "norm_eps", "layer_norm_eps")


class MergedProjections:
    """Several linear layers of one input, computed together when the first of them is called."""

    def __init__(self, linear: Linear) -> None:
        self._linear = linear
        self._sizes = list(linear.parts.values())
        self._input: torch.Tensor | None = None
        self._parts: Sequence[torch.Tensor] = ()

    def part(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """x: [..., in_features]. The result is a view of the result of all layers."""
        if self._input is not x:
            self._parts, self._input = torch.split(_product(self._linear, x), self._sizes, dim=-1), x
        found = self._parts[index]
        if index == len(self._sizes) - 1:
            self._input, self._parts = None, ()
        return found


class Projection(nn.Module):
    """Replaces a linear layer. weight: its shape and dtype, which some modules look at; it has no values."""

    def __init__(self, merged: MergedProjections, index: int, weight: torch.Tensor) -> None:
        super().__init__()
        self._merged, self._index = merged, index
        self.weight = weight.detach().to("meta")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._merged.part(self._index, x)


class SingleProjection(nn.Module):
    """Replaces a linear layer that shares its input with no other. weight: as in Projection."""

    def __init__(self, linear: Linear, weight: torch.Tensor) -> None:
        super().__init__()
        self._linear = linear
        self.weight = weight.detach().to("meta")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _product(self._linear, x)


def _product(linear: Linear, x: torch.Tensor) -> torch.Tensor:
    width = sum(linear.parts.values())
    if x.is_meta:
        return x.new_empty(*x.shape[:-1], width)
    return linear(x.reshape(-1, x.shape[-1]).contiguous()).view(*x.shape[:-1], width)


class ScaledEmbedding(nn.Module):
    """Replaces an embedding that is tied to the output layer, whose packed matrix it reads."""

    def __init__(self, output: Linear, kernels: KernelSet, scale: float) -> None:
        super().__init__()
        self._embedding = TiedEmbedding(output, kernels, scale)
        self._width = output.in_features

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._embedding(token_ids.reshape(-1)).view(*token_ids.shape, self._width)


class Norm(nn.Module):
    """Replaces the model's own norm. weight: as in Projection."""

    def __init__(self, norm: RMSNorm | LayerNorm, kernels: KernelSet, weight: torch.Tensor) -> None:
        super().__init__()
        self._norm, self._kernels = norm, kernels
        self.weight = weight.detach().to("meta")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_meta:
            return torch.empty_like(x)
        return self._norm(self._kernels, x.reshape(-1, x.shape[-1]).contiguous())[0].view(x.shape)


def is_plain_linear(module: nn.Module) -> bool:
    """Whether it computes x @ W.T + b and nothing else."""
    return type(module) is nn.Linear and not module._forward_hooks and not module._forward_pre_hooks


class FoundNorm(NamedTuple):
    """What a module computes: an RMS norm or a layer norm, with `offset` added to its weight."""

    kind: type[RMSNorm | LayerNorm]
    eps: float
    offset: float

    def made(self, name: str, module: nn.Module, dtype: torch.dtype, device: torch.device) -> RMSNorm | LayerNorm:
        """name: of the module in the checkpoint."""
        width = len(module.get_parameter("weight"))
        if self.kind is RMSNorm:
            return RMSNorm(name, width, self.eps, dtype, device, offset=self.offset)
        has_bias = module._parameters.get("bias") is not None
        return LayerNorm(name, width, self.eps, dtype, device, offset=self.offset, has_bias=has_bias)


def norms(model: nn.Module) -> Iterator[tuple[str, nn.Module, FoundNorm]]:
    """Modules that the engine's norms reproduce, by name."""
    verdicts: dict[tuple[type[nn.Module], int, float, int], FoundNorm | None] = {}
    for name, module in model.named_modules():
        weight, names = module._parameters.get("weight"), {each for each, _ in module.named_parameters()}
        is_candidate = "norm" in type(module).__name__.lower() and names in ({"weight"}, {"weight", "bias"})
        eps = next((value for key in _EPS if isinstance(value := getattr(module, key, None), float)), None)
        if not is_candidate or weight is None or weight.ndim != 1 or eps is None:
            continue
        key = type(module), len(weight), eps, len(names)
        if key not in verdicts:
            verdicts[key] = _probed(module, len(weight), eps)
        if (found := verdicts[key]) is not None:
            yield name, module, found


def _probed(module: nn.Module, width: int, eps: float) -> FoundNorm | None:
    """Probe a norm in float32, on rows of which some are so small that eps counts."""
    generator = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(width, generator=generator) for _ in range(2))
    x = torch.randn(4, width, generator=generator) * torch.tensor([[1.0], [30.0], [1e-2], [eps**0.5]])
    probe = deepcopy(module)
    has_bias = module._parameters.get("bias") is not None
    probe._parameters["weight"] = nn.Parameter(weight, requires_grad=False)
    if has_bias:
        probe._parameters["bias"] = nn.Parameter(bias, requires_grad=False)
    try:
        with torch.no_grad():
            found = probe(x)
    except Exception:  # it takes other inputs
        return None
    if not isinstance(found, torch.Tensor) or found.shape != x.shape:
        return None
    for offset in (0.0, 1.0):
        normed = add_rms_norm_reference(x, None, weight + offset, eps)[0]
        if not has_bias and torch.allclose(found, normed, 1e-4, 1e-5):
            return FoundNorm(RMSNorm, eps, offset)
        normed = add_layer_norm_reference(x, None, weight + offset, bias if has_bias else None, eps)[0]
        if torch.allclose(found, normed, 1e-4, 1e-5):
            return FoundNorm(LayerNorm, eps, offset)
    return None


def embedding_scale(embedding: nn.Module, dtype: torch.dtype) -> float | None:
    """What an embedding multiplies the rows of its matrix by; None if it does anything else."""
    if not isinstance(embedding, nn.Embedding) or embedding.max_norm is not None:
        return None
    ids = torch.tensor([[0, embedding.num_embeddings - 1]])
    probe = deepcopy(embedding)
    signs = torch.ones(embedding.num_embeddings, 1, dtype=dtype)
    signs[-1] = -1
    probe._parameters["weight"] = nn.Parameter(signs.expand(-1, embedding.embedding_dim), requires_grad=False)
    try:
        with torch.no_grad():
            found = probe(ids)
    except Exception:  # it takes other inputs
        return None
    scale = float(found[0, 0, 0])
    expected = (signs[ids[0]] * scale).expand(-1, embedding.embedding_dim)[None]
    return scale if found.shape == expected.shape and torch.equal(found, expected) else None


def replace_module(model: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, new)


def described(fused: Iterable[str]) -> str:
    """Kinds of fused modules, each once, in the order of the model."""
    return ", ".join(dict.fromkeys(fused)) or "nothing"
