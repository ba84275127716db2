"""Writers of quantised checkpoints, from the text of each format: what the engine must read, and what it stands for.

Each takes a float32 matrix [outputs, inputs] and returns the tensors of the layer, by the ends of their names, and the
float32 matrix that they represent. Bits are packed by numpy, not by the engine's code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Parts = dict[str, torch.Tensor]
GROUP = 32
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
NF4 = torch.tensor(
    [
        *(-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0),
        *(0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0),
    ]
)


def pack_bits(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """codes: [rows, n]. Returns [rows, ceil(n * bits / 32)] int32, a stream of bits, the lowest first."""
    each = (codes.numpy()[..., None] >> np.arange(bits)) & 1
    stream = each.reshape(len(codes), -1).astype(np.uint8)
    stream = np.pad(stream, ((0, 0), (0, -stream.shape[1] % 32)))
    return torch.from_numpy(np.packbits(stream, axis=1, bitorder="little").view(np.int32).copy())


def _grouped(weight: torch.Tensor, group: int, order: torch.Tensor | None = None) -> torch.Tensor:
    """The group of each input."""
    return torch.arange(weight.shape[1]) // group if order is None else order


def _asymmetric(weight: torch.Tensor, bits: int, of_input: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Codes [out, in], scales and zero points [out, groups], values [out, in]; zero points are at least 1."""
    groups = int(of_input.max()) + 1
    low = torch.stack([weight[:, of_input == g].amin(1) for g in range(groups)], 1).clamp(max=-1e-3)
    high = torch.stack([weight[:, of_input == g].amax(1) for g in range(groups)], 1).clamp(min=1e-3)
    scales = ((high - low) / ((1 << bits) - 1)).half().float()
    zeros = (-low / scales).round().clamp(1, (1 << bits) - 1)
    codes = (weight / scales[:, of_input] + zeros[:, of_input]).round().clamp(0, (1 << bits) - 1)
    values = (codes - zeros[:, of_input]) * scales[:, of_input]
    return codes.int(), scales, zeros.int(), values


