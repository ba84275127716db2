"""`device.self_test`: shares of what the machine can do, from a model whose layers have known sizes."""

from itertools import count

import pytest
import torch
from tests.unit.engine.kernels.levels import BEST, kernels_of

from stoker.engine.kernels import KernelSet
from stoker.engine.kernels.cpu.machine_speed import MachineSpeed
from stoker.engine.layers.linear import Linear
from stoker.engine.runner.self_test import self_test

CPU = torch.device("cpu")


class Zeros:
    """A checkpoint of zeros."""

    def integers(self, name):
        return None

    def grouped(self, name, dtype):
        """There are no codes."""

    def view(self, name, dtype):
        return None

    def read(self, name, into):
        into.zero_()


class TwoLayers:
    def __init__(self, kernels):
        self.layers = [Linear({"x": width}, 64, False, kernels, torch.bfloat16, CPU) for width in (128, 32)]
        for layer in self.layers:
            layer.load(Zeros())

    def loadables(self):
        return iter(self.layers)


@pytest.mark.parametrize(("in_caches", "share"), [(0, "100% of what memory delivers"), (256 << 20, "from the caches")])
def test_shares_are_relative_to_the_speeds_of_the_machine(in_caches, share, monkeypatch):
    """A second passes with each look at the clock, so one layer is measured each time: 128 x 64 elements."""
    monkeypatch.setattr("stoker.engine.runner.self_test.IN_CACHES", in_caches)
    done = []
    kernels = KernelSet(
        speed=MachineSpeed(lambda tensor: done.append(tensor.nbytes), lambda rounds: 4 * 2**30, "vectors")
    )
    found = self_test(TwoLayers(kernels), kernels, 2, count().__next__)
    assert done == [16384, 16384] * 2  # once to warm up, and twice in turns
    assert found == (
        f"linear layers: one row reads weights at 0.0 GB/s, {share}; 256 rows multiply at 0 GFLOP/s, "
        "0% of what vectors do"
    )


def test_without_kernels_there_is_nothing_to_compare_with():
    kernels = KernelSet()
    assert self_test(TwoLayers(kernels), kernels, 1) == "not measured: torch computes the linear layers"


def test_the_kernels_of_this_machine_are_measured():
    kernels = kernels_of(BEST, torch.bfloat16)
    if kernels.speed is not None:
        model = TwoLayers(kernels)
        assert kernels.speed.multiply(3) > 0
        assert self_test(model, kernels, 1, count().__next__).startswith("linear layers: one row reads weights at ")
