"""An expert that another rank has sent is the one that was sent, in each form that kernels hold."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import pytest
import torch
from tests.unit.engine.kernels.levels import BEST, kernels_of

from stoker.engine.collectives.shared_memory import SharedMemoryRanks
from stoker.engine.host.shared_memory import SharedMemory
from stoker.engine.kernels import ExpertGate, ExpertWeights, PackedLinear
from stoker.engine.runner.expert_transfer import received_expert, sent_expert

pytestmark = pytest.mark.skipif(BEST == "torch", reason="needs the C++ kernels, which have the exchange")
FORMS = [(torch.float32, None), (torch.bfloat16, None), (torch.float32, "int4"), (torch.bfloat16, "int8")]


def assert_same(found: PackedLinear, expected: PackedLinear) -> None:
    for field in fields(PackedLinear):
        its, theirs = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(theirs, torch.Tensor):
            assert its.dtype == theirs.dtype
            assert torch.equal(its, theirs), field.name
        else:
            assert its == theirs, field.name


@pytest.mark.parametrize("inner", [64, 33])  # the second is padded
@pytest.mark.parametrize(("dtype", "scheme"), FORMS)
def test_an_expert_arrives_as_it_was_packed(dtype: torch.dtype, scheme: str | None, inner: int):
    kernels = kernels_of(BEST, dtype)
    assert kernels.exchange is not None
    memory = SharedMemory.new(3)
    ranks = [SharedMemoryRanks(kernels.exchange, memory, rank, 3) for rank in range(3)]
    torch.manual_seed(0)
    weights = ExpertWeights(
        *(torch.randn(size, dtype=dtype) for size in ((2 * inner, 128), (128, inner), (2 * inner,), (128,)))
    )
    packed = kernels.pack_experts([weights], 1, ExpertGate(), scheme)
    (expert,) = packed.experts
    with ThreadPoolExecutor(3) as pool:
        sent = pool.submit(sent_expert, expert, ranks[1])
        arrived = [*pool.map(lambda each: received_expert(1, each), (ranks[0], ranks[2]))]
    for each in arrived:
        assert each.num_bytes == sent.result()
        assert each.num_bytes >= expert.num_bytes
        assert_same(each.expert.gate_up, expert.gate_up)
        assert_same(each.expert.down, expert.down)
        assert all(linear.weight.data_ptr() % 64 == 0 for linear in (each.expert.gate_up, each.expert.down))
