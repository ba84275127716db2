"""The Capture of a CUDA device: CUDA graphs.

All graphs use one memory pool, because only one of them runs at a time. An output does not own its memory: if it did,
later graphs could not reuse that memory, and the logits of a few hundred rows for some fifty graphs are gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..capture import Capture, CapturedGraph, NotCapturable


class _Unowned:
    """The memory of a contiguous tensor as integers of the same width, without a reference to its storage."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": f"<i{tensor.element_size()}",
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def cuda_graph_capture() -> Capture:
    """The device must be idle during a capture."""
    pool = torch.cuda.graph_pool_handle()

    def capture(compute: Callable[[], torch.Tensor]) -> CapturedGraph:
        try:
            compute()  # compiles kernels and allocates workspaces outside of the graph
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with (
                torch.cuda.stream(torch.cuda.current_stream()),  # restores the stream: a failed capture does not
                torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
            ):
                owned = compute()
            output = torch.as_tensor(_Unowned(owned), device=owned.device).view(owned.dtype)
            del owned
            graph.replay()  # a capture records and computes nothing
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            torch.cuda.synchronize()  # raises the error of a failed kernel, after which the device is unusable
            raise NotCapturable(str(error)) from error
        return CapturedGraph(output, graph.replay)

    return capture
