"""Routing: the experts that each token goes through, and the weights of their outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer

# The order is that of the enums in cpu/route_experts.cpp.
SCORINGS = ("softmax", "sigmoid", "softmax_of_chosen", "sqrt_softplus", "sparse_mixer")
GROUP_SCORES = ("maximum", "sum_of_two")
LEAST_SUM = 1e-20  # added before dividing by a sum of scores


@dataclass(frozen=True, slots=True)
class Routing:
    """How a family chooses experts: by the scores of all, the best for each token, possibly of some groups only.

    Qwen3-MoE: softmax, renormalised or not; Mixtral: renormalised; gpt-oss: `softmax_of_chosen`; DeepSeek V2: groups by
    their maximum, a scale; DeepSeek V3 and GLM-4.5: sigmoid, a bias, groups by the sum of two, renormalised, a scale;
    MiniMax-M2: sigmoid, a bias, renormalised; DeepSeek V4: `sqrt_softplus`, the root of log(1 + exp(logit)), a bias;
    Phi-3.5-MoE: `sparse_mixer`.

    sparse_mixer: the best logits are taken, one after the other. The weight of each is its softmax over the experts
    that are not taken before it and whose logits are nearly as large: m - x <= tolerance * max(abs(x), m), where m is
    the logit that is taken. Liu et al., arXiv:2409.12136.

    Raises ValueError for values that contradict each other.
    """

    num_experts: int
    per_token: int
    # of the logits of all experts, or the chosen
    scoring: Literal["softmax", "sigmoid", "softmax_of_chosen", "sqrt_softplus", "sparse_mixer"] = "softmax"
    renormalises: bool = False  # the weights of a token are divided by their sum
    scale: float = 1.0  # of all weights
    num_groups: int = 1  # equal numbers of consecutive experts
    groups_per_token: int = 1  # a token's experts are from its best groups
    group_score: Literal["maximum", "sum_of_two"] = "maximum"  # of a group: that of its best expert or two
    tolerance: float = 0.0  # of sparse_mixer

    def __post_init__(self) -> None:
        if self.num_groups < 1 or self.num_experts % self.num_groups:
            raise ValueError(f"{self.num_experts} experts cannot be divided into {self.num_groups} equal groups")
        if not 1 <= self.groups_per_token <= self.num_groups:
            raise ValueError(f"a token cannot use {self.groups_per_token} of {self.num_groups} groups of experts")
        available = self.num_experts // self.num_groups * self.groups_per_token
        if not 1 <= self.per_token <= available:
            raise ValueError(f"a token cannot use {self.per_token} of {available} experts")
        if self.scoring == "sparse_mixer" and (self.renormalises or self.num_groups > 1):
            raise ValueError("the weights of sparse_mixer are not divided by their sum, and its experts have no groups")


# Logits, bias, routing: described at the reference.
RouteExperts = Callable[[torch.Tensor, torch.Tensor | None, Routing], tuple[torch.Tensor, torch.Tensor]]
WeighExperts = Callable[[torch.Tensor, torch.Tensor, Routing], torch.Tensor]  # logits, ids, routing: the same
OwnExperts = Callable[[torch.Tensor, range], torch.Tensor]  # ids, own: described at the reference


@dataclass(frozen=True, slots=True)
class ExpertCopies:
    """Places of the copies of experts, numbered from 0 over all processes, which have equally many places.

    Captured steps read the tensors, so they are changed in place.
    """

    starts: torch.Tensor  # [E + 1] int32: expert e has places[starts[e] : starts[e + 1]]
    places: torch.Tensor  # [P] int32
    counts: torch.Tensor  # [P] int64: tokens that went to each place
    own: range  # the places of this process


OwnPlaces = Callable[[torch.Tensor, ExpertCopies], torch.Tensor]  # ids, copies: described at the reference


def route_experts_reference(
    logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts for each token. Among equal scores, the expert with the lower index is chosen.

    Args:
        logits: [T, E], of the router.
        bias: [E] float32, added to the scores for the choice and not for the weights; or None.
    Returns:
        (experts [T, per_token] int32, the best first; their weights [T, per_token] float32).
    """
    scores = _scores(logits, routing)
    choice = scores if bias is None else scores + bias
    if routing.num_groups > 1:
        groups = choice.view(len(logits), routing.num_groups, routing.num_experts // routing.num_groups)
        best = groups.topk(min(2, groups.shape[-1]) if routing.group_score == "sum_of_two" else 1).values.sum(-1)
        is_kept = torch.zeros_like(best, dtype=torch.bool).scatter_(1, _best(best, routing.groups_per_token), True)
        choice = groups.masked_fill(~is_kept[..., None], -torch.inf).flatten(1)
    ids = _best(choice, routing.per_token)
    return ids.int(), _weights(scores, ids, routing)


def weigh_experts_reference(logits: torch.Tensor, ids: torch.Tensor, routing: Routing) -> torch.Tensor:
    """The weights of experts that were chosen by something else than their scores.

    logits: [T, E]. ids: [T, per_token] int32. Returns [T, per_token] float32. Raises ValueError for `sparse_mixer`.
    """
    _check_listed(routing)
    return _weights(_scores(logits, routing), ids.long(), routing)


def _check_listed(routing: Routing) -> None:
    """Raises ValueError if the weight of an expert depends on the order in which they are chosen."""
    if routing.scoring == "sparse_mixer":
        raise ValueError("the weights of sparse_mixer follow from the choice, so its experts cannot be listed")


def _scores(logits: torch.Tensor, routing: Routing) -> torch.Tensor:
    scores = logits.float()
    match routing.scoring:
        case "softmax":
            return scores.softmax(-1)
        case "sigmoid":
            return scores.sigmoid()
        case "sqrt_softplus":
            return F.softplus(scores).sqrt()
        case _:
            return scores


def _weights(scores: torch.Tensor, ids: torch.Tensor, routing: Routing) -> torch.Tensor:
    if routing.scoring == "sparse_mixer":
        return _sparse_mixer(scores, ids, routing.tolerance) * routing.scale
    weights = scores.gather(1, ids)
    if routing.scoring == "softmax_of_chosen":
        weights = weights.softmax(-1)
    elif routing.renormalises:
        weights = weights / (weights.sum(-1, keepdim=True) + LEAST_SUM)
    return weights * routing.scale


def _sparse_mixer(scores: torch.Tensor, ids: torch.Tensor, tolerance: float) -> torch.Tensor:
    weights = []
    remaining = scores
    for place in range(ids.shape[1]):
        taken = ids[:, place : place + 1]
        best = scores.gather(1, taken)
        is_far = best - scores > tolerance * torch.maximum(scores.abs(), best)
        weights.append(remaining.masked_fill(is_far, -torch.inf).softmax(-1).gather(1, taken))
        remaining = remaining.scatter(1, taken, -torch.inf)
    return torch.cat(weights, dim=1)


def _best(scores: torch.Tensor, count: int) -> torch.Tensor:
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def own_experts_reference(ids: torch.Tensor, own: range) -> torch.Tensor:
    """ids: [T, k] int32, of experts. own: the experts that this process has.

    Returns their indices in `own`, [T, k] int32; -1 for experts of other processes.
    """
    places = torch.div(ids - own.start, own.step, rounding_mode="floor")
    is_own = (ids >= own.start) & (ids < own.stop) & ((ids - own.start) % own.step == 0)
    return places.where(is_own, -1)


def own_places_reference(ids: torch.Tensor, copies: ExpertCopies) -> torch.Tensor:
    """ids: [T, k] int32, of experts. Token t goes to copy t % n of an expert with n copies, and is counted there.

    Returns the indices of these places in `copies.own`, [T, k] int32; -1 for places of other processes.
    """
    starts = copies.starts[ids]
    tokens = torch.arange(len(ids), dtype=torch.int32, device=ids.device)[:, None]
    places = copies.places[starts + tokens % (copies.starts[ids + 1] - starts)]
    copies.counts.add_(torch.bincount(places.flatten(), minlength=len(copies.counts)))
    is_own = (places >= copies.own.start) & (places < copies.own.stop)
    return (places - copies.own.start).where(is_own, -1)


def own_experts_cpu(library: CpuLibrary) -> OwnExperts:
    empty = library.memory.empty
    translate = library.function("own_experts", [POINTER, POINTER, *[INT64] * 4])

    def own_experts(ids: torch.Tensor, own: range) -> torch.Tensor:
        out = empty(*ids.shape, dtype=torch.int32)
        translate(pointer(ids, torch.int32), out.data_ptr(), ids.numel(), own.start, own.step, len(own))
        return out

    return own_experts


def own_places_cpu(library: CpuLibrary) -> OwnPlaces:
    empty = library.memory.empty
    translate = library.function("own_places", [POINTER, POINTER, *[INT64] * 2, *[POINTER] * 3, *[INT64] * 2])

    def own_places(ids: torch.Tensor, copies: ExpertCopies) -> torch.Tensor:
        out = empty(*ids.shape, dtype=torch.int32)
        translate(
            pointer(ids, torch.int32),
            out.data_ptr(),
            *ids.shape,
            pointer(copies.starts, torch.int32),
            pointer(copies.places, torch.int32),
            pointer(copies.counts, torch.int64),
            copies.own.start,
            len(copies.own),
        )
        return out

    return own_places


def route_experts_cpu(library: CpuLibrary, dtype: torch.dtype) -> RouteExperts:
    """Return the op for logits of `dtype` or float32."""
    empty = library.memory.empty
    arguments = [POINTER] * 4 + [INT64] * 5 + [INT] * 3 + [FLOAT] * 2
    calls = {each: library.op("route_experts", each, arguments) for each in {dtype, torch.float32}}

    def route_experts(
        logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, num_experts = logits.shape
        if num_experts != routing.num_experts:
            raise ValueError(f"there are logits of {num_experts} experts, not of {routing.num_experts}")
        ids = empty(rows, routing.per_token, dtype=torch.int32)
        weights = empty(rows, routing.per_token, dtype=torch.float32)
        calls[logits.dtype](
            pointer(logits, logits.dtype),
            None if bias is None else pointer(bias, torch.float32),
            ids.data_ptr(),
            weights.data_ptr(),
            rows,
            num_experts,
            routing.per_token,
            routing.num_groups,
            routing.groups_per_token,
            SCORINGS.index(routing.scoring),
            GROUP_SCORES.index(routing.group_score),
            routing.renormalises,
            routing.scale,
            routing.tolerance,
        )
        return ids, weights

    return route_experts


def weigh_experts_cpu(library: CpuLibrary, dtype: torch.dtype) -> WeighExperts:
    """Return the op for logits of `dtype` or float32."""
    empty = library.memory.empty
    arguments = [*[POINTER] * 3, *[INT64] * 3, INT, INT, FLOAT]
    calls = {each: library.op("weigh_experts", each, arguments) for each in {dtype, torch.float32}}

    def weigh_experts(logits: torch.Tensor, ids: torch.Tensor, routing: Routing) -> torch.Tensor:
        _check_listed(routing)
        rows, num_experts = logits.shape
        if num_experts != routing.num_experts or ids.shape != (rows, routing.per_token):
            raise ValueError(
                f"there are logits of {num_experts} experts, not of {routing.num_experts}; ids {ids.shape}"
            )
        weights = empty(rows, routing.per_token, dtype=torch.float32)
        calls[logits.dtype](
            pointer(logits, logits.dtype),
            pointer(ids, torch.int32),
            weights.data_ptr(),
            rows,
            num_experts,
            routing.per_token,
            SCORINGS.index(routing.scoring),
            routing.renormalises,
            routing.scale,
        )
        return weights

    return weigh_experts
