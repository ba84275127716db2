"""Options that older releases of serving engines had: accepted, warned about, and mapped onto what there is now.

They are declared like all others and are part of no section: before layers are merged, source/deprecated.py puts what
each becomes in its place, so that the rest of the program never meets them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import Field

from .section import Section
from .types import Count, Flag, Gibibytes, NumberFromZero, Whole

Becomes = Callable[[Any], Mapping[str, Any]]  # an old value -> values by path; ValueError if nothing stands for it


def old(becomes: Becomes, *replaced_by: str, why: str, aliases: tuple[str, ...] = ()) -> dict[str, Any]:
    """The `json_schema_extra` of a deprecated option.

    Args:
        becomes: what a value means today.
        replaced_by: the paths that `becomes` may set.
        why: one sentence on what there is instead.
        aliases: further spellings on the command line.
    """
    extra: dict[str, Any] = {"reload": "model", "devices": [], "since": "0.1", "becomes": becomes, "why": why}
    extra["replaced_by"] = list(replaced_by)
    if aliases:
        extra["aliases"] = list(aliases)
    return extra


def _nothing(value: Any) -> Mapping[str, Any]:
    return {}


def _same(path: str) -> Becomes:
    return lambda value: {path: value}


def _if_true(path: str, value: Any) -> Becomes:
    return lambda is_on: {path: value} if is_on else {}


def _renamed(path: str, why: str = "", aliases: tuple[str, ...] = ()) -> dict[str, Any]:
    return old(_same(path), path, why=why or f"it is `{path}` now", aliases=aliases)


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
            description="The job that the model is served for.",
            examples=["generate"],
            json_schema_extra=old(
                lambda task: _TASKS[task],
                "model.runner",
                "model.convert",
                why="`model.runner` and `model.convert` say it together",
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
        description="Never split attention into a shared-prefix part and a part per request.",
        examples=[True],
        json_schema_extra=_dropped("attention is never split here, so there is nothing to switch off"),
    )
    max_seq_len_to_capture: Whole = Field(
        8192,
        description="Longest sequence that runs in a captured CUDA graph.",
        examples=[8192],
        json_schema_extra=_dropped("no graph depends on the length of a sequence"),
    )
    max_context_len_to_capture: Whole = Field(
        8192,
        description="The oldest name of max_seq_len_to_capture.",
        examples=[8192],
        json_schema_extra=_dropped("no graph depends on the length of a sequence"),
    )


class OldLoad(Section):
    qlora_adapter_name_or_path: str | None = Field(
        None,
        min_length=1,
        description="A QLoRA adapter on top of bitsandbytes weights.",
        examples=["timdettmers/qlora-flan-7b"],
        json_schema_extra=_renamed("load.model_loader_extra_config.qlora_adapter_name_or_path"),
    )


class OldCache(Section):
    swap_space: Gibibytes = Field(
        4.0,
        description="Host memory in GiB for the KV blocks of preempted sequences.",
        examples=[4],
        json_schema_extra=_dropped(
            "a preempted sequence gives its blocks back and is computed again, so no memory is set aside"
        ),
    )
    quantization_param_path: str | None = Field(
        None,
        min_length=1,
        description="A file of scaling factors for an fp8 KV cache.",
        examples=["./scales.json"],
        json_schema_extra=_dropped("the fp8 KV cache of this build has no scales"),
    )


def _preemption(mode: str) -> Mapping[str, Any]:
    if mode == "swap":
        raise ValueError("swapping is gone: a preempted sequence is computed again")
    return {}


class OldScheduler(Section):
    num_scheduler_steps: Whole = Field(
        1,
        ge=1,
        description="Forward passes for each scheduling decision.",
        examples=[8],
        json_schema_extra=_dropped("every step is scheduled; `scheduler.async_scheduling` hides what that costs"),
    )
    multi_step_stream_outputs: Flag = Field(
        True,
        description="Stream tokens after each inner step of several.",
        examples=[False],
        json_schema_extra=_dropped("tokens are streamed after every step"),
    )
    scheduler_delay_factor: NumberFromZero = Field(
        0.0,
        description="Hold back new prompts for this multiple of the last prompt's latency.",
        examples=[0.5],
        json_schema_extra=_dropped("prompts join the running batch at once, so waiting for a larger one gains nothing"),
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
        examples=[True],
        json_schema_extra=_dropped("outputs never hold up a step and keep the order of each request"),
    )
    use_v2_block_manager: Flag = Field(
        True,
        description="Choose the second of two block managers.",
        examples=[True],
        json_schema_extra=_dropped("there is one block pool"),
    )


def _backend(text: str) -> Mapping[str, Any]:
    """`xgrammar:no-fallback,disable-any-whitespace`, the older way to give options with the name."""
    name, _, rest = text.partition(":")
    known = {
        "no-fallback": "structured_outputs.disable_fallback",
        "disable-any-whitespace": "structured_outputs.disable_any_whitespace",
        "disable-additional-properties": "structured_outputs.disable_additional_properties",
    }
    found: dict[str, Any] = {"structured_outputs.backend": name}
    for word in filter(None, rest.split(",")):
        if word not in known:
            raise ValueError(f"no such backend option `{word}`; there are: {', '.join(known)}")
        found[known[word]] = True
    return found


def _reasoning(is_on: bool) -> Mapping[str, Any]:
    if is_on:
        raise ValueError("reasoning is switched on by naming a `structured_outputs.reasoning_parser`")
    return {}


class OldStructuredOutputs(Section):
    guided_decoding_backend: str | None = Field(
        None,
        min_length=1,
        description="The grammar engine for constrained output, with its options behind a colon.",
        examples=["xgrammar:no-fallback"],
        json_schema_extra=old(
            _backend, "structured_outputs.backend", why="it is `structured_outputs.backend` now, its options keys of it"
        ),
    )
    guided_decoding_disable_fallback: Flag = Field(
        False,
        description="Fail a request that the grammar engine cannot handle.",
        examples=[True],
        json_schema_extra=_renamed("structured_outputs.disable_fallback"),
    )
    guided_decoding_disable_any_whitespace: Flag = Field(
        False,
        description="Compact JSON.",
        examples=[True],
        json_schema_extra=_renamed("structured_outputs.disable_any_whitespace"),
    )
    guided_decoding_disable_additional_properties: Flag = Field(
        False,
        description="JSON objects without properties that the schema does not list.",
        examples=[True],
        json_schema_extra=_renamed("structured_outputs.disable_additional_properties"),
    )
    enable_reasoning: Flag = Field(
        False,
        description="Split reasoning from the answer.",
        examples=[False],
        json_schema_extra=old(
            _reasoning,
            "structured_outputs.reasoning_parser",
            why="naming a `structured_outputs.reasoning_parser` is enough",
        ),
    )


def _acceptance(method: str) -> Mapping[str, Any]:
    if method == "typical_acceptance_sampler":
        raise ValueError("draft tokens are verified exactly, so that they never change an answer")
    return {}


class OldSpeculative(Section):
    speculative_model: str | None = Field(
        None,
        min_length=1,
        description="The draft model.",
        examples=["Qwen/Qwen3-0.6B"],
        json_schema_extra=_renamed("speculative.model"),
    )
    speculative_model_quantization: str | None = Field(
        None,
        min_length=1,
        description="How the draft model's weights are quantised.",
        examples=["awq"],
        json_schema_extra=_renamed("speculative.quantization"),
    )
    speculative_disable_mqa_scorer: Flag = Field(
        False,
        description="Score drafts by a larger batch.",
        examples=[True],
        json_schema_extra=_dropped("there is one way to score drafts"),
    )
    speculative_draft_tensor_parallel_size: Count | None = Field(
        None,
        description="Devices of the draft model.",
        examples=[1],
        json_schema_extra=_renamed("speculative.draft_tensor_parallel_size", aliases=("-spec-draft-tp",)),
    )
    speculative_max_model_len: Count | None = Field(
        None,
        description="Longest sequence that is drafted for.",
        examples=[4096],
        json_schema_extra=_renamed("speculative.max_model_len"),
    )
    speculative_disable_by_batch_size: Count | None = Field(
        None,
        description="Queued requests above which nothing is drafted.",
        examples=[32],
        json_schema_extra=_renamed("speculative.disable_by_batch_size"),
    )
    ngram_prompt_lookup_max: Count | None = Field(
        None,
        description="Most trailing tokens that are looked up in the prompt.",
        examples=[4],
        json_schema_extra=_renamed("speculative.prompt_lookup_max"),
    )
    ngram_prompt_lookup_min: Count | None = Field(
        None,
        description="Fewest trailing tokens that are looked up in the prompt.",
        examples=[2],
        json_schema_extra=_renamed("speculative.prompt_lookup_min"),
    )
    spec_decoding_acceptance_method: Literal["rejection_sampler", "typical_acceptance_sampler"] = Field(
        "rejection_sampler",
        description="How drafts are verified.",
        examples=["rejection_sampler"],
        json_schema_extra=old(_acceptance, why="drafts are verified exactly"),
    )
    typical_acceptance_sampler_posterior_threshold: NumberFromZero | None = Field(
        None,
        description="Probability below which the typicality test rejects a draft.",
        examples=[0.09],
        json_schema_extra=_dropped("drafts are verified exactly"),
    )
    typical_acceptance_sampler_posterior_alpha: NumberFromZero | None = Field(
        None,
        description="Entropy's weight in the typicality test.",
        examples=[0.3],
        json_schema_extra=_dropped("drafts are verified exactly"),
    )
    disable_logprobs_during_spec_decoding: Flag = Field(
        False,
        description="Withhold log-probabilities while drafting.",
        examples=[True],
        json_schema_extra=_dropped("log-probabilities are never withheld"),
    )


_EPLB = "parallel.eplb_config"


class OldParallel(Section):
    num_redundant_experts: Whole | None = Field(
        None,
        ge=0,
        description="Spare copies of experts.",
        examples=[0],
        json_schema_extra=_renamed(f"{_EPLB}.num_redundant_experts"),
    )
    eplb_window_size: Count | None = Field(
        None,
        description="Steps over which expert load is measured.",
        examples=[1000],
        json_schema_extra=_renamed(f"{_EPLB}.window_size"),
    )
    eplb_step_interval: Count | None = Field(
        None,
        description="Steps between rebalancings of experts.",
        examples=[3000],
        json_schema_extra=_renamed(f"{_EPLB}.step_interval"),
    )
    eplb_log_balancedness: Flag = Field(
        False,
        description="Log how evenly experts are used.",
        examples=[True],
        json_schema_extra=old(
            _if_true(f"{_EPLB}.log_balancedness", True),
            f"{_EPLB}.log_balancedness",
            why=f"it is `{_EPLB}.log_balancedness` now",
        ),
    )
    enable_multimodal_encoder_data_parallel: Flag = Field(
        False,
        description="Split the batch of the media encoder over devices.",
        examples=[True],
        json_schema_extra=old(
            _if_true("multimodal.mm_encoder_tp_mode", "data"),
            "multimodal.mm_encoder_tp_mode",
            why="it is `multimodal.mm_encoder_tp_mode: data` now",
        ),
    )
    worker_use_ray: Flag = Field(
        False,
        description="Run workers on Ray.",
        examples=[True],
        json_schema_extra=old(
            _if_true("parallel.distributed_executor_backend", "ray"),
            "parallel.distributed_executor_backend",
            why="it is `parallel.distributed_executor_backend: ray` now",
        ),
    )


class OldMultiModal(Section):
    disable_mm_preprocessor_cache: Flag = Field(
        False,
        description="Keep no preprocessed media.",
        examples=[True],
        json_schema_extra=old(
            _if_true("multimodal.mm_processor_cache_gb", 0),
            "multimodal.mm_processor_cache_gb",
            why="it is `multimodal.mm_processor_cache_gb: 0` now",
        ),
    )


class OldDevice(Section):
    override_neuron_config: dict[str, Any] = Field(
        {},
        description="Settings of a Neuron device.",
        examples=[{"cast_logits_dtype": "bfloat16"}],
        json_schema_extra=_renamed("device.additional_config"),
    )


class OldServer(Section):
    disable_log_requests: Flag = Field(
        True,
        description="Log no record for requests that arrive.",
        examples=[True],
        json_schema_extra=old(
            lambda is_off: {"server.enable_log_requests": not is_off},
            "server.enable_log_requests",
            why="its opposite, `server.enable_log_requests`, is off unless it is asked for",
        ),
    )
    engine_use_ray: Flag = Field(
        False,
        description="Host the engine in an actor of Ray.",
        examples=[True],
        json_schema_extra=_dropped("the engine has a process of its own unless `disable_frontend_multiprocessing`"),
    )
    tokenizer_pool_size: Whole = Field(
        0,
        ge=0,
        description="Workers that tokenise.",
        examples=[4],
        json_schema_extra=_dropped("the tokenizer uses threads by itself"),
    )
    tokenizer_pool_type: str = Field(
        "ray",
        min_length=1,
        description="What the workers that tokenise are made of.",
        examples=["ray"],
        json_schema_extra=_dropped("the tokenizer uses threads by itself"),
    )
    tokenizer_pool_extra_config: dict[str, Any] = Field(
        {},
        description="Settings of the workers that tokenise.",
        examples=[{}],
        json_schema_extra=_dropped("the tokenizer uses threads by itself"),
    )


DEPRECATED: dict[str, type[Section]] = {
    "model": OldModel,
    "load": OldLoad,
    "cache": OldCache,
    "scheduler": OldScheduler,
    "parallel": OldParallel,
    "device": OldDevice,
    "multimodal": OldMultiModal,
    "structured_outputs": OldStructuredOutputs,
    "speculative": OldSpeculative,
    "server": OldServer,
}
