"""Arguments and results of calls between ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stoker.engine.transport.rank_values import packed_value, packed_values, unpacked_values


def test_plain_values_come_back_as_they_were():
    value = {"a": [1, -2.5, None, True], 7: ("x", b"y", ()), "empty": []}
    assert unpacked_values(packed_value(value)) == value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_come_back_bit_by_bit(dtype: torch.dtype, shape: tuple[int, ...]):
    tensor = (torch.arange(6)[: int(np.prod(shape))].reshape(shape) - 2).to(dtype)
    found = unpacked_values(packed_value({"w": tensor.t() if tensor.dim() == 2 else tensor}))["w"]
    expected = tensor.t() if tensor.dim() == 2 else tensor
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert torch.equal(found.float(), expected.float())


def test_arrays_come_back_and_can_be_written():
    found = unpacked_values(packed_value([np.arange(6, dtype=np.int16).reshape(2, 3), np.float32(2)]))
    assert np.array_equal(found[0], [[0, 1, 2], [3, 4, 5]])
    assert (found[0].dtype, found[1]) == (np.int16, 2.0)
    found[0][0, 0] = 9


def test_other_objects_are_not_sent():
    with pytest.raises(TypeError, match="a object is not sent between ranks"):
        packed_value([object()])
    with pytest.raises(TypeError, match="a ndarray is not sent"):
        packed_value(np.zeros(2, [("a", "i4")]))
    with pytest.raises(TypeError):
        packed_value(torch.eye(2).to_sparse())
    for value in (object(), torch.eye(2).to_sparse(), 1 << 70):
        assert packed_values(value, "").error.startswith("the result cannot be sent to the other ranks: ")
