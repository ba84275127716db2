"""Spans: the parts of a step by name, in a profile of torch and, on CUDA, as NVTX ranges for Nsight.

They are off unless a profile is being recorded: then a part costs a look at a variable. The state belongs to the
process, as in torch's profiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

is_profiling = False  # torch's profiler runs
is_marking = False  # ranges for Nsight, from the start to the end of the process
_NOTHING = nullcontext()


def span(name: str) -> AbstractContextManager[object]:
    """A part of the step, until it is left."""
    if is_marking:
        return _marked(name)
    return torch.profiler.record_function(name) if is_profiling else _NOTHING


@contextmanager
def _marked(name: str) -> Iterator[None]:
    torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
    try:
        with torch.profiler.record_function(name) if is_profiling else _NOTHING:
            yield
    finally:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
