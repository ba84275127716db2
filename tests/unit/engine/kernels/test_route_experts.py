"""Routing, compared with the routers of transformers: the same experts, and weights within rounding."""

import pytest
import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV3Config,
    GptOssConfig,
    MiniMaxM2Config,
    MixtralConfig,
    PhimoeConfig,
    Qwen3MoeConfig,
)
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.minimax_m2.modeling_minimax_m2 import MiniMaxM2TopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.phimoe.modeling_phimoe import PhimoeTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from stoker.engine.kernels.route_experts import SCORINGS, ExpertCopies, Routing, route_experts_reference

from .levels import LEVEL_NAMES, kernels_of

HIDDEN = 32
LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)


def qwen3_moe(renormalises):
    config = Qwen3MoeConfig(hidden_size=HIDDEN, num_experts=40, num_experts_per_tok=8, norm_topk_prob=renormalises)
    return Qwen3MoeTopKRouter(config), Routing(40, 8, renormalises=renormalises)


def mixtral():
    config = MixtralConfig(hidden_size=HIDDEN, num_local_experts=8, num_experts_per_tok=2)
    return MixtralTopKRouter(config), Routing(8, 2, renormalises=True)


def gpt_oss():
    config = GptOssConfig(hidden_size=HIDDEN, num_local_experts=33, num_experts_per_tok=4)
    return GptOssTopKRouter(config), Routing(33, 4, "softmax_of_chosen")


def deepseek_v2():
    config = DeepseekV2Config(
        hidden_size=HIDDEN, n_routed_experts=40, num_experts_per_tok=6, n_group=8, topk_group=3,
        topk_method="group_limited_greedy", routed_scaling_factor=16.0,
    )  # fmt: skip
    return DeepseekV2TopkRouter(config), Routing(40, 6, scale=16.0, num_groups=8, groups_per_token=3)


def deepseek_v3(num_groups):
    config = DeepseekV3Config(
        hidden_size=HIDDEN, n_routed_experts=48, num_experts_per_tok=8, n_group=num_groups, topk_group=num_groups // 2,
        norm_topk_prob=True, routed_scaling_factor=2.5,
    )  # fmt: skip
    routing = Routing(
        48, 8, "sigmoid", renormalises=True, scale=2.5,
        num_groups=num_groups, groups_per_token=num_groups // 2, group_score="sum_of_two",
    )  # fmt: skip
    return DeepseekV3TopkRouter(config), routing


def minimax_m2():
    config = MiniMaxM2Config(hidden_size=HIDDEN, num_local_experts=40, num_experts_per_tok=8)
    return MiniMaxM2TopKRouter(config), Routing(40, 8, "sigmoid", renormalises=True)


def phimoe(jitter):
    config = PhimoeConfig(hidden_size=HIDDEN, num_local_experts=16, router_jitter_noise=jitter)
    return PhimoeTopKRouter(config).eval(), Routing(16, 2, "sparse_mixer", tolerance=2 * jitter)


ROUTERS = {
    "qwen3_moe": lambda: qwen3_moe(True),
    "qwen3_moe, not renormalised": lambda: qwen3_moe(False),
    "mixtral": mixtral,
    "gpt_oss": gpt_oss,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": lambda: deepseek_v3(8),
    "deepseek_v3, groups of two": lambda: deepseek_v3(24),
    "minimax_m2": minimax_m2,
    "phimoe": lambda: phimoe(0.01),
    "phimoe, others of nearly the same logit": lambda: phimoe(0.3),
}


@LEVELS
@pytest.mark.parametrize("tokens", [1, 7, 100])
@pytest.mark.parametrize("family", ROUTERS)
def test_the_choice_and_the_weights_are_those_of_transformers(level, family, tokens):
    router, routing = ROUTERS[family]()
    with torch.no_grad():
        for parameter in router.parameters():
            parameter.normal_()
        bias = None
        arguments = [torch.randn(tokens, HIDDEN)]
        if routing.scoring == "sigmoid":
            bias = torch.randn(routing.num_experts)
            if family == "minimax_m2":
                arguments.append(bias)
            else:
                router.e_score_correction_bias.copy_(bias)
        logits, expected, chosen = router(*arguments)
    chosen, order = chosen.sort(-1)
    ids, weights = kernels_of(level, torch.float32).route_experts(logits, bias, routing)
    assert (ids.dtype, weights.dtype) == (torch.int32, torch.float32)
    ids, own_order = ids.sort(-1)
    assert torch.equal(ids.long(), chosen)
    torch.testing.assert_close(weights.gather(1, own_order), expected.gather(1, order), rtol=3e-6, atol=1e-7)


