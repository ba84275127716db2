"""Deprecated options: accepted with a warning, and mapped onto current ones.

Some are of older releases of serving engines, some are named after the implementation of another server. They are
declared like all options but belong to no section: before layers are merged, source/deprecated.py replaces each by the
options that it maps to, so that the rest of the program only handles current ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from .section import Section
from .types import Auto, Count, Flag, Gibibytes, HumanInt, NumberFromZero, Numbers, Size, Text, Whole, number_or_text

_NUMBER = BeforeValidator(number_or_text)
Becomes = Callable[[Any], Mapping[str, Any]]  # an old value -> values by path; ValueError if nothing corresponds to it


def old(becomes: Becomes, *replaced_by: str, why: str, aliases: tuple[str, ...] = ()) -> dict[str, Any]:
    """The `json_schema_extra` of a deprecated option.

    Args:
        becomes: what a value maps to.
        replaced_by: the paths that `becomes` may set.
        why: one sentence about the replacement.
        aliases: further spellings on the command line.
    """
    extra: dict[str, Any] = {"reload": "model", "devices": [], "becomes": becomes, "reason": why}
    extra["replaced_by"] = list(replaced_by)
    if aliases:
        extra["aliases"] = list(aliases)
    return extra


def _nothing(value: Any) -> Mapping[str, Any]:
    return {}


def _same(path: str) -> Becomes:
    return lambda value: {path: value}


def _if_true(path: str, value: Any, why: str = "") -> dict[str, Any]:
    return old(lambda is_on: {path: value} if is_on else {}, path, why=why or f"replaced by `{path}: {value}`")


def _renamed(path: str, why: str = "", aliases: tuple[str, ...] = ()) -> dict[str, Any]:
    return old(_same(path), path, why=why or f"renamed to `{path}`", aliases=aliases)


def _dropped(why: str) -> dict[str, Any]:
    return old(_nothing, why=why)


_TASKS: dict[str, dict[str, str]] = {
    "auto": {},
    "generate": {"model.runner": "generate"},
    "transcription": {"model.runner": "generate"},
    "draft": {"model.runner": "draft"},
    "embed": {"model.runner": "pooling", "model.convert": "embed"},
    "embedding": {"model.runner": "pooling", "model.convert": "embed"},
    "classify": {"model.runner": "pooling", "model.convert": "classify"},
    "score": {"model.runner": "pooling", "model.convert": "classify"},
    "reward": {"model.runner": "pooling", "model.convert": "reward"},
}


class OldModel(Section):
    task: Literal["auto", "generate", "embed", "embedding", "classify", "score", "reward", "draft", "transcription"] = (
        Field(
            "auto",
            description="Task that the model is served for.",
            examples=["generate"],
            json_schema_extra=old(
                lambda task: _TASKS[task],
                "model.runner",
                "model.convert",
                why="replaced by `model.runner` and `model.convert`",
            ),
        )
    )
    override_pooler_config: dict[str, Any] = Field(
        {},
        description="How hidden states are pooled.",
        examples=[{"pooling_type": "MEAN"}],
        json_schema_extra=_renamed("model.pooler_config"),
    )
    disable_cascade_attn: Flag = Field(
        False,
        description="Never compute attention over a shared prefix separately.",
        json_schema_extra=_dropped(
            "attention over a shared prefix is never computed separately, so there is nothing to disable"
        ),
    )
    max_seq_len_to_capture: Whole = Field(
        8192,
        description="Longest sequence that runs in a captured CUDA graph.",
        examples=[8192],
        json_schema_extra=_dropped("captured graphs do not depend on the length of a sequence"),
    )
    max_context_len_to_capture: Whole = Field(
        8192,
        description="Oldest name of max_seq_len_to_capture.",
        examples=[8192],
        json_schema_extra=_dropped("captured graphs do not depend on the length of a sequence"),
    )


class OldLoad(Section):
    qlora_adapter_name_or_path: Text | None = Field(
        None,
        description="QLoRA adapter for bitsandbytes weights.",
        examples=["timdettmers/qlora-flan-7b"],
        json_schema_extra=_renamed("load.model_loader_extra_config.qlora_adapter_name_or_path"),
    )


class OldCache(Section):
    swap_space: Gibibytes = Field(
        4.0,
        description="Host memory in GiB for the KV blocks of preempted sequences.",
        examples=[4],
        json_schema_extra=_dropped(
            "a preempted sequence frees its blocks and is computed again, so no memory is reserved"
        ),
    )
    quantization_param_path: Text | None = Field(
        None,
        description="File with the scaling factors of an fp8 KV cache.",
        examples=["./scales.json"],
        json_schema_extra=_dropped(
            "scales of an fp8 KV cache are in the checkpoint, or computed from prompts with `cache.calculate_kv_scales`"
        ),
    )


def _preemption(mode: str) -> Mapping[str, Any]:
    if mode == "swap":
        raise ValueError("swapping is not supported: a preempted sequence is computed again")
    return {}


class OldScheduler(Section):
    num_scheduler_steps: Whole = Field(
        1,
        ge=1,
        description="Number of forward passes for each scheduling decision.",
        examples=[8],
        json_schema_extra=_dropped("every step is scheduled; `scheduler.async_scheduling` hides the cost"),
    )
    multi_step_stream_outputs: Flag = Field(
        True,
        description="Stream tokens after each inner step of a multi-step decision.",
        json_schema_extra=_dropped("tokens are streamed after every step"),
    )
    scheduler_delay_factor: NumberFromZero = Field(
        0.0,
        description="Delay new prompts by this multiple of the last prompt's latency.",
        examples=[0.5],
        json_schema_extra=_dropped("prompts join the running batch in the next step, so a delay gains nothing"),
    )
    preemption_mode: Literal["recompute", "swap"] = Field(
        "recompute",
        description="What happens to a sequence when the KV cache runs out.",
        examples=["recompute"],
        json_schema_extra=old(_preemption, why="preempted sequences are always computed again"),
    )
    disable_async_output_proc: Flag = Field(
        False,
        description="Process the outputs of a step before the next one starts.",
        json_schema_extra=_dropped("outputs never delay a step and keep the order of each request"),
    )
    use_v2_block_manager: Flag = Field(
        True,
        description="Use the second of two block managers.",
        examples=[True],
        json_schema_extra=_dropped("there is one block pool"),
    )
    max_num_queued_reqs: Count | None = Field(
        None,
        description="Maximum number of requests, running and waiting.",
        examples=[256],
        json_schema_extra=_renamed(
            "scheduler.max_queued_requests",
            why="replaced by `scheduler.max_queued_requests`, which counts waiting requests only",
        ),
    )
    max_num_queued_tokens: HumanInt | None = Field(
        None,
        description="Maximum number of prompt tokens that are not computed yet.",
        examples=["1m"],
        json_schema_extra=_renamed(
            "scheduler.max_queued_tokens",
            why="replaced by `scheduler.max_queued_tokens`, which counts prompts of waiting requests only",
        ),
    )


def _backend(text: str) -> Mapping[str, Any]:
    """`xgrammar:no-fallback,disable-any-whitespace`: the older syntax for a backend with options."""
    name, _, rest = text.partition(":")
    known = {
        "no-fallback": "structured_outputs.disable_fallback",
        "disable-any-whitespace": "structured_outputs.disable_any_whitespace",
        "disable-additional-properties": "structured_outputs.disable_additional_properties",
    }
    found: dict[str, Any] = {"structured_outputs.backend": name}
    for word in filter(None, rest.split(",")):
        if word not in known:
            raise ValueError(f"unknown backend option `{word}`; known are: {', '.join(known)}")
        found[known[word]] = True
    return found


def _reasoning(is_on: bool) -> Mapping[str, Any]:
    if is_on:
        raise ValueError("reasoning is enabled by setting `structured_outputs.reasoning_parser`")
    return {}


class OldStructuredOutputs(Section):
    guided_decoding_backend: Text | None = Field(
        None,
        description="Grammar library for constrained output, with its options after a colon.",
        examples=["guidance:no-fallback"],
        json_schema_extra=old(
            _backend,
            "structured_outputs.backend",
            why="replaced by `structured_outputs.backend` and the switches next to it",
        ),
    )
    guided_decoding_disable_fallback: Flag = Field(
        False,
        description="Refuse a request that the grammar library does not support.",
        json_schema_extra=_renamed("structured_outputs.disable_fallback"),
    )
    guided_decoding_disable_any_whitespace: Flag = Field(
        False,
        description="Generate JSON without whitespace.",
        json_schema_extra=_renamed("structured_outputs.disable_any_whitespace"),
    )
    guided_decoding_disable_additional_properties: Flag = Field(
        False,
        description="Generate no JSON properties that the schema does not list.",
        json_schema_extra=_renamed("structured_outputs.disable_additional_properties"),
    )
    enable_reasoning: Flag = Field(
        False,
        description="Separate reasoning from the answer.",
        examples=[False],
        json_schema_extra=old(
            _reasoning,
            "structured_outputs.reasoning_parser",
            why="setting `structured_outputs.reasoning_parser` is enough",
        ),
    )


def _acceptance(method: str) -> Mapping[str, Any]:
    if method == "typical_acceptance_sampler":
        raise ValueError("draft tokens are verified exactly, so that they never change an answer")
    return {}


def _draft_model(name: str) -> Mapping[str, Any]:
    return {"speculative.method": "ngram"} if name == "[ngram]" else {"speculative.model": name}


class OldSpeculative(Section):
    speculative_model: Text | None = Field(
        None,
        description="Draft model.",
        examples=["Qwen/Qwen3-0.6B"],
        json_schema_extra=old(
            _draft_model,
            "speculative.model",
            "speculative.method",
            why="renamed to `speculative.model`; `[ngram]` is `speculative.method: ngram`",
        ),
    )
    speculative_model_quantization: Text | None = Field(
        None,
        description="Quantisation of the draft model's weights.",
        examples=["awq"],
        json_schema_extra=_renamed("speculative.quantization"),
    )
    speculative_disable_mqa_scorer: Flag = Field(
        False,
        description="Score draft tokens as a larger batch.",
        json_schema_extra=_dropped("there is only one way to score draft tokens"),
    )
    speculative_draft_tensor_parallel_size: Count | None = Field(
        None,
        description="Number of devices of the draft model.",
        examples=[1],
        json_schema_extra=_renamed("speculative.draft_tensor_parallel_size", aliases=("-spec-draft-tp",)),
    )
    speculative_max_model_len: Count | None = Field(
        None,
        description="Longest sequence that gets draft tokens.",
        examples=[4096],
        json_schema_extra=_renamed("speculative.max_model_len"),
    )
    speculative_disable_by_batch_size: Count | None = Field(
        None,
        description="Number of queued requests above which nothing is drafted.",
        examples=[32],
        json_schema_extra=_renamed("speculative.disable_by_batch_size"),
    )
    ngram_prompt_lookup_max: Count | None = Field(
        None,
        description="Maximum number of trailing tokens that are looked up in the prompt.",
        examples=[4],
        json_schema_extra=_renamed("speculative.prompt_lookup_max"),
    )
    ngram_prompt_lookup_min: Count | None = Field(
        None,
        description="Minimum number of trailing tokens that are looked up in the prompt.",
        examples=[2],
        json_schema_extra=_renamed("speculative.prompt_lookup_min"),
    )
    spec_decoding_acceptance_method: Literal["rejection_sampler", "typical_acceptance_sampler"] = Field(
        "rejection_sampler",
        description="How draft tokens are verified.",
        examples=["rejection_sampler"],
        json_schema_extra=old(_acceptance, why="draft tokens are verified exactly"),
    )
    typical_acceptance_sampler_posterior_threshold: NumberFromZero | None = Field(
        None,
        description="Probability below which the typicality test rejects a draft token.",
        examples=[0.09],
        json_schema_extra=_dropped("draft tokens are verified exactly"),
    )
    typical_acceptance_sampler_posterior_alpha: NumberFromZero | None = Field(
        None,
        description="Weight of the entropy in the typicality test.",
        examples=[0.3],
        json_schema_extra=_dropped("draft tokens are verified exactly"),
    )
    disable_logprobs_during_spec_decoding: Flag = Field(
        False,
        description="Return no log-probabilities while drafting.",
        json_schema_extra=_dropped("log-probabilities are always returned"),
    )


_EPLB = "parallel.eplb_config"


class OldParallel(Section):
    dcp_kv_cache_interleave_size: Count = Field(
        1,
        description="Number of consecutive tokens that one process keeps.",
        examples=[4],
        json_schema_extra=_renamed("parallel.cp_kv_cache_interleave_size"),
    )
    num_redundant_experts: Whole | None = Field(
        None,
        ge=0,
        description="Number of redundant experts.",
        examples=[0],
        json_schema_extra=_renamed(f"{_EPLB}.num_redundant_experts"),
    )
    eplb_window_size: Count | None = Field(
        None,
        description="Number of steps over which expert load is measured.",
        examples=[1000],
        json_schema_extra=_renamed(f"{_EPLB}.window_size"),
    )
    eplb_step_interval: Count | None = Field(
        None,
        description="Number of steps between two rebalancings of experts.",
        examples=[3000],
        json_schema_extra=_renamed(f"{_EPLB}.step_interval"),
    )
    eplb_log_balancedness: Flag = Field(
        False,
        description="Log how evenly experts are used.",
        json_schema_extra=_if_true(f"{_EPLB}.log_balancedness", True, f"renamed to `{_EPLB}.log_balancedness`"),
    )
    enable_multimodal_encoder_data_parallel: Flag = Field(
        False,
        description="Split the batch of the media encoder over devices.",
        json_schema_extra=_if_true(
            "multimodal.mm_encoder_tp_mode", "data", "replaced by `multimodal.mm_encoder_tp_mode: data`"
        ),
    )
    worker_use_ray: Flag = Field(
        False,
        description="Run workers on Ray.",
        json_schema_extra=_if_true(
            "parallel.distributed_executor_backend", "ray", "replaced by `parallel.distributed_executor_backend: ray`"
        ),
    )


class OldMultiModal(Section):
    disable_mm_preprocessor_cache: Flag = Field(
        False,
        description="Do not cache preprocessed media.",
        json_schema_extra=_if_true(
            "multimodal.mm_processor_cache_gb", 0, "replaced by `multimodal.mm_processor_cache_gb: 0`"
        ),
    )


class OldLoRA(Section):
    enable_lora_bias: Flag = Field(
        False,
        description="Apply the bias terms of adapters.",
        json_schema_extra=_dropped("the biases that an adapter has are always applied (`lora_bias` in its files)"),
    )
    lora_extra_vocab_size: Whole = Field(
        256,
        description="Maximum number of tokens that an adapter adds.",
        examples=[256],
        json_schema_extra=_dropped(
            "adapters that add tokens to the vocabulary are refused with the name of the tensor"
        ),
    )
    long_lora_scaling_factors: Numbers = Field(
        (),
        description="Context scaling factors of adapters.",
        examples=[[4.0]],
        json_schema_extra=_dropped("an adapter has the rotary embedding of its model: `model.rope_scaling`"),
    )


class OldDevice(Section):
    override_neuron_config: dict[str, Any] = Field(
        {},
        description="Settings of a Neuron device.",
        examples=[{"cast_logits_dtype": "bfloat16"}],
        json_schema_extra=_renamed("device.additional_config"),
    )


class OldServer(Section):
    tokens_only: Flag = Field(
        False,
        description="Serve token ids only, without a tokenizer.",
        json_schema_extra=_if_true(
            "model.skip_tokenizer_init",
            True,
            "replaced by `model.skip_tokenizer_init`; token ids are served by /v1/completions, too",
        ),
    )
    enable_scale_out: Flag = Field(
        False,
        description="Serve rendering and generation as separate routes.",
        json_schema_extra=_dropped("the /render routes and /inference/v1/generate are always served"),
    )
    enable_auto_tool_choice: Flag = Field(
        False,
        description="Return the tool calls of requests that let the model choose.",
        json_schema_extra=old(
            lambda is_on: {} if is_on else {"server.tool_call_parser": "none"},
            "server.tool_call_parser",
            why="calls are read wherever the format is known; `server.tool_call_parser: none` leaves them in the text",
        ),
    )
    disable_log_requests: Flag = Field(
        True,
        description="Do not log requests that arrive.",
        examples=[True],
        json_schema_extra=old(
            lambda is_off: {"server.enable_log_requests": not is_off},
            "server.enable_log_requests",
            why="replaced by its opposite, `server.enable_log_requests`, which is off by default",
        ),
    )
    engine_use_ray: Flag = Field(
        False,
        description="Run the engine in a Ray actor.",
        json_schema_extra=_dropped("the engine runs in a separate process"),
    )
    tokenizer_pool_size: Whole = Field(
        0,
        ge=0,
        description="Number of workers that tokenise.",
        examples=[4],
        json_schema_extra=_dropped("the tokenizer uses threads; there is no pool"),
    )
    tokenizer_pool_type: Text = Field(
        "ray",
        description="Kind of the workers that tokenise.",
        examples=["ray"],
        json_schema_extra=_dropped("the tokenizer uses threads; there is no pool"),
    )
    tokenizer_pool_extra_config: dict[str, Any] = Field(
        {},
        description="Settings of the workers that tokenise.",
        examples=[{}],
        json_schema_extra=_dropped("the tokenizer uses threads; there is no pool"),
    )
    uvicorn_log_level: Literal["auto", "critical", "error", "warning", "info", "debug", "trace"] = Field(
        "auto",
        description="Minimum severity that the HTTP side logs.",
        examples=["info"],
        json_schema_extra=_renamed("server.http_log_level"),
    )
    disable_uvicorn_access_log: Flag = Field(
        False,
        description="Do not log the line of each finished HTTP request.",
        json_schema_extra=_renamed("server.disable_access_log"),
    )
    h11_max_incomplete_event_size: Size | Auto = Field(
        "auto",
        description="Maximum number of bytes that the HTTP parser buffers of an incomplete request head.",
        examples=["64KiB"],
        json_schema_extra=_renamed("server.max_incomplete_header_bytes"),
    )
    h11_max_header_count: Count = Field(
        256,
        description="Maximum number of headers of a request.",
        examples=[256],
        json_schema_extra=_renamed("server.max_header_count"),
    )
    disable_fastapi_docs: Flag = Field(
        False,
        description="Serve no OpenAPI description of the routes.",
        json_schema_extra=_renamed("server.disable_docs"),
    )
    enable_offline_docs: Flag = Field(
        False,
        description="Serve the page of the API description without files of other servers.",
        json_schema_extra=_dropped("the page /docs never loads anything from elsewhere"),
    )


_MODES = {"NONE": 0, "STOCK_TORCH_COMPILE": 1, "DYNAMO_TRACE_ONCE": 2, "VLLM_COMPILE": 3}


class OldCompilation(Section):
    mode: Annotated[
        Literal["NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "VLLM_COMPILE", 0, 1, 2, 3], _NUMBER
    ] = Field(
        0,
        description="How other engines compile a model; whether graphs are captured follows from it here.",
        examples=[3],
        json_schema_extra=old(
            lambda mode: {"compilation.level": _MODES.get(mode, mode)},
            "compilation.level",
            why="this build compiles no models: `compilation.level` says whether graphs are captured",
        ),
    )


DEPRECATED: dict[str, type[Section]] = {
    "model": OldModel,
    "load": OldLoad,
    "cache": OldCache,
    "scheduler": OldScheduler,
    "parallel": OldParallel,
    "lora": OldLoRA,
    "device": OldDevice,
    "multimodal": OldMultiModal,
    "structured_outputs": OldStructuredOutputs,
    "compilation": OldCompilation,
    "speculative": OldSpeculative,
    "server": OldServer,
}
