import pytest
import torch

from stoker.engine.kernels.attend_whole import attend_whole_by_length, attend_whole_reference

from .levels import BEST, LEVEL_NAMES, assert_close, kernels_of

LENGTHS = [5, 1, 150, 5, 0, 17, 150, 300]
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.01])
BIASES = torch.randn(4, 2 * 40 + 1, generator=torch.Generator().manual_seed(2))


def exact(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    window: int | None,
    slopes: torch.Tensor | None,
    biases: torch.Tensor | None = None,
) -> torch.Tensor:
    """The softmax of one sequence, head by head in float64."""
    heads = []
    for head in range(q.shape[1]):
        keys, values = (each[:, head * k.shape[1] // q.shape[1]].double() for each in (k, v))
        scores = q[:, head].double() @ keys.T * scale
        if slopes is not None:
            places = torch.arange(len(q), dtype=torch.float64)
            scores -= slopes[head].double() * (places - places[:, None]).abs()
        if biases is not None:
            span = biases.shape[1] // 2
            scores += torch.tensor(
                [
                    [biases[head, max(-span, min(span, key - query)) + span] for key in range(len(q))]
                    for query in range(len(q))
                ]
            ).view(len(q), len(q))
        if window is not None:
            sees = torch.ones_like(scores, dtype=torch.bool).tril(window).triu(-window)
            scores[~sees] = -torch.inf
        heads.append(torch.softmax(scores, 1) @ values)
    return torch.cat(heads, dim=1)


def sequences(dtype: torch.dtype, head_dim: int = 16) -> tuple[torch.Tensor, ...]:
    """q, k, v as parts of one projection, and where the sequences start."""
    random = torch.Generator().manual_seed(0)
    projected = torch.randn(sum(LENGTHS), 8 * head_dim, generator=random).to(dtype)
    parts = projected.split([4 * head_dim, 2 * head_dim, 2 * head_dim], dim=1)
    q, k, v = (each.unflatten(1, (-1, head_dim)) for each in parts)
    return q, k, v, torch.tensor([0, *LENGTHS]).cumsum(0).int()


def check(
    op,
    dtype: torch.dtype,
    window: int | None,
    slopes: torch.Tensor | None,
    head_dim: int = 16,
    biases: torch.Tensor | None = None,
) -> None:
    q, k, v, starts = sequences(dtype, head_dim)
    found = op(q, k, v, starts, 0.3, window, slopes, biases)
    assert found.dtype == dtype
    bounds = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    expected = torch.cat([exact(q[at:end], k[at:end], v[at:end], 0.3, window, slopes, biases) for at, end in bounds])
    # Sums of 16 products and of 300 exponentials of values up to 4; in bfloat16 weights are rounded to it.
    assert_close(found, expected, absolute=1e-5 if dtype == torch.float32 else 3e-2)


@pytest.mark.parametrize("op", [attend_whole_reference, attend_whole_by_length])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("slopes", [None, SLOPES])
@pytest.mark.parametrize("window", [None, 0, 3, 140, 149])
def test_each_query_sees_its_sequence_before_and_after_it(op, dtype, window, slopes):
    check(op, dtype, window, slopes)


@pytest.mark.parametrize("op", [attend_whole_reference, attend_whole_by_length])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("window", "slopes"), [(None, None), (50, SLOPES)])
def test_biases_of_distances_are_added(op, dtype, window, slopes):
    check(op, dtype, window, slopes, biases=BIASES)


@pytest.mark.parametrize("level", LEVEL_NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("span", [0, 1, 7, 40])
@pytest.mark.parametrize(("window", "slopes"), [(None, None), (50, SLOPES)])
def test_kernels_of_a_cpu_add_biases(level: str, dtype, span: int, window, slopes):
    biases = BIASES[:, 40 - span : 41 + span].contiguous()
    check(kernels_of(level, dtype, 16).attend_whole, dtype, window, slopes, 16, biases)


def test_biases_of_other_heads_are_refused():
    q, k, v, starts = sequences(torch.float32)
    op = kernels_of(BEST, torch.float32, 16).attend_whole
    for biases in (BIASES[:3], BIASES[:, 1:]):
        with pytest.raises(ValueError, match="biases are"):
            op(q, k, v, starts, 0.3, None, None, biases.contiguous())


@pytest.mark.parametrize("level", LEVEL_NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 48, 64])
@pytest.mark.parametrize("slopes", [None, SLOPES])
@pytest.mark.parametrize("window", [None, 0, 3, 140, 149, 255])
def test_kernels_of_a_cpu(level: str, dtype, head_dim: int, window, slopes):
    check(kernels_of(level, dtype, head_dim).attend_whole, dtype, window, slopes, head_dim)


def test_many_heads_that_share_keys_are_divided_into_several_tasks():
    """A task has at most 1024 queries times heads."""
    q = torch.randn(700, 8, 16, generator=torch.Generator().manual_seed(1))
    k, v = q[:, :1].clone(), q[:, 1:2].clone()
    starts = torch.tensor([0, 700], dtype=torch.int32)
    found = kernels_of(BEST, torch.float32, 16, threads=2).attend_whole(q, k, v, starts, 0.25, 200)
    assert_close(found, exact(q, k, v, 0.25, 200, None), absolute=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_sequence_does_not_depend_on_others(dtype: torch.dtype, batch_invariant: bool):
    q, k, v, starts = sequences(dtype)
    op = kernels_of(BEST, dtype, 16, batch_invariant=batch_invariant).attend_whole
    whole = op(q, k, v, starts, 0.3, None)
    for at, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        alone = op(q[at:end], k[at:end], v[at:end], torch.tensor([0, end - at], dtype=torch.int32), 0.3, None)
        assert torch.equal(whole[at:end], alone)


def test_inputs_that_do_not_fit_are_refused():
    op = kernels_of(BEST, torch.float32, 16).attend_whole
    q, k, v, starts = sequences(torch.float32)
    with pytest.raises(ValueError, match="another is"):
        op(q, k[1:], v, starts, 0.3)
    with pytest.raises(ValueError, match="slopes are"):
        op(q, k, v, starts, 0.3, None, SLOPES[:2])
    with pytest.raises(ValueError, match="one after the other"):
        op(q, k.transpose(0, 1).contiguous().transpose(0, 1), v, starts, 0.3)


def test_heads_of_other_widths_are_computed_by_torch():
    assert kernels_of(BEST, torch.float32, 8).attend_whole is attend_whole_by_length