@LEVELS
def test_of_equal_scores_the_lower_index_is_chosen(level):
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0, 1.0, 1.0, 2.0], [3.0] * 7, [-torch.inf] * 6 + [0.0]])
    route_experts = kernels_of(level, torch.float32).route_experts
    for scoring in ("softmax", "sigmoid", "softmax_of_chosen"):
        assert route_experts(logits, None, Routing(7, 4, scoring))[0].tolist() == [
            [1, 3, 6, 2],
            [0, 1, 2, 3],
            [6, 0, 1, 2],
        ]
    # Four groups of equal scores: the first two are kept, and experts are taken in the order of their indices.
    grouped = Routing(8, 3, num_groups=4, groups_per_token=2)
    assert route_experts(torch.ones(1, 8), None, grouped)[0].tolist() == [[0, 1, 2]]
    # The best group is the last one, and an expert of the first kept group has the same score.
    logits = torch.tensor([[1.0, 5.0, 0.0, 0.0, 5.0, 6.0]])
    grouped = Routing(6, 3, num_groups=3, groups_per_token=2)
    assert route_experts(logits, None, grouped)[0].tolist() == [[5, 1, 4]]


@LEVELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sparse_mixer_weighs_an_expert_among_those_with_nearly_the_same_logit(level, dtype):
    """Within a quarter of the larger absolute value: [4, 3] of the first row, then [3]; below 0 it is that of x."""
    logits = torch.tensor([[4.0, 3.0, 2.0, -9.0], [-4.0, -3.0, -9.0, -4.0], [0.0, 0.0, -1.0, -1.0]]).to(dtype)
    routing = Routing(4, 3, "sparse_mixer", scale=2.0, tolerance=0.25)
    ids, weights = kernels_of(level, dtype).route_experts(logits, None, routing)
    assert ids.tolist() == [[0, 1, 2], [1, 0, 3], [0, 1, 2]]
    of_two = torch.tensor(1.0).sigmoid().item()
    expected = [[of_two, 1, 1], [1 / (1 + 2 * torch.tensor(-1.0).exp().item()), 0.5, 1], [0.5, 1, 0.5]]
    torch.testing.assert_close(weights, 2 * torch.tensor(expected), rtol=3e-6, atol=1e-7)


@LEVELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("experts", "per_token"), [(1, 1), (2, 2), (16, 3), (100, 10), (512, 10)])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "softmax_of_chosen"])
@pytest.mark.quick_cases(15)
def test_any_number_of_experts(level, dtype, experts, per_token, scoring):
    logits = (torch.randperm(33 * experts).view(33, experts) / (4 * experts) - 4).to(dtype)  # few are equal
    routing = Routing(experts, per_token, scoring, renormalises=True, scale=0.5)
    ids, weights = kernels_of(level, dtype).route_experts(logits, None, routing)
    expected_ids, expected = route_experts_reference(logits.double(), None, routing)
    if scoring == "softmax_of_chosen":  # exponentials of different logits can be equal
        assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected.float(), rtol=3e-6, atol=1e-7)
    torch.testing.assert_close(weights.sum(-1), torch.full((33,), 0.5))


@LEVELS
def test_a_row_of_nan_chooses_experts_that_exist(level):
    """Its weights are NaN, which later steps see; an index outside the table would be read as an address."""
    logits = torch.full((2, 40), torch.nan)
    logits[1, 7:] = torch.randn(33)
    for routing in (
        Routing(40, 8),
        Routing(40, 6, "sigmoid", num_groups=8, groups_per_token=3),
        Routing(40, 2, "sparse_mixer", tolerance=0.1),
    ):
        ids, weights = kernels_of(level, torch.float32).route_experts(logits, None, routing)
        assert ids.min() >= 0
        assert ids.max() < 40
        assert weights[0].isnan().all()


@LEVELS
@pytest.mark.parametrize("scoring", [scoring for scoring in SCORINGS if scoring != "sparse_mixer"])
@pytest.mark.parametrize("renormalises", [False, True])
def test_experts_that_a_table_lists_have_the_weights_of_chosen_ones(level, scoring, renormalises):
    kernels, routing = kernels_of(level, torch.bfloat16), Routing(19, 4, scoring, renormalises, scale=1.5)
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.randn(37, 19, generator=torch.Generator().manual_seed(3)).to(dtype)
        ids, weights = kernels.route_experts(logits, None, routing)
        assert torch.equal(kernels.weigh_experts(logits, ids, routing), weights)
        last = ids.flip(1).contiguous()  # none of a token's experts has to be its best
        torch.testing.assert_close(kernels.weigh_experts(logits, last, routing), weights.flip(1))