def gptq(weight: torch.Tensor, bits: int = 4, *, stored_less: int = 1, is_ordered: bool = False) -> tuple[Parts, Any]:
    order = None
    if is_ordered:
        generator = torch.Generator().manual_seed(weight.shape[1])
        order = (torch.randperm(weight.shape[1], generator=generator) // GROUP).int()
    codes, scales, zeros, values = _asymmetric(weight, bits, _grouped(weight, GROUP, order))
    parts = {
        "qweight": pack_bits(codes, bits).T.contiguous(),
        "qzeros": pack_bits(zeros.T - stored_less, bits),
        "scales": scales.T.contiguous().half(),
        "g_idx": _grouped(weight, GROUP, order).int(),
    }
    return parts, values


def awq(weight: torch.Tensor) -> tuple[Parts, Any]:
    codes, scales, zeros, values = _asymmetric(weight, 4, _grouped(weight, GROUP))

    def packed(rows: torch.Tensor) -> torch.Tensor:  # nibble i of a word is output (0, 2, 4, 6, 1, 3, 5, 7)[i]
        turned = rows.view(len(rows), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].flatten(1)
        return pack_bits(turned, 4)

    parts = {"qweight": packed(codes.T.contiguous()), "qzeros": packed(zeros.T.contiguous())}
    return {**parts, "scales": scales.T.contiguous().half()}, values


def packed(weight: torch.Tensor, bits: int = 4, group: int = GROUP, *, is_symmetric: bool = True) -> tuple[Parts, Any]:
    of_input = _grouped(weight, group or weight.shape[1])
    codes, scales, zeros, values = _asymmetric(weight, bits, of_input)
    if is_symmetric:
        half = 1 << (bits - 1)
        values = (codes - half) * scales[:, of_input]
    parts = {
        "weight_packed": pack_bits(codes, bits),
        "weight_scale": scales.half(),
        "weight_shape": torch.tensor(weight.shape),
    }
    if not is_symmetric:
        parts["weight_zero_point"] = pack_bits(zeros.T.contiguous(), bits).T.contiguous()
    return parts, values


def integers(weight: torch.Tensor) -> tuple[Parts, Any]:
    scales = (weight.abs().amax(1, keepdim=True) / 127).bfloat16()
    codes = (weight / scales.float()).round().clamp(-128, 127).to(torch.int8)
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales.float()


def fp8(weight: torch.Tensor, block: tuple[int, int] | None = None, end: str = "weight_scale") -> tuple[Parts, Any]:
    rows, columns = block or weight.shape
    grid = -(-weight.shape[0] // rows), -(-weight.shape[1] // columns)
    scales = torch.empty(grid)
    of_element = torch.empty_like(weight)
    for row in range(grid[0]):
        for column in range(grid[1]):
            place = slice(row * rows, (row + 1) * rows), slice(column * columns, (column + 1) * columns)
            scales[row, column] = weight[place].abs().amax() / 448
            of_element[place] = scales[row, column]
    codes = (weight / of_element).to(torch.float8_e4m3fn)
    return {"weight": codes, end: scales if block else scales.reshape(())}, codes.float() * of_element


def exponents(weight: torch.Tensor) -> tuple[Parts, Any]:
    """fp8 with scales that are powers of two, for blocks of 64 x 64."""
    parts, _ = fp8(weight, (64, 64))
    scales = torch.exp2(parts["weight_scale"].log2().ceil())
    of_element = scales.repeat_interleave(64, 0).repeat_interleave(64, 1)[: weight.shape[0], : weight.shape[1]]
    codes = (weight / of_element).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scales.to(torch.float8_e8m0fnu)}, codes.float() * of_element


def _fp4_codes(weight: torch.Tensor, scales: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    of_element = scales.repeat_interleave(group, 1)
    codes = ((weight / of_element)[..., None] - FP4).abs().argmin(-1)
    return (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8), FP4[codes] * of_element


def mxfp4(weight: torch.Tensor) -> tuple[Parts, Any]:
    exponent = (weight.view(len(weight), -1, 32).abs().amax(-1) / 6).log2().ceil()
    pairs, values = _fp4_codes(weight, torch.exp2(exponent), 32)
    return {"weight_packed": pairs, "weight_scale": (exponent + 127).to(torch.uint8)}, values


def nvfp4(weight: torch.Tensor) -> tuple[Parts, Any]:
    whole = 448 * 6 / weight.abs().amax()
    scales = (weight.view(len(weight), -1, 16).abs().amax(-1) / 6 * whole).to(torch.float8_e4m3fn)
    pairs, values = _fp4_codes(weight, scales.float() / whole, 16)
    return {"weight_packed": pairs, "weight_scale": scales, "weight_global_scale": whole.view(1)}, values


def bnb_4bit(weight: torch.Tensor, *, is_double: bool = False) -> tuple[Parts, Any]:
    flat = weight.flatten().view(-1, 64)
    scales = flat.abs().amax(1)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(weight.shape)}
    parts = {"weight.quant_map": NF4.clone()}
    if is_double:
        table, offset = torch.linspace(-1, 1, 256), float(scales.mean())
        outer = (scales - offset).view(-1, 16).abs().amax(1) if len(scales) % 16 == 0 else None
        assert outer is not None
        of_scale = outer.repeat_interleave(16)
        own = ((scales - offset) / of_scale)[:, None].sub(table).abs().argmin(1)
        state |= {"nested_blocksize": 16, "nested_offset": offset, "nested_dtype": "float32"}
        scales = table[own] * of_scale + offset
        parts |= {"weight.absmax": own.to(torch.uint8), "weight.nested_absmax": outer}
        parts["weight.nested_quant_map"] = table
    else:
        parts["weight.absmax"] = scales
    codes = ((flat / scales[:, None])[..., None] - NF4).abs().argmin(-1)
    values = (NF4[codes] * scales[:, None]).view(weight.shape)
    pairs = codes.flatten().view(-1, 2)
    parts["weight"] = (pairs[:, 0] << 4 | pairs[:, 1]).to(torch.uint8)[:, None]
    text = json.dumps(state).encode()
    parts["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(text), dtype=torch.uint8)
    return parts, values


def bnb_int8(weight: torch.Tensor) -> tuple[Parts, Any]:
    largest = weight.abs().amax(1)
    codes = (weight * 127 / largest[:, None]).round().to(torch.int8)
    parts = {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, codes.float() * (largest / 127)[:, None]


@dataclass(frozen=True)
class Method:
    config: dict[str, Any]  # quantization_config
    write: Callable[[torch.Tensor], tuple[Parts, torch.Tensor]]
    shown: str = ""  # as a plan has it
    family: str = field(default="qwen3", kw_only=True)


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"type": "int", "symmetric": True, **weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"a": group}, "ignore": ["lm_head"]}


def _gptq(bits: int, **keys: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": GROUP, **keys}


_BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
METHODS: dict[str, Method] = {
    "gptq": Method(_gptq(4), gptq, "gptq 4-bit in groups of 32"),
    "gptq 2": Method(_gptq(2), lambda w: gptq(w, 2)),
    "gptq 3": Method(_gptq(3), lambda w: gptq(w, 3)),
    "gptq 8": Method(_gptq(8), lambda w: gptq(w, 8)),
    "gptq v2": Method(_gptq(4, checkpoint_format="gptq_v2"), lambda w: gptq(w, stored_less=0)),
    "gptq ordered": Method(_gptq(4, desc_act=True), lambda w: gptq(w, is_ordered=True)),
    "awq": Method({"quant_method": "awq", "bits": 4, "group_size": GROUP}, awq, "awq 4-bit in groups of 32"),
    "packed": Method(compressed("pack-quantized", num_bits=4, group_size=GROUP), packed, "packed int4 in groups of 32"),
    "packed asymmetric": Method(
        compressed("pack-quantized", num_bits=4, group_size=GROUP, symmetric=False),
        lambda w: packed(w, is_symmetric=False),
    ),
    "packed 8": Method(
        compressed("pack-quantized", num_bits=8, strategy="channel"),
        lambda w: packed(w, 8, 0),
        "packed int8, a scale per output",
    ),
    "integers": Method(
        compressed("int-quantized", num_bits=8, strategy="channel"), integers, "int8, a scale per output"
    ),
    "fp8": Method({"quant_method": "fp8", "activation_scheme": "dynamic"}, fp8, "fp8"),
    "fp8 channels": Method(
        compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        lambda w: fp8(w, (1, w.shape[1])),
        "fp8, a scale per output",
    ),
    "fp8 blocks": Method(
        {"quant_method": "fp8", "weight_block_size": [40, 64]},
        lambda w: fp8(w, (40, 64), "weight_scale_inv"),
        "fp8 in blocks of 40 x 64",
    ),
    "fp8 exponents": Method({"quant_method": "fp8", "weight_block_size": [64, 64], "scale_fmt": "ue8m0"}, exponents),
    "mxfp4": Method(compressed("mxfp4-pack-quantized", num_bits=4, type="float"), mxfp4, "mxfp4"),
    "nvfp4": Method(compressed("nvfp4-pack-quantized", num_bits=4, type="float"), nvfp4, "nvfp4"),
    "nf4": Method(_BNB, bnb_4bit, "bitsandbytes 4-bit"),
    "nf4 double": Method({**_BNB, "bnb_4bit_use_double_quant": True}, lambda w: bnb_4bit(w, is_double=True)),
    "bnb int8": Method({"quant_method": "bitsandbytes", "load_in_8bit": True}, bnb_int8),
}


def write(source: Path, folder: Path, method: Method) -> dict[str, torch.Tensor]:
    """The checkpoint of `source` with the matrices of its layers quantised. Returns what its tensors represent."""
    folder.mkdir(exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": method.config}))
    stored: Parts = {}
    values: Parts = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if tensor.ndim != 2 or ".layers." not in name or name.endswith(("norm.weight", "mlp.gate.weight")):
            stored[name] = values[name] = tensor
            continue
        parts, values[name] = method.write(tensor)
        stored |= {f"{name.removesuffix('.weight')}.{end}": part.contiguous() for end, part in parts.items()}
    save_file(stored, folder / "model.safetensors")
    return values


def write_plain(source: Path, folder: Path, values: dict[str, torch.Tensor]) -> Path:
    """The same values as a checkpoint that is not quantised."""
    folder.mkdir()
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    save_file({name: tensor.contiguous() for name, tensor in values.items()}, folder / "model.safetensors")
    return folder


def write_gpt_oss(source: Path, folder: Path) -> dict[str, torch.Tensor]:
    """As `write`, with the experts in MXFP4: gates and ups in turn, the tensors of all experts in one."""
    folder.mkdir(exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    quantised = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantised}))
    stored: Parts = {}
    values: Parts = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name] = values[name] = tensor
            continue
        count, _, outputs = tensor.shape  # [experts, inputs, outputs]
        parts, each = mxfp4(tensor.transpose(1, 2).flatten(0, 1))
        stored[f"{name}_blocks"] = parts["weight_packed"].view(count, outputs, -1, 16)
        stored[f"{name}_scales"] = parts["weight_scale"].view(count, outputs, -1)
        values[name] = each.view(count, outputs, -1).transpose(1, 2)
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
    return values


