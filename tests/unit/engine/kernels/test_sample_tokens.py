"""The C++ passes over a vocabulary give the results of their references."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.slow_cases import slow

from stoker.engine.kernels import KernelSet
from stoker.engine.kernels.noise import row_keys
from stoker.engine.kernels.sample_among import Choice

from .levels import BEST, kernels_of

REFERENCE = KernelSet()


@pytest.fixture(scope="module", params=[BEST, slow("portable")])
def kernels(request: pytest.FixtureRequest) -> KernelSet:
    return kernels_of(request.param, torch.float32)


def make_logits(rows: int, vocab_size: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 3).to(dtype)


def keys(rows: int) -> torch.Tensor:
    return row_keys(np.arange(rows, dtype=np.uint64), np.full(rows, 9))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [1, 5, 97, 4096, 5001])
def test_samples_equal_the_reference(kernels: KernelSet, dtype: torch.dtype, vocab_size: int):
    rows = 64
    logits = make_logits(rows, vocab_size, dtype)
    temperature = torch.linspace(0.0, 2.0, rows)  # the first row is greedy
    min_p = torch.tensor([0.0, 0.02]).repeat(rows // 2)
    arguments = logits, temperature, min_p, keys(rows)
    assert torch.equal(kernels.sample_tokens(*arguments), REFERENCE.sample_tokens(*arguments))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [1, 5, 97, 4096, 5001])
@pytest.mark.quick_cases(6)
def test_top_p_samples_equal_the_reference(kernels: KernelSet, dtype: torch.dtype, vocab_size: int):
    rows = 120
    logits = make_logits(rows, vocab_size, dtype)
    logits[: rows // 2] = logits[: rows // 2].round()  # many equal logits, also at the boundary of the nucleus
    temperature, top_p = torch.linspace(0.2, 3.0, rows), torch.tensor([0.001, 0.3, 0.5, 0.9, 0.999]).repeat(rows // 5)
    min_p = torch.tensor([0.0, 0.02, 0.0]).repeat(rows // 3)
    arguments = logits, temperature, min_p, top_p, keys(rows)
    assert torch.equal(kernels.sample_top_p(*arguments), REFERENCE.sample_top_p(*arguments))


def choice_of(rows: int, **columns: float) -> Choice:
    """The same for each row. columns: off where they are left out."""
    values = {"temperature": 1.0, "min_p": 0.0, "top_p": 1.0} | columns
    floats = (torch.full((rows,), values[name]) for name in ("temperature", "min_p", "top_p"))
    return Choice(*floats, torch.full((rows,), int(columns.get("top_k", 0)), dtype=torch.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [1, 5, 97, 4096])
@pytest.mark.quick_cases(4)
def test_samples_among_some_tokens_are_those_of_all_tokens(kernels: KernelSet, dtype: torch.dtype, num_tokens: int):
    rows, vocab_size = 64, 5001
    generator = torch.Generator().manual_seed(num_tokens)
    token_ids = torch.randperm(vocab_size, generator=generator)[:num_tokens].sort().values
    logits = make_logits(rows, num_tokens, dtype)
    logits[: rows // 2] = logits[: rows // 2].round()  # many equal logits
    whole = torch.full((rows, vocab_size), -torch.inf, dtype=dtype)
    whole[:, token_ids] = logits
    choice = choice_of(rows)._replace(
        temperature=torch.linspace(0.0, 2.0, rows), min_p=torch.tensor([0.0, 0.02]).repeat(rows // 2)
    )
    some = choice._replace(top_p=torch.tensor([0.001, 0.3, 0.9, 1.0]).repeat(rows // 4))
    some = some._replace(temperature=torch.linspace(0.1, 2.0, rows))
    for columns, expected in (
        (choice, REFERENCE.sample_tokens(whole, *choice[:2], keys(rows))),
        (some, REFERENCE.sample_top_p(whole, *some[:3], keys(rows))),
    ):
        for ops in (kernels, REFERENCE):
            found = ops.sample_among(logits, columns, keys(rows), token_ids.to(torch.int32))
            assert torch.equal(found, expected)


@pytest.mark.parametrize("top_p", [0.4, 0.9, 1.0])
@pytest.mark.parametrize("top_k", [1, 2, 7, 300, 4096, 9000])
def test_samples_among_the_best_of_some_tokens_equal_the_reference(kernels: KernelSet, top_k: int, top_p: float):
    rows, num_tokens = 48, 4096
    logits = make_logits(rows, num_tokens, torch.float32)
    logits[: rows // 2] = logits[: rows // 2].round()  # equal logits at the boundaries
    arguments = choice_of(rows, top_k=top_k, top_p=top_p, temperature=0.8), keys(rows)
    token_ids = torch.arange(3, 3 + 2 * num_tokens, 2, dtype=torch.int32)
    found = kernels.sample_among(logits, *arguments, token_ids)
    assert torch.equal(found, REFERENCE.sample_among(logits, *arguments, token_ids))
    if top_k == 1:
        assert torch.equal(found, token_ids[logits.argmax(1)].to(torch.int64))


@pytest.mark.parametrize("columns", [{"temperature": 0.0}, {}, {"top_k": 3}, {"top_p": 0.5}])
def test_a_row_without_finite_logits_gets_the_first_of_some_tokens(kernels: KernelSet, columns: dict[str, float]):
    for value in (torch.nan, -torch.inf):
        for ops in (kernels, REFERENCE):
            found = ops.sample_among(
                torch.full((2, 40), value), choice_of(2, **columns), keys(2), torch.arange(7, 47, dtype=torch.int32)
            )
            assert found.tolist() == [7, 7]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["sample_tokens", "sample_top_p"])
def test_some_logits_may_be_nan_or_infinite(kernels: KernelSet, name: str, value: float):
    logits = make_logits(2, 5001, torch.float32)
    logits[0, 17:40] = value
    columns = [torch.full((2,), 0.5), torch.zeros(2), torch.full((2,), 0.5)]
    found = getattr(kernels, name)(logits, *columns[: 3 if name == "sample_top_p" else 2], keys(2))
    assert all(0 <= token_id < 5001 for token_id in found.tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [1, 50, 5001])
@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_nothing_is_sampled_from_a_row_without_finite_logits(
    kernels: KernelSet, value: float, vocab_size: int, dtype: torch.dtype
):
    logits = make_logits(4, vocab_size, dtype)
    logits[[0, 2]] = value
    temperature, halves = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.full((4,), 0.5)
    for ops in (kernels, REFERENCE):
        found = ops.sample_tokens(logits, temperature, torch.zeros(4), keys(4))
        assert (found < 0).tolist() == [True, False, True, False]
        found = ops.sample_top_p(logits, halves, torch.zeros(4), halves, keys(4))
        assert (found < 0).tolist() == [True, False, True, False]


@pytest.mark.parametrize("temperature", [1e-40, 1e-3, 1.0, 50.0])
@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0])
def test_samples_from_flat_and_from_steep_rows_equal_the_reference(
    kernels: KernelSet, scale: float, temperature: float
):
    rows = 32
    logits = make_logits(rows, 20_000, torch.float32) * scale
    arguments = logits, torch.full((rows,), temperature), torch.zeros(rows), keys(rows)
    assert torch.equal(kernels.sample_tokens(*arguments), REFERENCE.sample_tokens(*arguments))


def test_greedy_rows_take_the_first_of_the_largest(kernels: KernelSet):
    logits = torch.zeros(3, 100)
    logits[1, [40, 99]] = 1.0
    logits[2, :99] = -torch.inf
    zeros = torch.zeros(3)
    assert kernels.sample_tokens(logits, zeros, zeros, keys(3)).tolist() == [0, 40, 99]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [1, 97, 5001])
def test_mass_equals_the_reference(kernels: KernelSet, dtype: torch.dtype, vocab_size: int):
    logits = make_logits(6, vocab_size, dtype)
    temperature, min_p = torch.linspace(0.3, 2.0, 6), torch.tensor([0.0, 0.01] * 3)
    for found, expected in zip(
        kernels.softmax_mass(logits, temperature, min_p),
        REFERENCE.softmax_mass(logits, temperature, min_p),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [1, 97, 5001])
def test_counts_equal_the_reference(kernels: KernelSet, dtype: torch.dtype, vocab_size: int):
    logits = make_logits(6, vocab_size, dtype)
    bounds = logits[:, 0].float().contiguous()
    assert torch.equal(kernels.count_above(logits, bounds), REFERENCE.count_above(logits, bounds))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab_size", [1, 32, 97, 5001])
def test_forbidden_tokens_are_those_of_the_reference(kernels: KernelSet, dtype: torch.dtype, vocab_size: int):
    logits, rows = make_logits(6, vocab_size, dtype), torch.tensor([4, 0, 2])
    masks = torch.randint(-(1 << 31), 1 << 31, (3, -(-vocab_size // 32)), generator=torch.Generator().manual_seed(1))
    masks = masks.to(torch.int32)
    masks[1, ::2], masks[2, ::3] = 0, -1
    found, expected = logits.clone(), logits.clone()
    kernels.allow_tokens(found, rows, masks)
    for row, mask in zip(rows.tolist(), masks.tolist(), strict=True):
        for token in range(vocab_size):
            if not mask[token // 32] >> token % 32 & 1:
                expected[row, token] = -torch.inf
    assert torch.equal(found, expected)
    REFERENCE.allow_tokens(logits, rows, masks)
    assert torch.equal(logits, expected)


def test_masks_of_another_size_and_rows_outside_are_refused(kernels: KernelSet):
    logits, mask = make_logits(2, 97, torch.float32), torch.zeros(1, 4, dtype=torch.int32)
    for rows, masks in ((torch.tensor([0]), mask[:, :3]), (torch.tensor([0, 1]), mask), (torch.tensor([2]), mask)):
        with pytest.raises((ValueError, IndexError)):
            kernels.allow_tokens(logits, rows, masks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("vocab_size", "count"), [(97, 1), (97, 12), (5001, 20), (5001, 600), (64, 64)])
def test_top_tokens_equal_the_reference(kernels: KernelSet, dtype: torch.dtype, vocab_size: int, count: int):
    logits = make_logits(5, vocab_size, dtype)
    logits[1] = logits[1].round()  # ties
    logits[2, 3:] = -torch.inf  # fewer than requested
    logits[3] = 1.0
    for found, expected in zip(kernels.top_tokens(logits, count), REFERENCE.top_tokens(logits, count), strict=True):
        assert torch.equal(found, expected)
