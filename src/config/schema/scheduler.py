"""Section `scheduler`: what runs in one engine step, in which order, and how much may wait."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .section import Section, about
from .types import Auto, Count, Flag, HumanInt


class SchedulerConfig(Section):
    """Limits of one step and of the waiting queue."""

    max_num_seqs: Count | Auto = Field(
        "auto",
        description=(
            "Most sequences that run in one step; the rest wait. More gives more tokens per second over all and fewer "
            "to each; a number that the KV cache cannot hold leads to preemption. `auto` is 64 on a CPU."
        ),
        examples=[64],
        json_schema_extra=about(reload="model", unit="sequences"),
    )
    max_num_batched_tokens: HumanInt | Auto = Field(
        "auto",
        description=(
            "Most tokens computed in one step, prompts and answers together. Larger steps finish prompts sooner; "
            "smaller ones keep the gaps between the tokens of running answers short. `auto` is 2048 on a CPU, "
            "never less than max_num_seqs."
        ),
        examples=["2k", 8192],
        json_schema_extra=about(reload="model", unit="tokens per step"),
    )
    scheduling_policy: Literal["fcfs", "priority"] = Field(
        "fcfs",
        description=(
            "Order of the waiting queue: `fcfs` by arrival, `priority` by the request's priority (lower first), then "
            "arrival. Under fcfs a request that carries a priority is refused, since it would change nothing."
        ),
        examples=["priority"],
        json_schema_extra=about(reload="model"),
    )
    enable_chunked_prefill: Flag = Field(
        True,
        description=(
            "Split long prompts over several steps that they share with running answers. Off, a prompt is computed in "
            "one step, so max_num_batched_tokens must hold the longest one, and running answers wait meanwhile."
        ),
        examples=[False],
        json_schema_extra=about(reload="model"),
    )
    max_queued_requests: Count = Field(
        1024,
        description=(
            "Most requests that wait; further ones are answered 429 with Retry-After. A longer queue refuses less and "
            "makes everybody wait longer."
        ),
        examples=[256],
        json_schema_extra=about(reload="hot", unit="requests"),
    )
    max_queued_tokens: HumanInt | Auto = Field(
        "auto",
        description=(
            "Most prompt tokens that wait; beyond it requests are answered 429. Bounds the wait where prompts are "
            "long. `auto` is 16 times the tokens that the KV cache holds."
        ),
        examples=["1m"],
        json_schema_extra=about(reload="hot", unit="tokens"),
    )
