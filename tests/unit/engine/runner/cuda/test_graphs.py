"""Which shapes are captured and replayed, with a capture that runs anywhere; CUDA graphs themselves on a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch

from stoker.engine.kernels.capture import CapturedGraph, NotCapturable
from stoker.engine.runner.cuda.graphs import INTERPRETED, Graphs
from stoker.engine.runner.step_shape import StepFlag, StepShape

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
WIDTH = 1 << 20
SHAPES = [StepShape(rows, rows, 1) for rows in (16, 8, 4, 2, 1)]


class Steps:
    """Adds 1 to the inputs of as many rows as the shape has. Counts what is computed without a replay."""

    def __init__(self) -> None:
        self.inputs = torch.zeros(16)
        self.num_computed = 0

    def compute(self, shape: StepShape) -> torch.Tensor:
        self.num_computed += 1
        return self.inputs[: shape.num_rows] + 1

    def send_nothing(self, shape: StepShape) -> None:
        self.inputs[: shape.num_rows] = 0


def capture(compute: Callable[[], torch.Tensor]) -> CapturedGraph:
    """Replays by computing into the output of the capture."""
    output = compute()
    return CapturedGraph(output, lambda: output.copy_(compute()))


def captures(*outcomes: Exception | None) -> Callable[[Callable[[], torch.Tensor]], CapturedGraph]:
    """A capture that fails where an outcome is an exception."""
    left = list(outcomes)

    def try_to_capture(compute: Callable[[], torch.Tensor]) -> CapturedGraph:
        outcome = left.pop(0)
        if outcome is not None:
            raise outcome
        return capture(compute)

    return try_to_capture


@pytest.mark.parametrize(
    ("failure", "raised", "fix"),
    [
        (NotCapturable("an op"), NotCapturable, "`compilation.level: 0`"),
        (torch.OutOfMemoryError("full"), MemoryError, "`scheduler.max_num_seqs`"),
    ],
)
def test_where_other_ranks_take_part_a_failure_is_raised_with_what_avoids_it(
    failure: Exception, raised: type[Exception], fix: str
):
    steps = Steps()
    graphs = Graphs(steps.compute, steps.send_nothing, captures(failure), can_do_without=False)
    graphs.request(SHAPES)
    with pytest.raises(raised, match=fix):
        graphs.capture_next()


def test_requested_shapes_are_captured_in_order_and_the_others_are_computed():
    steps, captured = Steps(), []

    def recording(compute: Callable[[], torch.Tensor]) -> CapturedGraph:
        graph = capture(compute)
        captured.append(len(graph.output))
        return graph

    graphs = Graphs(steps.compute, steps.send_nothing, recording)
    graphs.request(SHAPES[:2])
    assert graphs.summary == "CUDA graphs: 0 captured, 2 more while the engine is idle"
    assert graphs.capture_next()
    assert not graphs.capture_next()
    assert not graphs.capture_next()
    assert captured == [16, 8]
    assert graphs.summary == "CUDA graphs: 2 captured, 0 more while the engine is idle"
    steps.inputs.fill_(6)
    outputs = [graphs.run(shape) for shape in (SHAPES[1], SHAPES[1], SHAPES[2])]
    assert outputs[0] is outputs[1]  # the graph's own output
    assert [output.tolist() for output in outputs] == [[7.0] * 8, [7.0] * 8, [7.0] * 4]


def test_shapes_that_differ_by_a_flag_are_captured_apart():
    steps = Steps()
    graphs = Graphs(steps.compute, steps.send_nothing, capture)
    plain, flagged = StepShape(2, 2, 1), StepShape(2, 2, 1, StepFlag.FULL_SAMPLER)
    graphs.request([plain])
    graphs.capture_next()
    assert (graphs.has(plain), graphs.has(flagged)) == (True, False)
    graphs.request([flagged])
    graphs.capture_next()
    assert (graphs.has(plain), graphs.has(flagged)) == (True, True)


def test_a_capture_runs_a_step_that_changes_nothing():
    steps = Steps()
    steps.inputs.fill_(5)
    graphs = Graphs(steps.compute, steps.send_nothing, capture)
    graphs.request(SHAPES[4:])
    graphs.capture_next()
    assert steps.inputs.tolist() == [0.0] + [5.0] * 15


@pytest.mark.parametrize("failure", [NotCapturable("item"), torch.OutOfMemoryError("none left")])
def test_after_a_failure_the_graphs_that_exist_are_kept_and_no_more_are_captured(
    failure: Exception, caplog: pytest.LogCaptureFixture
):
    steps = Steps()
    graphs = Graphs(steps.compute, steps.send_nothing, captures(None, failure))
    graphs.request(SHAPES[:3])
    assert graphs.capture_next()
    assert not graphs.capture_next()
    assert not graphs.capture_next()
    assert graphs.summary == "CUDA graphs: 1 captured, 0 more while the engine is idle"
    expected = {NotCapturable: "cannot be captured", torch.OutOfMemoryError: "no memory for more than 1 graphs"}
    assert expected[type(failure)] in caplog.text
    assert graphs.run(SHAPES[1]).tolist() == [1.0] * 8


def test_a_failure_of_the_device_is_raised():
    graphs = Graphs(Steps().compute, Steps().send_nothing, captures(RuntimeError("illegal memory access")))
    graphs.request(SHAPES)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        graphs.capture_next()


def test_without_a_capture_every_shape_is_computed():
    steps = Steps()
    graphs = Graphs(steps.compute, steps.send_nothing, None)
    graphs.request(SHAPES)
    assert not graphs.capture_next()
    assert graphs.summary == INTERPRETED
    assert graphs.run(SHAPES[3]).tolist() == [1.0, 1.0]
    assert steps.num_computed == 1


def cuda_graphs(compute: Callable[[StepShape], torch.Tensor]) -> Graphs:
    from stoker.engine.kernels.gpu.cuda_graph import cuda_graph_capture

    return Graphs(compute, lambda _: None, cuda_graph_capture())


@needs_gpu
def test_cuda_graphs_compute_from_the_newest_inputs_and_share_their_memory():
    source = torch.zeros(16, WIDTH, device="cuda", dtype=torch.bfloat16)
    graphs = cuda_graphs(lambda shape: (source[: shape.num_rows] + shape.num_rows) * 2)
    graphs.request(SHAPES)
    used = []
    while graphs.capture_next():
        torch.cuda.empty_cache()
        used.append(torch.cuda.memory_reserved())
    assert used[-1] == used[0]  # the largest was captured first, and the others take no more
    for value in (1, 3):
        source.fill_(value)
        for shape in SHAPES:
            found = graphs.run(shape)
            assert (found.dtype, found.shape) == (torch.bfloat16, (shape.num_rows, WIDTH))
            assert (found == (value + shape.num_rows) * 2).all()


@needs_gpu
def test_the_output_of_a_cuda_graph_is_computed_when_the_capture_returns():
    from stoker.engine.kernels.gpu.cuda_graph import cuda_graph_capture

    source = torch.full((3,), 2.0, device="cuda")
    assert cuda_graph_capture()(lambda: source * 7).output.tolist() == [14.0] * 3


@needs_gpu
def test_a_step_that_waits_for_the_device_is_launched_kernel_by_kernel(caplog: pytest.LogCaptureFixture):
    """`item` waits for the device, which a capture cannot."""
    caplog.set_level(logging.ERROR)
    source = torch.ones(16, device="cuda")
    before = torch.cuda.current_stream()
    graphs = cuda_graphs(lambda shape: source[: shape.num_rows] * source.sum().item())
    graphs.request(SHAPES)
    assert not graphs.capture_next()
    assert "cannot be captured" in caplog.text
    assert torch.cuda.current_stream() == before
    assert graphs.run(SHAPES[-1]).tolist() == [16.0]
