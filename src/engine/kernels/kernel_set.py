"""KernelSet: the implementation of every op, chosen once at start, with the reason of each choice.

Models call the ops through the set they are given and never ask which implementation it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .add_rms_norm import AddRmsNorm, add_rms_norm_reference
from .draw import Draw, draw_reference
from .linear import Embed, Linear, PackLinear, embed_reference, linear_reference, pack_linear_reference
from .paged_attention import PagedAttention, paged_attention_reference
from .rope_and_store import RopeAndStore, rope_and_store_reference
from .silu_and_mul import SiluAndMul, silu_and_mul_reference
from .softmax_mass import SoftmaxMass, softmax_mass_reference
from .top_tokens import TopTokens, top_tokens_reference


@dataclass(frozen=True, slots=True)
class KernelSet:
    """The ops by name; each file of this package documents its own. The default is plain torch on any device."""

    add_rms_norm: AddRmsNorm = add_rms_norm_reference
    pack_linear: PackLinear = pack_linear_reference
    linear: Linear = linear_reference
    embed: Embed = embed_reference
    rope_and_store: RopeAndStore = rope_and_store_reference
    paged_attention: PagedAttention = paged_attention_reference
    silu_and_mul: SiluAndMul = silu_and_mul_reference
    draw: Draw = draw_reference
    softmax_mass: SoftmaxMass = softmax_mass_reference
    top_tokens: TopTokens = top_tokens_reference
    table: dict[str, str] = field(default_factory=dict)  # stage -> "kernel: reason", what start-up prints


STAGES = ("add_rms_norm", "linear", "rope_and_store", "paged_attention", "silu_and_mul")


def select_kernels(device: torch.device | str, dtype: torch.dtype, head_dim: int) -> KernelSet:
    """Chooses an implementation for every op.

    Args:
        device: where the model runs.
        dtype: of weights, activations and KV cache.
        head_dim: numbers per attention head.
    Returns:
        The set; its table names the choice and the reason for every stage.
    """
    device = torch.device(device)
    return KernelSet(table=dict.fromkeys(STAGES, f"torch: the only kernels for {device.type}"))
