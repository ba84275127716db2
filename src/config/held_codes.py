"""Decides which layout keeps the matrices of a quantised checkpoint in its own codes. Imports no torch."""

from __future__ import annotations

from typing import Literal

CodesLayout = Literal["panels", "rows"]  # of CPUs (engine/kernels/cpu/grouped.h), of GPUs (kernels/packed_codes.py)


def codes_layout(device: str, *, cpu_keeps_codes: bool, is_eager: bool, is_batch_invariant: bool) -> CodesLayout | None:
    """Layout of quantised matrices; None if they are dequantised when they are loaded.

    Args:
        device: `device.device`, cpu or cuda.
        cpu_keeps_codes: whether the CPU has kernels for them (cpu_kernels.keeps_codes).
        is_eager: `model.enforce_eager`: on a CPU only torch's operations; on a GPU kernels run without graphs.
        is_batch_invariant: `model.batch_invariant`: on a GPU only torch's operations.
    """
    if device == "cpu":
        return "panels" if cpu_keeps_codes and not is_eager else None
    return "rows" if device == "cuda" and not is_batch_invariant else None
