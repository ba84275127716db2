"""Kernels: one op per file, each with a plain torch reference; a KernelSet binds one implementation to every op."""

from .attention_variant import AttentionVariant
from .experts import ExpertGate, ExpertWeights, PackedExperts
from .gated_delta import GatedDeltaWeights
from .head_variant import PLAIN_HEADS, HeadVariant
from .kernel_set import KernelSet, select_kernels
from .linear import PackedLinear
from .paged_attention import AttentionStep
from .route_experts import Routing

__all__ = [
    "PLAIN_HEADS",
    "AttentionStep",
    "AttentionVariant",
    "ExpertGate",
    "ExpertWeights",
    "GatedDeltaWeights",
    "HeadVariant",
    "KernelSet",
    "PackedExperts",
    "PackedLinear",
    "Routing",
    "select_kernels",
]