@LEVELS
def test_listed_experts_of_another_number_are_refused(level):
    if level == "torch":
        return
    with pytest.raises(ValueError, match="logits of 8 experts"):
        kernels_of(level, torch.float32).weigh_experts(torch.zeros(1, 8), torch.zeros(1, 3).int(), Routing(8, 2))


@LEVELS
def test_listed_experts_have_no_weights_that_depend_on_their_order(level):
    kernels, routing = kernels_of(level, torch.float32), Routing(8, 2, "sparse_mixer", tolerance=0.1)
    with pytest.raises(ValueError, match="cannot be listed"):
        kernels.weigh_experts(torch.zeros(1, 8), torch.zeros(1, 2).int(), routing)


@LEVELS
def test_no_tokens(level):
    ids, weights = kernels_of(level, torch.bfloat16).route_experts(torch.empty(0, 8).bfloat16(), None, Routing(8, 2))
    assert ids.shape == weights.shape == (0, 2)


@LEVELS
def test_to_float32_is_exact(level):
    for count in (1, 15, 16, 33, 200_000):
        x = torch.randn(1, count).bfloat16()
        assert torch.equal(kernels_of(level, torch.bfloat16, threads=2).to_float32(x), x.float())
    kernels_of(level, torch.bfloat16, threads=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_experts": 8, "per_token": 9}, "a token cannot use 9 of 8 experts"),
        ({"num_experts": 8, "per_token": 0}, "a token cannot use 0 of 8 experts"),
        ({"num_experts": 8, "per_token": 2, "num_groups": 3}, "8 experts cannot be divided into 3 equal groups"),
        (
            {"num_experts": 8, "per_token": 2, "num_groups": 2, "groups_per_token": 3},
            "a token cannot use 3 of 2 groups",
        ),
        ({"num_experts": 8, "per_token": 3, "num_groups": 4}, "a token cannot use 3 of 2 experts"),
        (
            {"num_experts": 8, "per_token": 2, "scoring": "sparse_mixer", "renormalises": True},
            "the weights of sparse_mixer are not divided by their sum",
        ),
    ],
)
def test_a_routing_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Routing(**arguments)


@LEVELS
def test_logits_of_another_number_of_experts_are_refused(level):
    if level == "torch":
        return
    with pytest.raises(ValueError, match="logits of 9 experts, not of 8"):
        kernels_of(level, torch.float32).route_experts(torch.zeros(1, 9), None, Routing(8, 2))


@LEVELS
@pytest.mark.parametrize("own", [range(3), range(3, 6)])
def test_the_copies_of_an_expert_take_turns_by_row_and_are_counted(level, own):
    """Places 0 to 5 have the experts 0, 1, 2 and 2, 3, 0."""
    copies = ExpertCopies(
        torch.tensor([0, 2, 3, 5, 6], dtype=torch.int32),
        torch.tensor([0, 5, 1, 3, 2, 4], dtype=torch.int32),  # experts 0, 0, 1, 2, 2, 3
        torch.zeros(6, dtype=torch.int64),
        own,
    )
    ids = torch.tensor([[0, 2], [0, 1], [2, 0]], dtype=torch.int32)
    places = [[0, 3], [5, 1], [3, 0]]
    for times in (1, 2):
        found = kernels_of(level, torch.float32).own_places(ids, copies)
        assert found.dtype == torch.int32
        assert found.tolist() == [[each - own.start if each in own else -1 for each in row] for row in places]
        assert copies.counts.tolist() == [2 * times, times, 0, 2 * times, 0, times]


@LEVELS
@pytest.mark.parametrize("own", [range(4), range(4, 9), range(1, 9, 3), range(8, 9)])
def test_experts_have_other_numbers_where_a_process_has_some_of_them(level, own):
    ids = torch.tensor([[0, 3, 8], [4, 1, 7]], dtype=torch.int32)
    found = kernels_of(level, torch.float32).own_experts(ids, own)
    assert found.dtype == torch.int32
    places = {expert: place for place, expert in enumerate(own)}
    assert found.tolist() == [[places.get(expert, -1) for expert in row] for row in ids.tolist()]
