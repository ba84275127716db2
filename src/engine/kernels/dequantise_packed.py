"""The values of quantised matrices of checkpoints in plain torch, in float32.

Each function returns some rows, [rows, inputs], of a matrix of [outputs, inputs]. The first row is a multiple of 32, so
that no word of codes is divided. Codes of several elements in a word are a stream of bits, the lowest first.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...config.checkpoint.stored import Packed

Parts = Mapping[str, torch.Tensor]
ROWS_STEP = 32
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the place in a word of each of its eight outputs
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def dequantise(packed: Packed, parts: Parts, rows: slice) -> torch.Tensor:
    """rows: of the whole matrix. parts: as they are in the files. Raises IndexError for a group that does not exist."""
    match packed.method.kind:
        case "gptq":
            return _gptq(packed, parts, rows)
        case "awq":
            return _awq(packed, parts, rows)
        case "packed":
            return _packed(packed, parts, rows)
        case "integers":
            zeros = None if packed.method.is_symmetric else _numbers(parts["weight_zero_point"])
            scales = _numbers(parts["weight_scale"])
            return _scaled(parts["weight"][rows].float(), packed, rows, scales, zeros, parts.get("weight_g_idx"))
        case "fp8":
            name = next(name for name in parts if name != "weight")
            return _scaled(parts["weight"][rows].float(), packed, rows, _numbers(parts[name]))
        case "mxfp4":
            return _scaled(_fp4(parts[packed.method.codes][rows]), packed, rows, _numbers(parts["weight_scale"]))
        case "nvfp4":
            whole = parts[packed.method.whole_scale].float()
            scales = _numbers(parts["weight_scale"])
            scales = scales / whole if packed.method.divides_scale else scales * whole
            return _scaled(_fp4(parts[packed.method.codes][rows]), packed, rows, scales)
        case "bnb_int8":
            return parts["weight"][rows].float() * (parts["SCB"][rows] / 127)[:, None]
        case "bnb_4bit":
            return _bnb_4bit(packed, parts, rows)


def unpack_bits(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """words: [..., W] int32. Returns the first `count` numbers of `bits` bits of each row, [..., count] int32."""
    if 32 % bits == 0:
        shifts = torch.arange(0, 32, bits, dtype=torch.int32)
        return ((words[..., None] >> shifts) & ((1 << bits) - 1)).flatten(-2)[..., :count]
    wide = torch.nn.functional.pad(words.to(torch.int64) & 0xFFFFFFFF, (0, 1))
    starts = torch.arange(count) * bits
    first, shifts = starts // 32, starts % 32
    pairs = wide[..., first] | wide[..., first + 1] << 32
    return ((pairs >> shifts) & ((1 << bits) - 1)).to(torch.int32)


def _gptq(packed: Packed, parts: Parts, rows: slice) -> torch.Tensor:
    bits, (_, inputs) = packed.method.bits, packed.shape
    codes = unpack_bits(parts["qweight"][:, rows].T.contiguous(), bits, inputs)
    words = slice(rows.start * bits // 32, -(-rows.stop * bits // 32))
    zeros = unpack_bits(parts["qzeros"][:, words].contiguous(), bits, codes.shape[0])
    if packed.method.adds_one:
        zeros = (zeros + 1) & ((1 << bits) - 1)
    groups = _groups(parts.get("g_idx"), packed, len(parts["scales"]))
    scales = parts["scales"][:, rows].float()
    return (codes - zeros[groups].T) * scales[groups].T


def _awq(packed: Packed, parts: Parts, rows: slice) -> torch.Tensor:
    words = slice(rows.start // 8, rows.stop // 8)

    def in_order(name: str) -> torch.Tensor:
        codes = unpack_bits(parts[name][:, words].contiguous(), 4, rows.stop - rows.start)
        return codes.view(len(codes), -1, 8)[..., AWQ_ORDER].flatten(1)

    groups = _groups(None, packed, len(parts["scales"]))
    scales = parts["scales"][:, rows].float()
    return (in_order("qweight") - in_order("qzeros")[groups]).T * scales[groups].T


def _packed(packed: Packed, parts: Parts, rows: slice) -> torch.Tensor:
    bits, (outputs, inputs) = packed.method.bits, packed.shape
    codes = unpack_bits(parts["weight_packed"][rows], bits, inputs) - (1 << (bits - 1))
    scales, zeros = _numbers(parts["weight_scale"]), None
    if not packed.method.is_symmetric:
        count = -(-outputs // packed.block[0])
        zeros = unpack_bits(parts["weight_zero_point"].T.contiguous(), bits, count).T - (1 << (bits - 1))
    return _scaled(codes.float(), packed, rows, scales, zeros, parts.get("weight_g_idx"))


def _bnb_4bit(packed: Packed, parts: Parts, rows: slice) -> torch.Tensor:
    inputs, block = packed.shape[1], packed.block[1]
    first, last = rows.start * inputs, rows.stop * inputs  # even, as rows.start is
    pairs = parts["weight"].flatten()[first // 2 : -(-last // 2)]
    codes = torch.stack((pairs >> 4, pairs & 15), -1).flatten()[: last - first]
    own = slice(first // block, -(-last // block))
    scales = parts["weight.absmax"][own]
    if packed.outer is not None:
        size, offset = packed.outer
        outer = parts["weight.nested_absmax"][torch.arange(own.start, own.stop) // size]
        scales = parts["weight.nested_quant_map"][scales.int()] * outer + offset
    of_element = scales.repeat_interleave(block)[first - own.start * block :][: last - first]
    return (parts["weight.quant_map"][codes.int()] * of_element).view(-1, inputs)


def _scaled(
    values: torch.Tensor,
    packed: Packed,
    rows: slice,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    order: torch.Tensor | None = None,
) -> torch.Tensor:
    """(values - zeros) * scales, whose blocks are `packed.block`. order: the group of each input."""
    outputs, inputs = packed.shape
    grid = -(-outputs // packed.block[0]), -(-inputs // packed.block[1])
    of_rows = torch.arange(rows.start, rows.stop) // packed.block[0]
    groups = _groups(order, packed, grid[1])
    if zeros is not None:
        values = values - zeros.reshape(grid)[of_rows][:, groups]
    return values * scales.reshape(grid)[of_rows][:, groups]


def _groups(order: torch.Tensor | None, packed: Packed, count: int) -> torch.Tensor:
    """The group of each input."""
    if order is None:
        return torch.arange(packed.shape[1]) // packed.block[1]
    groups = order.long()
    if groups.numel() and not 0 <= int(groups.min()) <= int(groups.max()) < count:
        raise IndexError(f"has groups from {int(groups.min())} to {int(groups.max())}; there are {count}")
    return groups


def _fp4(pairs: torch.Tensor) -> torch.Tensor:
    """pairs: [rows, inputs / 2] uint8, the first element in the lower half."""
    levels = torch.tensor((*FP4, *(-level for level in FP4)))
    return levels[torch.stack((pairs & 15, pairs >> 4), -1).flatten(1).int()]


def _numbers(scales: torch.Tensor) -> torch.Tensor:
    """Scales of any dtype as float32; uint8 holds exponents of two."""
    return exponents(scales) if scales.dtype == torch.uint8 else scales.float()


def exponents(codes: torch.Tensor) -> torch.Tensor:
    """codes: uint8 or float8_e8m0fnu. Returns powers of two, float32."""
    return codes.view(torch.float8_e8m0fnu).float()
