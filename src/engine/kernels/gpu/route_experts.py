"""Routing: the experts of each token and their weights. One program for each row of logits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..route_experts import LEAST_SUM, SCORINGS, Routing
from .launch import dependent, wait
from .recurrent import softplus

_LEAST = tl.constexpr(-1e38)  # below every score, above what has been chosen; the sum of two is finite
_LEAST_SUM = tl.constexpr(LEAST_SUM)
_SOFTMAX, _SIGMOID, _SOFTMAX_OF_CHOSEN, _SQRT_SOFTPLUS, _SPARSE_MIXER = (
    tl.constexpr(SCORINGS.index(name)) for name in SCORINGS
)


@triton.jit
def _largest(scores):
    """Largest of the values that are finite."""
    return tl.max(tl.where(scores > _LEAST, scores, _LEAST), 0)


@triton.jit
def _of_best_groups(
    choice, experts, num_experts, groups_per_token, NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr,
    IS_SUM_OF_TWO: tl.constexpr,
):  # fmt: skip
    """The scores of the experts of the best groups; -infinity for the others."""
    group_of = experts // (num_experts // NUM_GROUPS)
    groups = tl.arange(0, GROUPS)
    group_scores = tl.full([GROUPS], -float("inf"), tl.float32)
    for group in range(NUM_GROUPS):
        own = tl.where(group_of == group, choice, -float("inf"))
        score = tl.max(own, 0)
        if IS_SUM_OF_TWO:
            score += tl.max(tl.where(experts == tl.argmax(own, 0), -float("inf"), own), 0)
        group_scores = tl.where(groups == group, score, group_scores)
    is_kept = experts < 0
    for _ in range(groups_per_token):
        best = tl.argmax(group_scores, 0)
        is_kept = is_kept | (group_of == best)
        group_scores = tl.where(groups == best, -float("inf"), group_scores)
    return tl.where(is_kept, choice, -float("inf"))


@triton.jit
def _weight_of_best(scores, best, tolerance):
    """The weight of the best of the scores that are not -infinity: its softmax over those that are nearly as large."""
    is_far = best - scores > tolerance * tl.maximum(tl.abs(scores), best)
    return 1 / tl.sum(tl.where(is_far, 0.0, tl.exp(scores - best)), 0)


@triton.jit
def _route_experts(
    logits, bias, ids, weights, num_experts, per_token, groups_per_token, scale, tolerance,
    NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr,
    SCORING: tl.constexpr, IS_SUM_OF_TWO: tl.constexpr, RENORMALISES: tl.constexpr, HAS_BIAS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, EXPERTS)
    is_expert = experts < num_experts
    scores = tl.load(logits + row * num_experts + experts, mask=is_expert, other=-float("inf")).to(tl.float32)
    if SCORING == _SOFTMAX:
        powers = tl.exp(scores - _largest(scores))
        scores = powers / tl.sum(powers, 0)
    if SCORING == _SIGMOID:
        scores = tl.sigmoid(scores)
    if SCORING == _SQRT_SOFTPLUS:
        scores = tl.sqrt(softplus(scores))
    choice = scores
    if HAS_BIAS:
        choice += tl.load(bias + experts, mask=is_expert, other=0.0)
    choice = tl.where(choice > _LEAST, choice, _LEAST)  # NaN too
    choice = tl.where(is_expert, choice, -float("inf"))
    if NUM_GROUPS > 1:
        choice = _of_best_groups(choice, experts, num_experts, groups_per_token, NUM_GROUPS, GROUPS, IS_SUM_OF_TWO)
    places = tl.arange(0, CHOSEN)
    is_place = places < per_token
    chosen = tl.zeros([CHOSEN], tl.int32)
    values = tl.zeros([CHOSEN], tl.float32)
    for place in range(per_token):
        best = tl.argmax(choice, 0)  # of equal ones the first
        chosen = tl.where(places == place, best, chosen)
        value = tl.sum(tl.where(experts == best, scores, 0.0), 0)
        if SCORING == _SPARSE_MIXER:
            value = _weight_of_best(tl.where(choice >= _LEAST, scores, -float("inf")), value, tolerance)
        values = tl.where(places == place, value, values)
        choice = tl.where(experts == best, -float("inf"), choice)
    if SCORING == _SOFTMAX_OF_CHOSEN:
        values = tl.where(is_place, values, -float("inf"))
        values = tl.exp(values - _largest(values))
    if (SCORING == _SOFTMAX_OF_CHOSEN) | RENORMALISES:
        values = values / (tl.sum(values, 0) + _LEAST_SUM)
    tl.store(ids + row * per_token + places, chosen, mask=is_place)
    tl.store(weights + row * per_token + places, values * scale, mask=is_place)


def route_experts_gpu(
    logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes route_experts_reference. logits: contiguous."""
    rows, num_experts = logits.shape
    if num_experts != routing.num_experts:
        raise ValueError(f"there are logits of {num_experts} experts, not of {routing.num_experts}")
    ids = torch.empty(rows, routing.per_token, dtype=torch.int32, device=logits.device)
    weights = torch.empty(rows, routing.per_token, dtype=torch.float32, device=logits.device)
    is_sum = routing.group_score == "sum_of_two" and num_experts > routing.num_groups
    if rows:
        _route_experts[(rows,)](
            logits, bias, ids, weights, num_experts, routing.per_token, routing.groups_per_token, routing.scale,
            routing.tolerance, NUM_GROUPS=routing.num_groups, GROUPS=triton.next_power_of_2(routing.num_groups),
            EXPERTS=triton.next_power_of_2(num_experts), CHOSEN=triton.next_power_of_2(routing.per_token),
            SCORING=SCORINGS.index(routing.scoring), IS_SUM_OF_TWO=is_sum, RENORMALISES=routing.renormalises,
            HAS_BIAS=bias is not None, num_warps=1 if num_experts <= 512 else 4, **dependent(),
        )  # fmt: skip
    return ids, weights
