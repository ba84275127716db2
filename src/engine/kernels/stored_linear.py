"""A packed linear layer that comes from a file: its tensors must be what its kernel reads.

Kernels check nothing: sizes come from the layer, addresses within it from the packed weight itself (the exceptions of
cpu/twelve_bits.h, the format of cpu/grouped.h). So whatever would make them read elsewhere is checked here, once.
"""

from __future__ import annotations

import torch

from ...model.quantised import CODES_DEEP, GROUP, PANEL_HEAD, PANEL_WIDTH, TWELVE_BITS_STEP, twelve_bit_bytes
from .grouped_panels import FORMAT_BYTES, PANELS_DTYPE, layout_in, set_order, set_stride
from .linear import PackedLinear
from .panel_packing import CODES, DEPTH_STEPS, QUANTISED_STEP, ROUNDED_STEP

_END_OF_LIST = 0xFFFFFFFF  # of cpu/twelve_bits.h


def stored_tensors(packed: PackedLinear) -> dict[str, torch.Tensor]:
    """The tensors of a layer without pieces, by field; without addresses of this process."""
    assert packed.grouped is None, "codes that torch multiplies"
    assert packed.codes is None, "codes of a GPU"
    named = {"weight": packed.weight, "bias": packed.bias, "scales": packed.scales, "order": packed.order}
    found = {name: tensor for name, tensor in named.items() if tensor is not None}
    if packed.weight.dtype == PANELS_DTYPE:
        found["scales"] = found["scales"].clone()
        set_order(found["scales"], None)
    return found


def placed(packed: PackedLinear, stride: int) -> PackedLinear:
    """A layer without pieces whose tensors were read from a file. stride: outputs of all pieces.

    Raises ValueError, with the reason, if the kernels would not read them as they were written.
    """
    problem = _problem(packed)
    if problem:
        raise ValueError(problem)
    if packed.weight.dtype == PANELS_DTYPE and packed.scales is not None:
        set_order(packed.scales, packed.order)
        set_stride(packed.scales, stride)
    return packed


def _problem(packed: PackedLinear) -> str:
    weight, inputs, step = packed.weight, packed.in_features, DEPTH_STEPS.get(packed.dtype)
    if packed.bias is not None and (packed.bias.shape != (packed.out_features,) or packed.bias.dtype != packed.dtype):
        return f"a bias of shape {list(packed.bias.shape)} in {packed.bias.dtype}"
    is_grouped = weight.dtype == PANELS_DTYPE
    if is_grouped and packed.is_packed and not packed.rounds_rows:
        return _problem_of_groups(packed)
    if packed.order is not None or is_grouped:
        return "an order of inputs that its format does not have"
    if weight.dtype in CODES.values():
        return _problem_of_codes(packed)
    if packed.scales is not None or packed.rounds_rows:
        return "scales of elements that are not codes"
    if not packed.is_packed:
        return _unless(weight, (packed.out_features, inputs), packed.dtype)
    if step is None or inputs % step:
        return f"{inputs} inputs in {packed.dtype}, which are not packed"
    if weight.dtype == torch.uint8:
        return _problem_of_twelve_bits(packed)
    return _unless(weight, (_panels(packed) * PANEL_WIDTH, inputs), packed.dtype)


def _panels(packed: PackedLinear) -> int:
    return -(-packed.out_features // PANEL_WIDTH)


def _unless(tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """What is wrong unless a tensor has this shape and dtype."""
    if tensor.shape == shape and tensor.dtype == dtype:
        return ""
    return f"{list(tensor.shape)} in {tensor.dtype}, not {list(shape)} in {dtype}"


def _problem_of_codes(packed: PackedLinear) -> str:
    """What is wrong with int8 or int4 codes (quantised.py); empty if nothing is."""
    panels, inputs, scales = _panels(packed), packed.in_features, packed.scales
    if scales is None:
        return "codes without scales"
    if packed.is_packed and inputs % (ROUNDED_STEP if packed.rounds_rows else QUANTISED_STEP):
        return f"{inputs} inputs in codes, which are not packed"
    if packed.weight.dtype == torch.int8:
        return _unless(packed.weight, (panels, inputs, PANEL_WIDTH), torch.int8) or _unless(
            scales, (panels, PANEL_WIDTH), torch.float32
        )
    return _unless(packed.weight, (panels, -(-inputs // CODES_DEEP), PANEL_WIDTH), torch.int32) or _unless(
        scales, (panels, -(-inputs // GROUP), PANEL_WIDTH), torch.bfloat16
    )


def _problem_of_twelve_bits(packed: PackedLinear) -> str:
    """Each panel names its first exception; a search ends at the end of a list, the last of which ends the weight."""
    panels, inputs, weight = _panels(packed), packed.in_features, packed.weight
    start = twelve_bit_bytes(packed.out_features, inputs) - 8 * panels  # of the exceptions
    num_entries, rest = divmod(weight.nbytes - start, 8)
    if packed.dtype != torch.bfloat16 or inputs % TWELVE_BITS_STEP or weight.dim() != 1:
        return "12 bits of a layer that has no such form"
    if rest or num_entries < panels:
        return f"{weight.nbytes} bytes in 12 bits, at least {start + 8 * panels} are needed"
    words = weight[: start + 8 * num_entries].view(torch.int64)
    firsts = words[PANEL_HEAD // 2 // 8 : start // 8 : start // panels // 8]
    if bool(((firsts < 0) | (firsts >= num_entries)).any()) or int(words[-1]) & _END_OF_LIST != _END_OF_LIST:
        return "exceptions outside of its list"
    return ""


def _problem_of_groups(packed: PackedLinear) -> str:
    form, order, inputs = packed.scales, packed.order, packed.in_features
    if form is None or form.dtype != torch.uint8 or form.shape != (FORMAT_BYTES,):
        return "groups without their format"
    layout = layout_in(form, inputs)
    if layout is None or layout.problem(inputs) or packed.dtype not in DEPTH_STEPS:
        return "groups in a format that kernels do not read"
    if packed.weight.nbytes != (needed := layout.num_bytes(packed.out_features, inputs)) or packed.weight.dim() != 1:
        return f"{packed.weight.nbytes} bytes of groups, not {needed}"
    if order is None:
        return ""
    is_sound = order.shape == (inputs,) and order.dtype == torch.int32
    if not is_sound or int(order.min()) < 0 or int(order.max()) >= inputs:
        return "an order of inputs that it does not have"
    return ""
