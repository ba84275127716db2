"""What each stage of a step runs on this CPU, and why: the table of a plan and of the start. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..model.quantised import OWN_CODES, shown
from .cpu_features import Level, NoKernels, choose_level, this_cpu, wanted_level
from .cpu_library import LibrarySpec, check_obtainable

STAGES = ("add_rms_norm", "linear", "rope_and_store", "paged_attention", "activation", "sampling", "decode_step")
MAX_HEAD_DIM = 512  # the largest that is tested
KERNEL_DTYPES = ("float32", "bfloat16")
HeadDims = int | Sequence[int]  # elements of an attention head; several if layers differ (ModelSpec.head_dims)
EAGER = "model.enforce_eager"  # the reason why there are no kernels
_ONE_ORDER, _ONE_ROW = "; the same sums in any batch", "; one row at a time for the same sums in any batch: slow"


def keeps_twelve_bits() -> bool:
    """Whether a start on this machine keeps bfloat16 weights in 12 bits."""
    try:
        level, _ = choose_level(wanted_level(), this_cpu())
        check_obtainable(LibrarySpec(level))
    except (NoKernels, ValueError):
        return False
    return level.has_twelve_bits


def keeps_codes() -> bool:
    """Whether a start on this machine keeps the codes of quantised checkpoints."""
    try:
        level, _ = choose_level(wanted_level(), this_cpu())
        check_obtainable(LibrarySpec(level, has_quantised=True))
    except (NoKernels, ValueError):
        return False
    return True


def takes_heads(head_dims: HeadDims) -> bool:
    """Whether the C++ attention kernels support these head sizes."""
    return all(head_dim % 16 == 0 and head_dim <= MAX_HEAD_DIM for head_dim in _each(head_dims))


def _each(head_dims: HeadDims) -> Sequence[int]:
    return [head_dims] if isinstance(head_dims, int) else head_dims


def stage_table(
    level: Level,
    reason: str,
    dtype: str,
    head_dims: HeadDims,
    kv_dtype: str,
    quantization: str | None = None,
    *,
    activations: str | None = None,
    batch_invariant: bool = False,
) -> dict[str, str]:
    """What each stage runs, and why, with the C++ library of a level.

    reason: why this level was chosen.
    quantization: scheme of the weights of the linear layers.
    activations: `model.activation_quantization`.
    batch_invariant: `model.batch_invariant`.
    Raises NoKernels for a dtype that the library does not have.
    """
    if dtype not in KERNEL_DTYPES:
        raise NoKernels(f"no C++ kernels for {dtype}")
    table = dict.fromkeys(STAGES, f"c++ {level.name}: {reason}")
    if quantization is not None:
        table["linear"] += f"; {shown(quantization, activations)}"
    elif dtype == "bfloat16" and level.has_twelve_bits:
        table["linear"] += "; bfloat16 kept in 12 bits, exactly"
    elif not level.multiplies(dtype):
        table["linear"] = f"torch: its product of {dtype} matrices"
    if not takes_heads(head_dims):
        shown_dims = ", ".join(map(str, _each(head_dims)))
        table["rope_and_store"] = table["paged_attention"] = (
            f"torch: head size {shown_dims}; the C++ kernels support multiples of 16 up to {MAX_HEAD_DIM}"
        )
    if kv_dtype not in (dtype, "int8"):
        table["rope_and_store"] = table["paged_attention"] = (
            f"torch: keys and values in {kv_dtype}, activations in {dtype}"
        )
    if batch_invariant:
        table = _with_batch_invariance(table)
    if missing := [stage for stage, kernel in table.items() if kernel.startswith("torch")]:
        table["decode_step"] = f"op by op: {', '.join(missing)} in torch"
    else:
        table["decode_step"] = "replayed: captured at the first step of each batch size"
    return table


def of_whole_texts(table: Mapping[str, str], *, is_causal: bool) -> dict[str, str]:
    """The stages of a model that generates nothing, from those of one that does.

    is_causal: its attention has a cache.
    """
    names = {} if is_causal else {"paged_attention": "attend_whole"}
    left_out = ("sampling", "decode_step")
    return {names.get(stage, stage): kernel for stage, kernel in table.items() if stage not in left_out}


def torch_table(
    reason: str, quantization: str | None = None, *, activations: str | None = None, batch_invariant: bool = False
) -> dict[str, str]:
    """What each stage runs without the library."""
    table = dict.fromkeys(STAGES, f"torch: {reason}")
    if quantization not in (None, OWN_CODES):
        table["linear"] += f"; {shown(quantization, activations)}, dequantised again for every product: slow"
    return _with_batch_invariance(table) if batch_invariant else table


def _with_batch_invariance(table: dict[str, str]) -> dict[str, str]:
    """Adds the effect of `model.batch_invariant` to each stage."""
    return {stage: kernel + (_ONE_ROW if kernel.startswith("torch") else _ONE_ORDER) for stage, kernel in table.items()}


def planned_kernels(
    dtype: str,
    head_dims: HeadDims,
    kv_dtype: str | None = None,
    *,
    is_eager: bool = False,
    quantization: str | None = None,
    activations: str | None = None,
    batch_invariant: bool = False,
) -> dict[str, str]:
    """The table that a start on this machine will print, as far as it is known before the library is compiled.

    kv_dtype: of keys and values; None for `dtype`.
    """
    try:
        if is_eager:
            raise NoKernels(EAGER)
        level, reason = choose_level(wanted_level(), this_cpu())
        check_obtainable(LibrarySpec(level, is_batch_invariant=batch_invariant, has_quantised=quantization is not None))
        return stage_table(
            level,
            reason,
            dtype,
            head_dims,
            kv_dtype or dtype,
            quantization,
            activations=activations,
            batch_invariant=batch_invariant,
        )
    except (NoKernels, ValueError) as error:
        return torch_table(str(error), quantization, activations=activations, batch_invariant=batch_invariant)
