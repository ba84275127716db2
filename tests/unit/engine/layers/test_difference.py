"""Differential attention as attention over pairs of heads: arXiv:2410.05258, section 2.1."""

import math

import torch

from stoker.engine.kernels import KernelSet
from stoker.engine.layers.difference import Difference, Lambda, order_of_pairs

WIDTH, START, EPS = 6, 0.3, 1e-3


class _Products:
    """Gives four vectors whose products are 1 and 2."""

    def read(self, name: str, into: torch.Tensor) -> None:
        into.zero_()
        into[0] = {"q1": 1.0, "k1": 1.0, "q2": 0.5, "k2": 4.0}[name]


def _difference() -> Difference:
    factor = Lambda(["q1", "k1", "q2", "k2"], WIDTH, START, torch.float32, torch.device("cpu"))
    factor.load(_Products())  # type: ignore[arg-type]
    assert math.isclose(factor.value, math.e - math.e**2 + START, rel_tol=1e-6)
    return Difference(factor, START, 2 * WIDTH, EPS, KernelSet())


def test_scores_and_outputs_are_those_of_two_softmaxes() -> None:
    torch.manual_seed(0)
    pair = _difference()
    queries, keys, values = (torch.randn(count, 2, WIDTH) for count in (1, 5, 5))  # of one pair of heads
    spread = pair.of_queries(queries.view(1, 1, 2 * WIDTH))  # [T, heads, width of a pair]
    scores = torch.einsum("thd,cd->hc", spread, keys.view(5, -1))
    torch.testing.assert_close(scores, torch.einsum("thd,chd->hc", queries, keys))
    first, second = scores.softmax(-1) @ values.view(5, -1)
    total = first - (math.e - math.e**2 + START) * second
    expected = (1 - START) * total / (total.square().mean() + EPS).sqrt()
    torch.testing.assert_close(pair(torch.cat((first, second))[None]), expected[None])


def test_no_tokens_give_no_outputs() -> None:
    pair = _difference()
    assert pair.of_queries(torch.empty(0, 3, 2 * WIDTH)).shape == (0, 6, 2 * WIDTH)
    assert pair(torch.empty(0, 6 * 2 * WIDTH)).shape == (0, 3 * 2 * WIDTH)


def test_a_pair_has_a_head_of_each_half_whose_rotated_elements_are_neighbours() -> None:
    order = order_of_pairs(num_heads=4, num_kv_heads=1, head_dim=8)
    queries, keys, values = order.split([16, 8, 8])
    assert queries.tolist() == [0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15]
    assert keys.tolist() == [16, 18, 17, 19, 20, 22, 21, 23]
    assert values.tolist() == list(range(24, 32))
