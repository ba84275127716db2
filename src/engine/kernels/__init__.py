"""Kernels: one op per file, each with a plain torch reference; a KernelSet binds one implementation to every op."""

from .attention_variant import AttentionVariant
from .head_variant import PLAIN_HEADS, HeadVariant
from .kernel_set import KernelSet, select_kernels
from .linear import PackedLinear
from .paged_attention import AttentionStep

__all__ = [
    "PLAIN_HEADS",
    "AttentionStep",
    "AttentionVariant",
    "HeadVariant",
    "KernelSet",
    "PackedLinear",
    "select_kernels",
]
