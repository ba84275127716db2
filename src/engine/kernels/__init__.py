"""Kernels: one op per file, each with a plain torch reference; a KernelSet binds one implementation to every op."""

from .kernel_set import KernelSet, select_kernels
from .linear import PackedLinear
from .paged_attention import AttentionStep

__all__ = ["AttentionStep", "KernelSet", "PackedLinear", "select_kernels"]
