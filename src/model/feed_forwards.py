"""Feed-forward blocks: descriptions of dense blocks and of experts with their router.

Sizes are numbers of elements; `activations` is the elements per token while a step is computed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .record import Record


class MLP(Record):
    """down(act(gate) * up), or down(act(up)) if it is not gated."""

    kind: Literal["mlp"] = "mlp"
    width: int
    activation: str = "silu"  # as config.json names it
    is_gated: bool = True
    gate_limit: float | None = None  # gates are not above it, and ups are between it and its negative
    has_bias: bool = False
    has_down_bias: bool = False  # of its last layer, where the others have none

    @property
    def activations(self) -> int:
        return (2 + self.is_gated) * self.width


Scoring = Literal["softmax", "sigmoid", "softmax_of_chosen", "sqrt_softplus", "sparse_mixer"]


class Routing(Record):
    """How a token's experts and their weights follow from the router's logits.

    softmax, sigmoid, sqrt_softplus: scores of all experts, of which the best are taken. softmax_of_chosen: the best
    logits are taken, and the weights are their softmax. sparse_mixer: the best logits are taken, and the weight of each
    is its softmax over the experts not taken before it whose logits are as large within the tolerance.
    has_correction: a bias is added to the scores for the choice only.
    """

    scoring: Scoring = "softmax"
    is_renormalised: bool = False  # the weights of the chosen add up to 1
    has_correction: bool = False
    num_groups: int = 1  # experts are chosen in the best `groups_per_token` groups
    groups_per_token: int = 1
    scale: float = 1.0  # of the weights
    tolerance: float = 0.0  # of sparse_mixer, relative
    is_float32: bool = False  # the router multiplies in float32, whatever the model does


# How several devices share the experts of a layer: each has a part of every expert, or whole experts, consecutive ones
# or every n-th.
Placement = Literal["divided", "linear", "round_robin"]


class Experts(Record):
    """`per_token` of `count` expert MLPs run for each token, and one of `shared_width` for all."""

    kind: Literal["experts"] = "experts"
    count: int
    per_token: int
    width: int
    routing: Routing = Routing()
    scales_input: bool = False  # the weight of an expert multiplies its input, not its output
    shared_width: int = 0
    has_shared_gate: bool = False  # the sigmoid of one output of a linear layer multiplies that of the shared one
    beside: MLP | None = None  # runs for each token too: the experts and it have their own norms (Gemma 4)
    has_router_norm: bool = False  # of the router's own input, which is not normed for the experts
    has_scales: bool = False  # a number for each expert multiplies its weight
    has_router_bias: bool = False
    has_bias: bool = False
    activation: str = "silu"
    is_gated: bool = True
    gate_limit: float | None = None  # as of an MLP
    shared_gate_limit: float | None = None  # of the one that runs for all
    listed_tokens: int = 0  # rows of a table with the experts of each token id; 0: the router chooses them
    placement: Placement = "divided"
    redundant: int | None = None  # further copies of experts, where these are moved by their load; None: they stay
    held: int | None = None  # experts that one device has, where they are placed; None: all
    num_replicas: int = 1  # of the model that share the experts, where they are placed

    @property
    def activations(self) -> int:
        beside = 0 if self.beside is None else self.beside.activations
        return (2 + self.is_gated) * (self.per_token * self.width + self.shared_width) + beside


FeedForward = Annotated[MLP | Experts, Field(discriminator="kind")]
