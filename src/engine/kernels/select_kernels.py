"""Chooses the implementation of every op, once at start, with the reason of each choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from ...config.cpu_features import NoKernels, choose_level, this_cpu, wanted_level
from ...config.cpu_kernels import EAGER, HeadDims, stage_table, torch_table
from ...config.cpu_library import LibrarySpec
from .cpu.library import CpuLibrary, load_library
from .cpu_set import cpu_kernels, dtype_name
from .kernel_set import ONE_ROW, KernelSet, pack_rounding_experts
from .linear import quantise_linear_reference, rounding_rows


def select_kernels(
    device: torch.device | str,
    dtype: torch.dtype,
    head_dims: HeadDims,
    features: str | None = None,
    *,
    kv_dtype: torch.dtype | None = None,
    is_eager: bool = False,
    quantization: str | None = None,
    activations: str | None = None,
    rounds_as_stored: bool = True,
    batch_invariant: bool = False,
    load: Callable[[LibrarySpec], CpuLibrary] = load_library,
) -> KernelSet:
    """Chooses an implementation for every op.

    CUDA devices have their own set: gpu/kernels.py.

    Args:
        device: where the model runs.
        dtype: of weights and activations.
        head_dims: elements per attention head, or all sizes that the layers have.
        features: `auto`, a level of config/cpu_features.py, or `torch`; None for what STOKER_CPU_FEATURES says.
        kv_dtype: of keys and values; None for `dtype`.
        is_eager: use only torch's operations.
        quantization: `model.quantization`; without it the set has no C++ kernels for quantised weights.
        activations: `int8` if inputs of the layers that are quantised here are rounded.
        rounds_as_stored: whether inputs are rounded too where the method of a checkpoint does so.
        batch_invariant: `model.batch_invariant`: a row's results are bitwise the same in any batch.
        load: returns a library, or raises NoKernels with the reason to use torch. The default compiles a missing one.
    Returns:
        The set; its table names the choice and the reason for every stage.

    Raises ValueError for features that do not exist or that the CPU lacks.
    """
    device = torch.device(device)
    torchs = partial(torch_kernels, quantization=quantization, activations=activations, batch_invariant=batch_invariant)
    if device.type != "cpu":
        return torchs(EAGER if is_eager else f"the only kernels for {device.type}")
    kv_dtype = kv_dtype or dtype
    try:
        if is_eager:
            raise NoKernels(EAGER)
        level, reason = choose_level(features or wanted_level(), this_cpu())
        # Raises before anything is compiled.
        stage_table(level, reason, dtype_name(dtype), head_dims, dtype_name(kv_dtype))
        library = load(LibrarySpec(level, batch_invariant, quantization is not None))
    except NoKernels as error:
        return torchs(str(error))
    if library.compile_seconds is not None:
        reason += f", compiled in {library.compile_seconds:.1f} s"
    return cpu_kernels(
        library,
        dtype,
        head_dims,
        kv_dtype,
        reason,
        quantization,
        activations=activations,
        rounds_as_stored=rounds_as_stored,
        batch_invariant=batch_invariant,
    )


def torch_kernels(
    reason: str, *, quantization: str | None = None, activations: str | None = None, batch_invariant: bool = False
) -> KernelSet:
    """torch's ops. reason: why there are no others, for the table."""
    table = torch_table(reason, quantization, activations=activations, batch_invariant=batch_invariant)
    chosen = replace(ONE_ROW if batch_invariant else KernelSet(), table=table)
    if activations is None:
        return chosen
    quantise_linear = rounding_rows(quantise_linear_reference)
    return replace(chosen, quantise_linear=quantise_linear, pack_experts=pack_rounding_experts)
