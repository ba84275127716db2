"""The dtype that a model is computed in where the deployment names none: on this machine, or on a device of a plan."""

from __future__ import annotations


def own_dtype(
    stored: str, *, is_on_cpu: bool, has_bfloat16: bool, is_quantised: bool, is_interpreted: bool = False
) -> tuple[str, str]:
    """The dtype, and why.

    Args:
        stored: dtype of the checkpoint.
        has_bfloat16: whether the device computes with bfloat16. A CPU without it can, slowly.
        is_quantised: whether the checkpoint has weights as codes.
        is_interpreted: whether Triton's interpreter takes the place of a GPU.
    """
    if stored == "bfloat16" and is_interpreted:
        return "float32", "a bfloat16 checkpoint; Triton's interpreter has no bfloat16"
    if stored == "float16" and is_on_cpu and is_quantised:
        return "bfloat16", "quantised weights in a float16 checkpoint; float32, which is exact, needs twice the memory"
    if stored == "float16" and is_on_cpu:
        return "float32", "a float16 checkpoint; CPUs compute float16 in float32 anyway"
    if stored == "bfloat16" and not has_bfloat16:
        if is_on_cpu:
            return stored, "the checkpoint's own format; this CPU has no bfloat16 instructions: slow"
        return "float16", "a bfloat16 checkpoint; this GPU has no bfloat16"
    return stored, "the checkpoint's own format"
