"""GGUF's blocks of any bytes as grouped weights: gguf's own numbers, in the layout that a plan counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize

from stoker.config.checkpoint.group_layouts import group_layout
from stoker.config.checkpoint.stored import BLOCKS, Packed, StoredTensor
from stoker.engine.kernels import Grouped
from stoker.engine.kernels.grouped import layout_of
from stoker.engine.kernels.stored_codes import StoredCodes
from stoker.engine.runner.grouped_blocks import of_blocks
from stoker.engine.runner.grouped_weights import of_packed
from stoker.model.weight_methods import WeightMethod

from ..kernels.levels import BEST, LEVEL_NAMES, kernels_of

HALVES_AT = {  # where a block has numbers in float16; no type has NaN elsewhere
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "MXFP4": (),
}
SHAPE = 24, 512


def blocks_of(dtype: str, lowest: int) -> np.ndarray:
    random, (elements, size) = np.random.default_rng(1), BLOCKS[dtype]
    blocks = random.integers(lowest, 256, (SHAPE[0] * SHAPE[1] // elements, size), dtype=np.uint8)
    for at in HALVES_AT[dtype]:
        blocks[:, at : at + 2] = random.normal(size=(len(blocks), 1)).astype(np.float16).view(np.uint8)
    if dtype == "MXFP4":  # exponents whose numbers float32 has
        blocks[:, 0] = random.integers(64, 192, len(blocks))
    return blocks


@pytest.mark.parametrize("dtype", HALVES_AT)
def test_numbers_are_those_of_gguf(dtype: str):
    blocks = blocks_of(dtype, lowest=129)
    found = of_blocks(torch.from_numpy(blocks).flatten(), dtype, SHAPE)
    assert found is not None
    expected = dequantize(blocks, GGMLQuantizationType[dtype]).reshape(SHAPE)
    assert torch.equal(found.numbers(), torch.from_numpy(expected))
    assert torch.equal(found.levels, found.levels.bfloat16().float())
    assert layout_of(found) == group_layout(StoredTensor(Path("x"), dtype, SHAPE, 0))


def test_bytes_of_minus_128_have_a_zero_between_the_levels():
    """Sign and size in 8 bits end at 127."""
    blocks = blocks_of("Q8_0", lowest=0)
    blocks[:, 2] = 128
    found = of_blocks(torch.from_numpy(blocks).flatten(), "Q8_0", SHAPE)
    assert found is not None
    expected = dequantize(blocks, GGMLQuantizationType.Q8_0).reshape(SHAPE)
    assert torch.equal(found.numbers(), torch.from_numpy(expected))
    assert found.zeros is not None
    assert set(found.zeros.flatten().tolist()) == {0.5}


@pytest.mark.parametrize("dtype", sorted(set(BLOCKS) - set(HALVES_AT)))
def test_other_types_have_no_codes(dtype: str):
    assert (
        of_blocks(torch.zeros(SHAPE[0] * BLOCKS[dtype][1] * SHAPE[1] // 256, dtype=torch.uint8), dtype, SHAPE) is None
    )
    assert group_layout(StoredTensor(Path("x"), dtype, SHAPE, 0)) is None


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)


def packed_of(kind: str) -> Grouped:
    """A matrix of [40, 768], with codes as its file has them."""
    outputs, inputs, group = 40, 768, 128
    scales = torch.rand(outputs, inputs // group).half()
    match kind:
        case "gptq":
            parts = {"qweight": words(inputs // 8, outputs), "qzeros": words(inputs // group, outputs // 8)}
            parts["scales"] = scales.T.contiguous()
            method = WeightMethod(kind="gptq", bits=4)
        case "packed":
            parts = {"weight_packed": words(outputs, inputs // 8), "weight_scale": scales}
            method = WeightMethod(kind="packed", bits=4)
        case _:
            integers = torch.randint(-127, 128, (outputs, inputs)).to(torch.int8)
            parts, group = {"weight": integers, "weight_scale": scales[:, :1].contiguous()}, inputs
            method = WeightMethod(kind="integers", bits=8)
    found = of_packed(Packed(method, "x", {}, (outputs, inputs), range(outputs), (1, group)), parts, torch.bfloat16)
    assert found is not None
    return found


BLOCKS_OF_CODES = ("Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "Q4_K", "Q6_K", "Q8_0", "MXFP4")


@pytest.mark.parametrize("kind", [*BLOCKS_OF_CODES, "gptq", "packed", "integers"])
@pytest.mark.parametrize(
    "level", [BEST, *(pytest.param(name, marks=pytest.mark.slow) for name in LEVEL_NAMES if name != BEST)]
)
def test_codes_of_files_are_packed_as_those_that_torch_unpacks(level: str, kind: str):
    """Bit for bit. The last panel has 8 of 16 outputs."""
    if kind in BLOCKS_OF_CODES:
        found = of_blocks(torch.from_numpy(blocks_of(kind, lowest=129)).flatten(), kind, SHAPE)
    else:
        found = packed_of(kind)
    assert found is not None
    assert isinstance(found.codes, StoredCodes)
    pack = kernels_of(level, torch.bfloat16, has_quantised=True, threads=2).pack_grouped
    if pack is None:
        assert level == "torch"  # which has no panels
        return
    packed = pack([found], None, torch.bfloat16)
    expected = pack([replace(found, codes=found.unpacked)], None, torch.bfloat16)
    assert packed is not None
    assert expected is not None
    assert torch.equal(packed.weight, expected.weight)
    chosen = torch.tensor([0, 7, 23])
    kernels = kernels_of(level, torch.bfloat16, has_quantised=True)
    assert torch.equal(kernels.embed(chosen, packed), found.numbers()[chosen].bfloat16())
