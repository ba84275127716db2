"""Section `scheduler`: what runs in one engine step, in which order, and how many requests may wait."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..auto_values import (
    LONG_PROMPT_SHARE,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    QUEUED_PER_KV_TOKEN,
    STATES_SHARE,
    by_device,
)
from ..graph_sizes import usual_sizes
from .refused import with_refused
from .section import Section, about
from .types import Auto, Count, Counts, Flag, HumanInt, Share, Text, means_auto

_FIRST_GRAPH_SIZES = ", ".join(map(str, usual_sizes(256)[:-1]))


@with_refused("scheduler")
class SchedulerConfig(Section):
    """Limits of one step and of the waiting queue."""

    max_num_seqs: Count | Auto = Field(
        "auto",
        description=(
            "Maximum number of running sequences in one step; further requests wait. More sequences give a higher "
            "total throughput and a lower speed for each; more than the KV cache can hold leads to preemption. `auto` "
            f"is {by_device(MAX_NUM_SEQS)}; fewer if the recurrent states of the model would take more than "
            f"1/{STATES_SHARE} of the memory that the weights leave."
        ),
        examples=[64],
        json_schema_extra=about(unit="sequences"),
    )
    max_num_batched_tokens: HumanInt | Auto = Field(
        "auto",
        description=(
            "Maximum number of tokens computed in one step, prompts and answers together. Larger steps finish prompts "
            "sooner; smaller steps shorten the time between the tokens of running answers. `auto` is "
            f"{by_device(MAX_NUM_BATCHED_TOKENS)}, and never less than max_num_seqs."
        ),
        examples=["2k", 8192],
        json_schema_extra=about(unit="tokens per step"),
    )
    scheduling_policy: Literal["fcfs", "priority"] = Field(
        "fcfs",
        description=(
            "Order of the waiting queue: `fcfs` by arrival, `priority` by the request's priority (lower first), then "
            "by arrival. With fcfs a request with a priority is refused, because it would have no effect."
        ),
        examples=["priority"],
    )
    enable_chunked_prefill: Flag = Field(
        True,
        description=(
            "Split long prompts over several steps, which they share with running answers. Off, a prompt is computed "
            "in one step: max_num_batched_tokens must then hold the longest prompt, and running answers wait meanwhile."
        ),
    )
    max_prefill_share: Share = Field(
        0.75,
        description=(
            "Maximum share of max_num_batched_tokens that prompts use in a step while answers are running. Less "
            "shortens the time between the tokens of answers while long prompts arrive, and makes those prompts "
            "slower; 1 lets prompts fill the step. In a step without answers, prompts may use all of it."
        ),
        examples=[0.25, 1],
        json_schema_extra=about(unit="share of max_num_batched_tokens"),
    )
    max_num_partial_prefills: Count | Auto = Field(
        "auto",
        description=(
            "Maximum number of prompts that are partly computed at the same time. Fewer finish the first prompts "
            "sooner; more let later prompts start earlier. A prompt that fits into one step does not count. `auto` is "
            "max_num_seqs."
        ),
        examples=[1, 4],
        json_schema_extra=about(unit="prompts"),
    )
    max_long_partial_prefills: Count | Auto = Field(
        "auto",
        description=(
            "Maximum number of long prompts among those that are partly computed. Less than max_num_partial_prefills "
            "lets short prompts overtake long ones that wait; the long ones then wait for each other. `auto` is "
            "max_num_partial_prefills: no prompt overtakes another."
        ),
        examples=[1],
        json_schema_extra=about(unit="prompts"),
    )
    long_prefill_token_threshold: Annotated[HumanInt | Auto, means_auto(0)] = Field(
        "auto",
        description=(
            "Number of tokens above which a prompt counts as long. Lower lets fewer prompts overtake; `auto` (or 0) is "
            f"{LONG_PROMPT_SHARE:.0%} of the context."
        ),
        examples=["2k"],
        json_schema_extra=about(unit="tokens"),
    )
    disable_hybrid_kv_cache_manager: Flag = Field(
        False,
        description=(
            "Keep the keys and values of all tokens in every layer. Otherwise layers with a sliding window keep only "
            "those of the window, in blocks of their own, so that more sequences fit. Models without a window have a "
            "single cache anyway."
        ),
    )
    scheduler_cls: Text = Field(
        "auto",
        description=(
            "Import path of a class that replaces the scheduler, `package.module:Class` or with a dot. It decides what "
            "each step computes; engine/core/interface.py lists its methods. It is imported in the engine process "
            "only, and an error in it is an error of the engine. `auto` is this build's scheduler."
        ),
        examples=["mypackage.scheduling:FairScheduler"],
        json_schema_extra=about(reload="process"),
    )
    async_scheduling: Flag | Auto = Field(
        "auto",
        description=(
            "Plan the next step while the current one computes. Hides the time between steps if the device leaves a "
            "core free for planning; on a CPU that computes with all cores it is a few percent slower. A sequence that "
            "ends at a stop token costs one row too many, and a new request waits up to one step longer. `auto` is on "
            "for a GPU and for a model in stages, and off for a CPU."
        ),
        examples=[True],
    )
    max_queued_requests: Count = Field(
        1024,
        description=(
            "Maximum number of waiting requests; further ones are answered 429 with Retry-After. A longer queue "
            "refuses fewer requests and makes all of them wait longer."
        ),
        examples=[256],
        json_schema_extra=about(reload="hot", unit="requests"),
    )
    max_queued_tokens: HumanInt | Auto = Field(
        "auto",
        description=(
            "Maximum number of waiting prompt tokens; above it requests are answered 429. Limits the waiting time if "
            f"prompts are long. `auto` is {QUEUED_PER_KV_TOKEN} times the number of tokens that the KV cache holds."
        ),
        examples=["1m"],
        json_schema_extra=about(reload="hot", unit="tokens"),
    )
    cuda_graph_sizes: Counts = Field(
        (),
        description=(
            "Numbers of sequences for which a CUDA device captures the step that computes one token of each. Such a "
            "step is padded to the next size and launched as a whole; a step larger than the last size is launched "
            "kernel by kernel, which is slower. More sizes need a longer start and more memory. A single number is a "
            f"maximum: 1, 2, 4 and each multiple of 8 up to it. Unset, the sizes are {_FIRST_GRAPH_SIZES} and so on "
            "below max_num_seqs, and max_num_seqs. If any are captured, steps with prompts are captured too, for "
            "numbers of tokens up to max_num_batched_tokens, while the engine is idle."
        ),
        examples=[[1, 2, 4, 8, 16], [64]],
        json_schema_extra=about(devices=("cuda",), unit="sequences", aliases=("--max-cudagraph-capture-size",)),
    )
