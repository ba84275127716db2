"""Section `speculative`: draft tokens that the model verifies."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ..auto_values import LONGEST_LOOKUP, MAX_DRAFT_TOKENS, PAST_OUTPUT_TOKENS, SHORTEST_LOOKUP
from .refused import with_refused
from .section import Section, about
from .types import Auto, Count, DraftLength, Flag, HumanInt, RingLength

_OTHER_NETWORKS = "drafts are found by `ngram`, or made by `draft_model`, `mtp`, `eagle`, `eagle3` or `dflash`"
_OTHERS = ("dflash2", "dspark", "medusa", "mlp_speculator", "xpress")


@with_refused("speculative")
class SpeculativeConfig(Section):
    """Draft tokens."""

    json_flags: ClassVar[tuple[str, ...]] = ("--speculative-config", "-sc")

    method: Literal["auto", "ngram", "draft_model", "mtp", "eagle", "eagle3", "dflash"] | None = Field(
        None,
        description=(
            "How tokens are drafted that the model then verifies several at a time. `ngram`: an answer goes on as its "
            "prompt or itself did after the same tokens, which holds for code that is edited, text that is quoted and "
            "lists; nothing is loaded for it. `draft_model`: another language model with the same vocabulary, which "
            "`speculative.model` names. `mtp`: the layer for multi-token prediction in the checkpoint of the model. "
            "`eagle`, `eagle3`, `dflash`: layers that were trained for the model, in the folder `speculative.model`. "
            "Answers are the same as without drafts: a draft counts only if the model samples it. The engine measures "
            "at the start how long steps of more tokens take and, while it serves, how many drafts are accepted; it "
            "drafts as many as shorten the time for a token, down to none. `auto`: `mtp` if the checkpoint has a layer "
            "for it, else `ngram`; none where this build does not draft, as on GPUs. With recurrent states each "
            "sequence has a second one."
        ),
        examples=["ngram"],
        json_schema_extra=about(
            devices=("cpu",),
            aliases=("--spec-method",),
            refused=dict.fromkeys(_OTHERS, _OTHER_NETWORKS)
            | {
                "suffix": "`method: ngram` finds continuations in earlier answers, too: `past_output_tokens`",
                "ngram_gpu": "write `ngram`",
                "peagle": "write `eagle3`: its layers in `speculative.model` say that they draft in one pass",
                "custom_class": "drafters are no plug-ins",
            },
        ),
    )
    model: str | None = Field(
        None,
        description=(
            "Folder or hub id of what drafts: a smaller model, or layers of EAGLE-1, EAGLE-3, P-EAGLE or DFlash, also "
            "in the form of the library `speculators`. Without `method`, its files decide which of these it is."
        ),
        examples=["Qwen/Qwen3-0.6B"],
        json_schema_extra=about(kind="model", devices=("cpu",), aliases=("--spec-model",)),
    )
    use_heterogeneous_vocab: Flag = Field(
        False,
        description=(
            "The draft model has another vocabulary than the model. Both tokenizers are compared at the start, and the "
            "tokens that stand for the same bytes in both are drafted. For a token that it does not have, the draft "
            "model reads the longest end of its text that is one of its tokens. Answers are the same as without drafts."
        ),
        examples=[True],
        json_schema_extra=about(devices=("cpu",)),
    )
    parallel_drafting: Auto | Flag = Field(
        "auto",
        description=(
            "Whether all drafts of a step are computed in one pass, in which a mask stands for the tokens that are not "
            "known, and not one after the other. `auto`: where the config.json of what drafts names the mask: "
            "`pard_token` of a draft model (PARD), `mask_token_id` of layers of EAGLE-3 (P-EAGLE). Layers of DFlash "
            "always draft in one pass."
        ),
        examples=[False],
        json_schema_extra=about(devices=("cpu",)),
    )
    num_speculative_tokens: DraftLength = Field(
        MAX_DRAFT_TOKENS,
        description=(
            "Maximum number of tokens that are drafted for a sequence in one step; the engine chooses fewer where more "
            "would not pay."
        ),
        examples=[8],
        json_schema_extra=about(unit="tokens", devices=("cpu",), aliases=("--num-speculative-tokens", "--spec-tokens")),
    )
    prompt_lookup_max: Count = Field(
        LONGEST_LOOKUP,
        description=(
            "Maximum number of trailing tokens of a sequence that `ngram` compares with earlier ones. The place where "
            "most of them agree is followed."
        ),
        examples=[8],
        json_schema_extra=about(unit="tokens", devices=("cpu",)),
    )
    prompt_lookup_min: Count = Field(
        SHORTEST_LOOKUP,
        description=(
            "How many trailing tokens of a sequence must have occurred before, for `ngram` to draft what followed them."
        ),
        examples=[3],
        json_schema_extra=about(unit="tokens", devices=("cpu",)),
    )
    past_output_tokens: RingLength = Field(
        PAST_OUTPUT_TOKENS,
        description=(
            "Number of tokens of earlier answers in which `ngram` finds continuations, where more of the last tokens "
            "agree than in the text of the request; 0 keeps none. The newest answers replace the oldest, and each "
            "token takes about 12 bytes. Requests with a `cache_salt` neither find answers of others nor are found: "
            "how fast an answer comes would show what was answered before."
        ),
        examples=[0],
        json_schema_extra=about(unit="tokens", devices=("cpu",)),
    )
    max_model_len: HumanInt | None = Field(
        None,
        description="Sequences with more tokens than this go on without drafts. By default all sequences get drafts.",
        examples=["8k"],
        json_schema_extra=about(unit="tokens", devices=("cpu",)),
    )
    disable_by_batch_size: Count | None = Field(
        None,
        description=(
            "A request that begins while more requests than this wait is computed without drafts. By default the "
            "engine decides in each step, from what drafts cost and bring."
        ),
        examples=[32],
        json_schema_extra=about(unit="requests", devices=("cpu",)),
    )