def write_deepseek_v4(source: Path, folder: Path) -> dict[str, torch.Tensor]:
    """As `write`, as DeepSeek writes it: attention and shared experts in fp8, other experts in fp4, names without
    `model.`."""
    folder.mkdir(exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    method = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [64, 64]}
    written = {**config, "quantization_config": method, "expert_dtype": "fp4"}
    (folder / "config.json").write_text(json.dumps(written))
    stored: Parts = {}
    values: Parts = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        layer = (
            name.removeprefix("model.")
            .removesuffix(".weight")
            .replace("embed_tokens", "embed")
            .replace("hc_head.hc_", "hc_head_")
        )
        if ".experts." in name:
            parts, values[name] = mxfp4(tensor)
            stored[f"{layer}.weight"] = parts["weight_packed"].view(torch.int8)
            stored[f"{layer}.scale"] = parts["weight_scale"].view(torch.float8_e8m0fnu)
        elif ".shared_experts." in name or (".attn.w" in name and ".compressor." not in name):
            parts, values[name] = exponents(tensor)
            stored |= {f"{layer}.weight": parts["weight"], f"{layer}.scale": parts["weight_scale_inv"]}
        else:
            values[name] = tensor
            stored[layer + name[len(name.removesuffix(".weight")) :]] = tensor
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
    return values
