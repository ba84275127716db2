"""Section `model`: which model, in which precision, with how much context, and its defaults."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .section import Section, about
from .types import ContextLen, Flag, Secret, Texts, Whole


class ModelConfig(Section):
    """The model and how it is read: source, precision, context, sampling defaults."""

    model: str = Field(
        min_length=1,
        description=(
            "The model to serve: a hub id, a local directory, or `builtin:tiny`, which is part of the package. "
            "A hub id is downloaded once; a directory is used in place."
        ),
        examples=["Qwen/Qwen3-0.6B", "./checkpoints/mine", "builtin:tiny"],
        json_schema_extra=about(reload="model", kind="model"),
    )
    tokenizer: str = Field(
        "auto",
        min_length=1,
        description=(
            "Where the tokenizer comes from: a hub id or a directory. `auto` takes the model's own. "
            "Another one must have the same vocabulary, or the model reads noise."
        ),
        examples=["auto", "Qwen/Qwen3-0.6B"],
        json_schema_extra=about(reload="model", kind="model"),
    )
    skip_tokenizer_init: Flag = Field(
        False,
        description=(
            "Start without a tokenizer: requests carry token ids and answers are token ids. Starts faster and works "
            "for a directory that has no tokenizer; chat, text prompts and stop strings are then refused."
        ),
        examples=[True],
        json_schema_extra=about(reload="model"),
    )
    revision: str | None = Field(
        None,
        min_length=1,
        description=(
            "Branch, tag or commit of the hub repository. A commit makes every start load the same files; "
            "unset follows the main branch."
        ),
        examples=["main", "c1899de289a04d12100db370d81485cdf75e47ca"],
        json_schema_extra=about(reload="model"),
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description=(
            "Number format of weights, activations and KV cache. bfloat16 halves memory and reads twice as fast; "
            "float32 is exact. `auto` takes the checkpoint's own format, and float32 for a float16 checkpoint on a CPU."
        ),
        examples=["bfloat16"],
        json_schema_extra=about(
            reload="model",
            refused={
                "float16": "this build computes in bfloat16 (same memory, wider range) or float32",
                "half": "half is float16; this build computes in bfloat16 or float32",
                "float": "write float32",
                "fp32": "write float32",
                "bf16": "write bfloat16",
                "fp16": "this build computes in bfloat16 (same memory, wider range) or float32",
            },
        ),
    )
    max_model_len: ContextLen = Field(
        "auto",
        description=(
            "Longest sequence, prompt and answer together. Longer requests are refused; a longer limit needs more KV "
            "cache. `auto` (or -1) takes the model's own limit, or what the KV cache holds if that is less."
        ),
        examples=["32k", 4096],
        json_schema_extra=about(reload="model", unit="tokens"),
    )
    served_model_name: Texts = Field(
        (),
        description=(
            "Names under which the API answers; the first is shown in responses and metrics. "
            "Unset, the name is what `model` says."
        ),
        examples=[["assistant", "qwen3"]],
        json_schema_extra=about(reload="hot"),
    )
    seed: Whole = Field(
        0,
        ge=0,
        le=2**63 - 1,
        description=(
            "Seed of everything random: dummy weights, and the draws of requests that bring no seed of their own. "
            "The same seed and the same requests in the same order give the same tokens."
        ),
        examples=[42],
        json_schema_extra=about(reload="model"),
    )
    max_logprobs: Whole = Field(
        20,
        ge=-1,
        description=(
            "Most log-probabilities per position that a request may ask for; more is refused. -1 lifts the cap, and "
            "one request can then ask for the whole vocabulary at every position."
        ),
        examples=[5],
        json_schema_extra=about(reload="hot", unit="log-probabilities per position"),
    )
    hf_overrides: dict[str, Any] = Field(
        {},
        description=(
            "Changes to the model's config.json, merged key by key after it is read; null is a value here. "
            "For experiments such as another rope base; a wrong value gives wrong answers, not an error."
        ),
        examples=[{"rope_theta": 1000000}],
        json_schema_extra=about(reload="model"),
    )
    generation_config: str = Field(
        "auto",
        min_length=1,
        description=(
            "Where default sampling parameters come from: `auto` the model's generation_config.json, `none` the "
            "engine's own defaults, else a folder that holds such a file. The model's file often sets a temperature "
            "that a plain client does not expect."
        ),
        examples=["none", "./sampling"],
        json_schema_extra=about(reload="model", kind="path"),
    )
    override_generation_config: dict[str, Any] = Field(
        {},
        description=(
            "Default sampling parameters that replace those of `generation_config` one by one. "
            "A request's own value still wins."
        ),
        examples=[{"temperature": 0.7, "top_p": 0.9}],
        json_schema_extra=about(reload="hot"),
    )
    hf_token: Secret | None = Field(
        None,
        description=(
            "Token for gated or private hub repositories. Unset, the token of the hub's own login is used if there is "
            "one. Read only while downloading."
        ),
        examples=[{"env": "HF_TOKEN"}],
        json_schema_extra=about(reload="model"),
    )
