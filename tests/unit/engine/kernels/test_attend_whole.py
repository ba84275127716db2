import pytest
import torch

from stoker.engine.kernels.attend_whole import attend_whole_by_length, attend_whole_reference

from .levels import BEST, assert_close, kernels_of

LENGTHS = [5, 1, 150, 5, 0, 17, 150]


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
    """The softmax of one sequence, head by head in float64."""
    heads = []
    for head in range(q.shape[1]):
        keys, values = (each[:, head * k.shape[1] // q.shape[1]].double() for each in (k, v))
        scores = q[:, head].double() @ keys.T * scale
        if window is not None:
            sees = torch.ones_like(scores, dtype=torch.bool).tril(window).triu(-window)
            scores[~sees] = -torch.inf
        heads.append(torch.softmax(scores, 1) @ values)
    return torch.cat(heads, dim=1)


@pytest.mark.parametrize("op", [attend_whole_reference, attend_whole_by_length])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 0, 3, 140, 149])
def test_each_query_sees_its_sequence_before_and_after_it(op, dtype: torch.dtype, window: int | None):
    random = torch.Generator().manual_seed(0)
    starts = torch.tensor([0, *LENGTHS]).cumsum(0)
    q, k, v = (torch.randn(sum(LENGTHS), heads, 16, generator=random).to(dtype) for heads in (4, 2, 2))
    found = op(q, k, v, starts.int(), 0.3, window)
    assert found.dtype == dtype
    by_sequence = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    expected = torch.cat([exact(q[start:end], k[start:end], v[start:end], 0.3, window) for start, end in by_sequence])
    # Sums of 16 products and of 150 exponentials of values up to 4; in bfloat16 torch rounds the weights to it.
    assert_close(found, expected, absolute=1e-5 if dtype == torch.float32 else 2e-2)


def test_a_sequence_does_not_depend_on_others_with_batch_invariant_kernels():
    q, k, v = (torch.randn(300, heads, 16) for heads in (4, 2, 2))
    starts = torch.tensor([0, 100, 200, 300], dtype=torch.int32)
    op = kernels_of(BEST, torch.float32, batch_invariant=True).attend_whole
    alone = op(*(each[100:200] for each in (q, k, v)), torch.tensor([0, 100], dtype=torch.int32), 0.3)
    assert torch.equal(op(q, k, v, starts, 0.3)[100:200], alone)


def test_sequences_of_a_length_are_computed_together():
    assert kernels_of(BEST, torch.float32).attend_whole is attend_whole_by_length
