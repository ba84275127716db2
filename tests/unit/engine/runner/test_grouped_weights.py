"""GGUF's blocks of any bytes as grouped weights: gguf's own numbers, in the layout that a plan counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize

from stoker.config.checkpoint.group_layouts import group_layout
from stoker.config.checkpoint.stored import BLOCKS, StoredTensor
from stoker.engine.kernels.grouped import layout_of
from stoker.engine.runner.grouped_weights import of_blocks

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
