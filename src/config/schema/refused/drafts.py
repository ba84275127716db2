"""Refused options of drafts: of draft models and heads, of how drafts are sampled and verified, and of their number."""

from __future__ import annotations

from typing import Any, Literal

from ..types import Count, Flag, NumberFromZero, Whole
from .reasons import DRAFTS_LIKE_MODEL
from .row import Refused

_EXACT = "a drafted token is accepted only if the model samples it, so that answers are the same as without drafts"
_ADAPTIVE = "the engine chooses the number of drafts in each step, from what steps take and how many are accepted"
_PAST = "earlier answers are found by `method: ngram`; `speculative.past_output_tokens` says how many are kept"


def _of_model(name: str, kind: Any, default: Any, meaning: str) -> Refused:
    return Refused(name, kind, default, meaning, reason=DRAFTS_LIKE_MODEL)


def _fly(name: str, kind: Any, default: Any, meaning: str) -> Refused:
    return Refused(name, kind, default, meaning, reason=_EXACT)


DRAFTS: tuple[Refused, ...] = (
    _of_model("revision", str | None, None, "Revision of the draft model."),
    _of_model("code_revision", str | None, None, "Revision of the draft model's code."),
    _of_model("enforce_eager", Flag | None, None, "Do not compile the draft model."),
    _of_model("moe_backend", str | None, None, "Kernels of the draft model's experts."),
    _of_model("attention_backend", str | None, None, "Attention kernels of the draft model."),
    _of_model("kv_cache_dtype", str | None, None, "Type of the draft model's KV cache."),
    _of_model("draft_load_config", dict[str, Any] | None, None, "How the draft model is loaded."),
    _of_model("draft_lm_head_quantization", Literal["fp8", "nvfp4"] | None, None, "Quantise the drafter's head."),
    _of_model("use_local_argmax_reduction", Flag, False, "Find the best draft on each device."),
    _of_model("index_share_for_mtp_iteration", Flag, False, "Share the index of sparse attention between MTP steps."),
    _of_model("disable_padded_drafter_batch", Flag, False, "Do not pad the drafter's batch."),
    _of_model("dspark_draft_topk", Count | None, None, "Candidates of a DSpark draft."),
    _of_model("xpress_topc", Count | None, None, "Candidates of an XPress draft."),
    _of_model("disable_eagle_block_drop", Flag, False, "Keep the last cached block for an EAGLE drafter."),
    _of_model("disable_lookahead_block_hashes", Flag, False, "Hash blocks without the tokens after them."),
    Refused(
        "draft_sample_method",
        Literal["greedy", "probabilistic"],
        "greedy",
        "How a draft model samples.",
        reason=DRAFTS_LIKE_MODEL,
        same=("greedy",),
    ),
    Refused("suffix_decoding_max_tree_depth", Count, 24, "Depth of suffix trees.", reason=_PAST),
    Refused("suffix_decoding_max_cached_requests", Whole, 10_000, "Answers in the common suffix tree.", reason=_PAST),
    Refused(
        "suffix_decoding_max_spec_factor", NumberFromZero, 1.0, "Drafts for each token that agrees.", reason=_ADAPTIVE
    ),
    Refused(
        "suffix_decoding_min_token_prob", NumberFromZero, 0.1, "Least frequency of a drafted token.", reason=_ADAPTIVE
    ),
    Refused(
        "rejection_sample_method",
        Literal["standard", "block", "synthetic", "fly"],
        "standard",
        "How drafts are verified.",
        reason=_EXACT,
        same=("standard",),
    ),
    _fly("synthetic_acceptance_rates", tuple[NumberFromZero, ...] | None, None, "Accept drafts at random."),
    _fly("synthetic_acceptance_length", NumberFromZero | None, None, "Accept this number of drafts on average."),
    _fly("fly_window_size", Count | None, None, "Tokens after a mismatch that decide about it."),
    _fly("fly_entropy_threshold", NumberFromZero, 0.3, "Entropy above which a mismatch may be accepted."),
    _fly("fly_entropy_top_k", Count, 3, "Tokens that the entropy is computed from."),
    Refused(
        "num_speculative_tokens_per_batch_size",
        tuple[tuple[int, int, int], ...] | None,
        None,
        "Number of drafts by the number of sequences.",
        reason=_ADAPTIVE,
    ),
    Refused(
        "enable_adaptive_verification",
        Flag,
        False,
        "Choose which drafts are verified by their probability.",
        reason=_ADAPTIVE,
        same=(True,),
    ),
)
