"""Hyper-connections, compared with their references."""

from __future__ import annotations

import pytest
import torch

from stoker.engine.kernels.hyper_connections import Connection, read_streams_reference, write_streams_reference

pytest.importorskip("triton")
from stoker.engine.kernels.gpu.hyper_connections import read_streams_gpu, write_streams_gpu

from .batches import DTYPES, LIMITS

FORMS = ["mixed", "independent", "head"]


def connection_of(form: str, num_streams: int, hidden: int, device: torch.device) -> Connection:
    rows = {"mixed": (2 + num_streams) * num_streams, "independent": 2 * num_streams, "head": num_streams}[form]
    return Connection(
        torch.randn(rows, num_streams * hidden, device=device) * 0.1,
        torch.randn(rows, device=device),
        torch.tensor([0.7, 1.2, 1.5], device=device),
        num_streams,
        norm_eps=0.1,
        eps=0.05,
        output_scale=1.5,
        output_eps=0.02,
        iterations=3 if form == "mixed" else 0,
    )


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    limit = LIMITS[expected.dtype]
    torch.testing.assert_close(found, expected, atol=limit, rtol=limit)


@DTYPES
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("tokens", "num_streams", "hidden"), [(3, 4, 300), (19, 3, 20), (1, 1, 8), (0, 4, 16)])
@pytest.mark.quick_cases(4)
def test_streams_are_read_and_written(device, dtype, form, tokens, num_streams, hidden):
    connection = connection_of(form, num_streams, hidden, device)
    streams = torch.randn(tokens, num_streams * hidden, device=device).to(dtype)
    added = torch.randn(tokens, hidden, device=device).to(dtype)
    total, gains = read_streams_gpu(streams, connection)
    expected_total, expected_gains = read_streams_reference(streams, connection)
    assert_close(total, expected_total)
    torch.testing.assert_close(gains, expected_gains, atol=1e-5, rtol=1e-5)
    if form != "head":
        expected = write_streams_reference(added, num_streams, streams, expected_gains)
        assert_close(write_streams_gpu(added, num_streams, streams, expected_gains), expected)


@DTYPES
def test_all_streams_begin_with_what_is_added(device, dtype):
    added = torch.randn(3, 20, device=device).to(dtype)
    assert torch.equal(write_streams_gpu(added, 3), torch.cat([added] * 3, 1))


def test_streams_of_other_shapes_are_refused(device):
    connection = connection_of("mixed", 2, 8, device)
    with pytest.raises(ValueError, match="the matrix"):
        read_streams_gpu(torch.zeros(2, 8, device=device), connection)
    added = torch.zeros(2, 8, device=device)
    with pytest.raises(ValueError, match="streams of"):
        write_streams_gpu(added, 2, added, added)
    with pytest.raises(ValueError, match="contiguous"):
        write_streams_gpu(torch.zeros(8, 2, device=device).t(), 2)
