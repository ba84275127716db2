"""The tensors that a checkpoint has by its config.json: for a plan before its weight files are here, and for dummy
weights.

They have the names of model/tensors.py, and quantised matrices have the parts that their method needs: the same code
then computes what is held in memory as from the headers of the files.
"""

from __future__ import annotations

from pathlib import Path

from ...model.spec import ModelSpec
from ...model.tensors import model_tensors
from ...model.weight_methods import WeightMethod
from .layout import WeightFiles
from .stored import FLOAT_DTYPES, Packed, StoredTensor

_NESTED = 256  # scales of bitsandbytes that share another scale, in its checkpoints
_BLOCK_OF_BITSANDBYTES = 64
_GROUP_OF_GPTQ = 128


def described_weights(folder: Path, spec: ModelSpec) -> WeightFiles:
    """The tensors that the model would have in `folder`, as if they were stored in no files."""
    dtype = next(name for name, each in FLOAT_DTYPES.items() if each == spec.dtype)
    tensors: dict[str, StoredTensor] = {}
    for tensor in model_tensors(spec):
        layer = tensor.name.format(0).removesuffix(".weight")
        method = spec.quantization.of_layer(layer) if spec.quantization is not None and tensor.is_matrix else None
        packed = None
        if method is not None:
            outputs, inputs = tensor.shape
            packed = _packed(method, layer, (outputs, inputs), dtype, folder)
        stored = StoredTensor(folder, dtype, tensor.shape, 0, packed=packed)
        tensors |= {tensor.name.format(index): stored for index in range(tensor.copies)}
    return WeightFiles("dummy", (), tensors)


def _packed(method: WeightMethod, layer: str, shape: tuple[int, int], dtype: str, folder: Path) -> Packed | None:
    """Describe a quantised matrix; None if the method cannot divide its size, so that it is stored as it is."""
    outputs, inputs = shape
    block = _block(method, shape)
    grid = -(-outputs // block[0]), -(-inputs // block[1])
    word_bits = inputs * method.bits
    if word_bits % 32 or (block[0] == 1 and inputs % block[1]):
        return None
    sizes: dict[str, tuple[str, tuple[int, ...]]]
    match method.kind:
        case "gptq" | "awq":
            zeros = ("I32", (grid[1], -(-outputs * method.bits // 32)))
            packed_inputs = (word_bits // 32, outputs)
            packed_outputs = (inputs, -(-outputs * method.bits // 32))
            sizes = {
                "qweight": ("I32", packed_inputs if method.kind == "gptq" else packed_outputs),
                "scales": ("F16", (grid[1], outputs)),
                "qzeros": zeros,
            }
        case "packed":
            sizes = {"weight_packed": ("I32", (outputs, word_bits // 32)), "weight_scale": (dtype, grid)}
            if not method.is_symmetric:
                sizes["weight_zero_point"] = ("I32", (-(-grid[0] * method.bits // 32), grid[1]))
        case "integers":
            sizes = {"weight": ("I8", shape), "weight_scale": (dtype, grid)}
            if not method.is_symmetric:
                sizes["weight_zero_point"] = ("I8", grid)
        case "fp8":
            is_grid = block[0] > 1 and block[1] > 1
            sizes = {"weight": ("F8_E4M3", shape), "weight_scale": ("F32" if is_grid else dtype, grid)}
        case "mxfp4":
            sizes = {method.codes: ("U8", (outputs, inputs // 2)), "weight_scale": ("U8", grid)}
        case "nvfp4":
            sizes = {
                method.codes: ("U8", (outputs, inputs // 2)),
                "weight_scale": ("F8_E4M3", grid),
                method.whole_scale: ("F32", (1,)),
            }
        case "bnb_int8":
            sizes = {"weight": ("I8", shape), "SCB": ("F32", (outputs,))}
        case "bnb_4bit":
            blocks = outputs * inputs // block[1]
            sizes = {
                "weight": ("U8", (outputs * inputs // 2, 1)),
                "weight.absmax": ("U8", (blocks,)),
                "weight.quant_map": ("F32", (16,)),
                "weight.nested_absmax": ("F32", (-(-blocks // _NESTED),)),
                "weight.nested_quant_map": ("F32", (256,)),
            }
    parts = {name: StoredTensor(folder, kind, size, 0) for name, (kind, size) in sizes.items()}
    outer = (_NESTED, 0.0) if method.kind == "bnb_4bit" else None
    return Packed(method, layer, parts, shape, range(outputs), block, outer)


def _block(method: WeightMethod, shape: tuple[int, int]) -> tuple[int, int]:
    """Outputs and inputs that share a scale."""
    if method.kind == "bnb_4bit":
        return 1, _BLOCK_OF_BITSANDBYTES
    if method.kind == "bnb_int8":
        return 1, shape[1]
    block = method.block
    if block is None:
        block = {"fp8": (0, 0), "integers": (1, 0)}.get(method.kind, (1, _GROUP_OF_GPTQ))
    return block[0] or max(1, shape[0]), block[1] or max(1, shape[1])
