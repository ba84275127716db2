"""Graphs on a GPU: there are none without one."""

from __future__ import annotations

import logging

import pytest
import torch

from stoker.engine.runner.cuda.buckets import StepShape
from stoker.engine.runner.cuda.graphs import Graphs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
WIDTH = 1 << 20


def shapes() -> list[StepShape]:
    return [StepShape(rows, rows, is_decode=True, is_lean=True) for rows in (16, 8, 4, 2, 1)]


def nothing(shape: StepShape) -> None:
    """The input stays."""


def test_replays_compute_anew_and_share_their_memory():
    device = torch.device("cuda")
    source = torch.zeros(16, WIDTH, device=device, dtype=torch.bfloat16)
    graphs = Graphs(lambda shape: (source[: shape.num_rows] + shape.num_rows) * 2, nothing, device)
    graphs.want(shapes())
    used = []
    while graphs.capture_next():
        torch.cuda.empty_cache()
        used.append(torch.cuda.memory_reserved())
    assert used[-1] == used[0]  # those after the largest took no more
    for number in (1, 3):
        source.fill_(number)
        for shape in shapes():
            found = graphs.run(shape)
            assert (found.dtype, found.shape) == (torch.bfloat16, (shape.num_rows, WIDTH))
            assert (found == (number + shape.num_rows) * 2).all()


def test_what_cannot_be_captured_is_launched_as_it_is(caplog: pytest.LogCaptureFixture):
    """`item` waits for the device, which a capture cannot."""
    caplog.set_level(logging.ERROR)
    device = torch.device("cuda")
    source = torch.ones(16, device=device)
    before = torch.cuda.current_stream()
    graphs = Graphs(lambda shape: source[: shape.num_rows] * source.sum().item(), nothing, device)
    graphs.want(shapes())
    assert not graphs.capture_next()
    assert "cannot be captured" in caplog.text
    assert torch.cuda.current_stream() == before
    assert graphs.run(shapes()[-1]).tolist() == [16.0]
