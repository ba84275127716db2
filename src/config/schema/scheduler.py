"""Section `scheduler`: what runs in one engine step, in which order, and how much may wait."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .section import Section, about
from .types import Auto, Count, Counts, Flag, HumanInt, Share, Whole, means_auto


class SchedulerConfig(Section):
    """Limits of one step and of the waiting queue."""

    max_num_seqs: Count | Auto = Field(
        "auto",
        description=(
            "Most sequences that run in one step; the rest wait. More gives more tokens per second over all and fewer "
            "to each; a number that the KV cache cannot hold leads to preemption. `auto` is 64 on a CPU, 256 on a GPU."
        ),
        examples=[64],
        json_schema_extra=about(reload="model", unit="sequences"),
    )
    max_num_batched_tokens: HumanInt | Auto = Field(
        "auto",
        description=(
            "Most tokens computed in one step, prompts and answers together. Larger steps finish prompts sooner; "
            "smaller ones keep the gaps between the tokens of running answers short. `auto` is 2048 on a CPU, 8192 "
            "on a GPU, never less than max_num_seqs."
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
    max_prefill_share: Share = Field(
        0.75,
        description=(
            "Share of max_num_batched_tokens that prompts may take in a step while answers are running. Less keeps the "
            "gaps between the tokens of answers shorter while long prompts arrive, and makes those prompts wait "
            "longer; 1 lets prompts fill the step. A step without answers belongs to prompts whole."
        ),
        examples=[0.25, 1],
        json_schema_extra=about(reload="model", unit="share of max_num_batched_tokens"),
    )
    max_num_partial_prefills: Count | Auto = Field(
        "auto",
        description=(
            "Most prompts that may be computed in part, each with its next piece to come. Fewer finish the first "
            "prompts sooner; more give later ones an early start. A prompt that fits whole into a step needs no place. "
            "`auto` sets no limit but max_num_seqs."
        ),
        examples=[1, 4],
        json_schema_extra=about(reload="model", unit="prompts"),
    )
    max_long_partial_prefills: Count | Auto = Field(
        "auto",
        description=(
            "Of the prompts computed in part, most that may be long ones. Fewer than max_num_partial_prefills lets "
            "short prompts pass long ones that wait; the long ones then wait for each other. "
            "`auto` is max_num_partial_prefills: nobody passes."
        ),
        examples=[1],
        json_schema_extra=about(reload="model", unit="prompts"),
    )
    long_prefill_token_threshold: Annotated[HumanInt | Auto, means_auto(0)] = Field(
        "auto",
        description=(
            "A prompt of more tokens than this is a long one. Lower lets fewer prompts pass as short; "
            "`auto` (or 0) is 4 % of the context."
        ),
        examples=["2k"],
        json_schema_extra=about(reload="model", unit="tokens"),
    )
    scheduler_cls: str = Field(
        "auto",
        min_length=1,
        description=(
            "Import path of a class that takes the place of the scheduler, `package.module:Class` or with a dot. It "
            "decides what each step computes; engine/core/interface.py says what it must have. It is imported in the "
            "engine's process only, and a fault of it is a fault of the engine. `auto` is this build's own."
        ),
        examples=["mypackage.scheduling:FairScheduler"],
        json_schema_extra=about(reload="process"),
    )
    async_scheduling: Flag | Auto = Field(
        "auto",
        description=(
            "Plan the next step while the current one computes. Hides the time between steps where the device leaves "
            "a core for planning; on a CPU that computes with all of them it is a few percent slower. A sequence that "
            "ends by itself costs one row too many, and a request that arrives waits up to one step longer. `auto` is "
            "on for a GPU and off for a CPU."
        ),
        examples=[True],
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
    cuda_graph_sizes: Counts = Field(
        (),
        description=(
            "Numbers of sequences for which a CUDA device captures the step that gives each its next token. Such a "
            "step is filled up to the next size and launched as a whole; one beyond the last size is launched kernel "
            "by kernel, which is slower. More sizes take longer to start and more memory. One number alone is a limit: "
            "1, 2, 4 and each multiple of 8 up to it. Unset, the sizes are 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, "
            "192 and so on as far as they are below max_num_seqs, and that itself. Where any are captured, steps with "
            "prompts are too, for numbers of tokens up to max_num_batched_tokens, while the engine has nothing to do."
        ),
        examples=[[1, 2, 4, 8, 16], [64]],
        json_schema_extra=about(reload="model", devices=("cuda",), unit="sequences"),
    )
    num_lookahead_slots: Annotated[Whole, Field(ge=0)] = Field(
        0,
        description="Slots of the KV cache reserved in each step for tokens that are not accepted yet.",
        examples=[0],
        json_schema_extra=about(
            reload="model", devices=(), unit="slots", refused="the scheduler reserves what a step needs by itself"
        ),
    )
    disable_chunked_mm_input: Flag = Field(
        False,
        description="Never cut the tokens of an image or a sound across two steps.",
        examples=[False],
        json_schema_extra=about(
            reload="model", devices=(), refused="this build takes text alone, so there is no such input"
        ),
    )
    disable_hybrid_kv_cache_manager: Flag = Field(
        True,
        description="Give every layer a KV cache of the same size, also those that look at a window of tokens only.",
        examples=[True],
        json_schema_extra=about(
            reload="model", devices=(), refused="this build gives every layer the same cache, and has no other manager"
        ),
    )
