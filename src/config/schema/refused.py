"""Options that other serving engines have and this build does not: one row each.

Such an option is recognised everywhere (`engine explain`, JSON Schema, flags, `engine import`) and accepts only values
that describe what this build does anyway, mostly its default. To implement one, delete its row and declare a field of
the same name in its section's module: src/config/schema/<section>.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, create_model

from .section import Notation, Section
from .types import Count, Flag, Gibibytes, HumanInt, NumberFromZero, Numbers, Texts, Whole, parse_one_or_more

SectionType = TypeVar("SectionType", bound=Section)
TraceModules = Annotated[tuple[Literal["model", "worker", "all"], ...], BeforeValidator(parse_one_or_more)]


@dataclass(frozen=True, slots=True)
class Refused:
    """One option. `reason` says what this build does instead; `same` are values that mean the same as the default."""

    path: str
    type: Any
    default: Any
    reason: str
    meaning: str
    same: tuple[Any, ...] = ()
    aliases: tuple[str, ...] = ()
    notation: Notation | None = None


# One reason per feature that is missing.
REPOSITORY_CODE = "code in a model's repository is never run; choose a model whose architecture this build has"
ONE_CONFIG_FORMAT = "this build reads config.json; choose a repository that has one, not params.json alone"
GENERATION_ONLY = "this build generates text; it computes no embeddings, scores or rewards"
OWN_MODELS = "this build runs its own implementations only (Llama, Mistral, Qwen2, Qwen3); write auto or native"
TEXT_ONLY = "this build serves text; it reads no images, audio or video"
NO_PROMPT_TENSORS = "prompts are text, messages or token ids; tensors are not accepted"
NO_SLEEP = "this build does not free GPU memory while the process runs; stop the process"
ATTENTION_DTYPE = "attention reads keys and values in `model.dtype` and accumulates in float32; set `model.dtype`"
NO_IO_PLUGINS = "there are no such plugins; requests and responses have the format of the OpenAI API"
NO_KV_SCALES = "the 8-bit cache of this build has no scales"
NO_SHARED_KV = "no model that this build runs shares keys and values between layers"
NO_STATE_SPACE = "this build runs no state-space (Mamba) layers, so there is no such cache"
WEIGHTS_ON_DEVICE = "this build keeps all weights on the device that computes"
SLOTS_AS_NEEDED = "the scheduler reserves the slots that a step needs"
ONE_KV_LAYOUT = "this build gives every layer the same cache and has no other cache manager"
ONE_DEVICE = "this build computes on one device; run a server per device behind a load balancer"
ONE_REPLICA = "a server of this build is one replica; run several behind a load balancer"
NO_EXPERTS = "this build runs no mixture-of-experts models, so there are no experts to place"
NO_RAY = "this build starts no workers on Ray"
ONE_WORKER = "the engine process is the only worker"
NO_DEVICE_SETTINGS = "no device of this build has settings besides `device`"
NO_ADAPTERS = "this build applies no adapters; merge the adapter into the model's weights"
NO_PROMPT_ADAPTERS = "this build reads no prompt adapters; put the prompt's text into the request"
NO_GRAMMARS = "this build does not constrain output yet; a request that asks for it is answered 400"
NO_REASONING = "reasoning remains in the text of the answer, between the model's own markers"
NO_DRAFTS = "this build drafts no tokens; the model computes every token itself"
KV_STAYS = "the KV cache remains in the engine that computed it"
NO_EVENTS = "this build publishes no events; /metrics reports prefix cache hits"
NO_HIDDEN_METRICS = "no release has hidden a metric yet"
NO_TRACES = "this build exports no traces; the log has one line of timings per request, /metrics the histograms"
TOOL_CALLS = (
    "tool calls remain in the text of the answer, in the model's own format: tools are part of the prompt, and the "
    "client parses the calls in `content`"
)
NO_TOOL_SERVER = "the server runs no tools: the client runs those that the model asks for"
NO_HEADLESS = "every deployment of this build has its own API; run one per machine behind a load balancer"
ONE_API_PROCESS = "this build runs one API process per engine; run several deployments behind a load balancer"

REFUSED: tuple[Refused, ...] = (
    # model
    Refused("model.code_revision", str | None, None, REPOSITORY_CODE, "Revision of the repository of a model's code."),
    Refused("model.trust_remote_code", Flag, False, REPOSITORY_CODE, "Run Python code of the model's repository."),
    Refused(
        "model.config_format",
        Literal["auto", "hf", "mistral"],
        "auto",
        ONE_CONFIG_FORMAT,
        "Format of the model's configuration file: `hf` is config.json.",
        same=("hf",),
    ),
    Refused(
        "model.runner",
        Literal["auto", "generate", "pooling", "draft"],
        "auto",
        GENERATION_ONLY,
        "What the model is run for: `generate` produces text token by token.",
        same=("generate",),
    ),
    Refused(
        "model.convert",
        Literal["auto", "none", "embed", "classify", "reward"],
        "auto",
        GENERATION_ONLY,
        "Replace the model's head, for example by one for embeddings: `none` keeps it.",
        same=("none",),
    ),
    Refused("model.pooler_config", dict[str, Any], {}, GENERATION_ONLY, "How hidden states are pooled into a vector."),
    Refused(
        "model.model_impl",
        Literal["auto", "native", "vllm", "transformers", "terratorch"],
        "auto",
        OWN_MODELS,
        "Which implementation of the architecture runs: `native` is the one of this engine.",
        same=("native",),
    ),
    Refused("model.allowed_local_media_path", str, "", TEXT_ONLY, "Folder from which requests may read media files."),
    Refused("model.allowed_media_domains", Texts, (), TEXT_ONLY, "Hosts from which requests may fetch media."),
    Refused("model.enable_prompt_embeds", Flag, False, NO_PROMPT_TENSORS, "Accept prompts as embedding vectors."),
    Refused("model.enable_sleep_mode", Flag, False, NO_SLEEP, "Free weights and KV cache on request."),
    Refused("model.override_attention_dtype", str | None, None, ATTENTION_DTYPE, "Number format of attention alone."),
    Refused("model.io_processor_plugin", str | None, None, NO_IO_PLUGINS, "Plugin that converts requests and outputs."),
    # cache
    Refused("cache.calculate_kv_scales", Flag, False, NO_KV_SCALES, "Compute the scales of an 8-bit KV cache."),
    Refused("cache.kv_sharing_fast_prefill", Flag, False, NO_SHARED_KV, "Skip the prompt in layers that share KV."),
    Refused(
        "cache.mamba_cache_dtype",
        Literal["auto", "float32"],
        "auto",
        NO_STATE_SPACE,
        "Number format of the convolution and state-space caches of Mamba layers.",
    ),
    Refused(
        "cache.mamba_ssm_cache_dtype",
        Literal["auto", "float32"],
        "auto",
        NO_STATE_SPACE,
        "Number format of the state-space cache alone.",
    ),
    Refused("cache.cpu_offload_gb", Gibibytes, 0.0, WEIGHTS_ON_DEVICE, "GiB of weights that are kept in host memory."),
    # scheduler
    Refused("scheduler.num_lookahead_slots", Whole, 0, SLOTS_AS_NEEDED, "KV slots reserved for unverified tokens."),
    Refused("scheduler.disable_chunked_mm_input", Flag, False, TEXT_ONLY, "Never split a media item over two steps."),
    Refused(
        "scheduler.disable_hybrid_kv_cache_manager",
        Flag,
        True,
        ONE_KV_LAYOUT,
        "Give every layer a KV cache of the same size, layers with a sliding window included.",
    ),
    # parallel
    Refused(
        "parallel.distributed_executor_backend",
        Literal["auto", "uni", "mp", "ray", "external_launcher"],
        "auto",
        ONE_DEVICE,
        "How workers are started: `auto` and `uni` are one worker inside the engine process.",
        same=("uni",),
    ),
    Refused(
        "parallel.pipeline_parallel_size",
        Count,
        1,
        ONE_DEVICE,
        "Number of pipeline stages, each with a part of the layers on its own device.",
        aliases=("-pp",),
    ),
    Refused(
        "parallel.tensor_parallel_size",
        Count,
        1,
        ONE_DEVICE,
        "Number of devices that each weight matrix is split over.",
        aliases=("-tp",),
    ),
    Refused(
        "parallel.decode_context_parallel_size",
        Count,
        1,
        ONE_DEVICE,
        "Number of devices that share the KV cache of each sequence; divides tensor_parallel_size.",
        aliases=("-dcp",),
    ),
    Refused(
        "parallel.data_parallel_size",
        Count,
        1,
        ONE_REPLICA,
        "Number of engines that share the load of one address.",
        aliases=("-dp",),
    ),
    Refused(
        "parallel.data_parallel_rank",
        Whole | None,
        None,
        ONE_REPLICA,
        "Rank of this replica, with load balancing outside of the server.",
        aliases=("-dpn",),
    ),
    Refused(
        "parallel.data_parallel_start_rank",
        Whole | None,
        None,
        ONE_REPLICA,
        "First rank on a further node.",
        aliases=("-dpr",),
    ),
    Refused(
        "parallel.data_parallel_size_local",
        Count | None,
        None,
        ONE_REPLICA,
        "Number of replicas on this node.",
        aliases=("-dpl",),
    ),
    Refused(
        "parallel.data_parallel_address",
        str | None,
        None,
        ONE_REPLICA,
        "Address of the node that coordinates the replicas.",
        aliases=("-dpa",),
    ),
    Refused(
        "parallel.data_parallel_rpc_port",
        Whole | None,
        None,
        ONE_REPLICA,
        "Port for messages between replicas.",
        aliases=("-dpp",),
    ),
    Refused(
        "parallel.data_parallel_backend",
        Literal["mp", "ray"],
        "mp",
        ONE_REPLICA,
        "Run replicas as local processes or as Ray actors.",
        aliases=("-dpb",),
    ),
    Refused("parallel.data_parallel_hybrid_lb", Flag, False, ONE_REPLICA, "Balance load over a node's replicas."),
    Refused("parallel.enable_expert_parallel", Flag, False, NO_EXPERTS, "Place whole experts on different devices."),
    Refused("parallel.enable_dbo", Flag, False, ONE_DEVICE, "Overlap computation and communication of two batches."),
    Refused("parallel.dbo_decode_token_threshold", Whole, 32, ONE_DEVICE, "Decode tokens from which a batch is split."),
    Refused("parallel.dbo_prefill_token_threshold", Whole, 512, ONE_DEVICE, "Tokens from which a batch is split."),
    Refused("parallel.enable_eplb", Flag, False, NO_EXPERTS, "Move experts between devices to balance their load."),
    Refused(
        "parallel.eplb_config",
        dict[str, Any],
        {},
        NO_EXPERTS,
        "How expert load is measured and balanced: window_size, step_interval, num_redundant_experts, "
        "log_balancedness.",
    ),
    Refused(
        "parallel.expert_placement_strategy",
        Literal["linear", "round_robin"],
        "linear",
        NO_EXPERTS,
        "Order in which experts are assigned to devices.",
    ),
    Refused("parallel.ray_workers_use_nsight", Flag, False, NO_RAY, "Start Ray workers under the Nsight profiler."),
    Refused("parallel.disable_custom_all_reduce", Flag, False, ONE_DEVICE, "Use NCCL for all-reduce operations."),
    Refused("parallel.worker_cls", str, "auto", ONE_WORKER, "Class of the worker of each device."),
    Refused("parallel.worker_extension_cls", str, "", ONE_WORKER, "Class that is mixed into the worker."),
    # device
    Refused("device.additional_config", dict[str, Any], {}, NO_DEVICE_SETTINGS, "Settings for the device's own code."),
    # lora
    Refused("lora.enable_lora", Flag, False, NO_ADAPTERS, "Serve low-rank adapters (LoRA)."),
    Refused("lora.enable_lora_bias", Flag, False, NO_ADAPTERS, "Apply the bias terms of adapters."),
    Refused("lora.max_loras", Count, 1, NO_ADAPTERS, "Maximum number of adapters in one batch."),
    Refused("lora.max_lora_rank", Count, 16, NO_ADAPTERS, "Maximum rank of an adapter."),
    Refused("lora.lora_extra_vocab_size", Whole, 256, NO_ADAPTERS, "Maximum number of tokens that an adapter adds."),
    Refused(
        "lora.lora_dtype",
        Literal["auto", "float16", "bfloat16"],
        "auto",
        NO_ADAPTERS,
        "Number format of adapters.",
    ),
    Refused("lora.max_cpu_loras", Whole | None, None, NO_ADAPTERS, "Maximum number of adapters in host memory."),
    Refused("lora.fully_sharded_loras", Flag, False, NO_ADAPTERS, "Split both matrices of an adapter over devices."),
    Refused("lora.default_mm_loras", dict[str, Any], {}, NO_ADAPTERS, "Adapter for each kind of media in a prompt."),
    Refused("lora.long_lora_scaling_factors", Numbers, (), NO_ADAPTERS, "Context scaling factors of adapters."),
    Refused("lora.enable_prompt_adapter", Flag, False, NO_PROMPT_ADAPTERS, "Accept learned soft prompts."),
    Refused("lora.max_prompt_adapters", Count, 1, NO_PROMPT_ADAPTERS, "Maximum number of soft prompts in one batch."),
    Refused("lora.max_prompt_adapter_token", Whole, 0, NO_PROMPT_ADAPTERS, "Maximum virtual tokens of a soft prompt."),
    # multimodal
    Refused(
        "multimodal.limit_mm_per_prompt",
        dict[str, Any],
        {},
        TEXT_ONLY,
        "Maximum number of items of each kind of media in a prompt.",
        notation="pairs",
    ),
    Refused("multimodal.media_io_kwargs", dict[str, Any], {}, TEXT_ONLY, "Decoder settings for each kind of media."),
    Refused("multimodal.mm_processor_kwargs", dict[str, Any], {}, TEXT_ONLY, "Settings of the model's preprocessor."),
    Refused(
        "multimodal.mm_processor_cache_gb",
        Gibibytes,
        4.0,
        TEXT_ONLY,
        "GiB of memory for preprocessed media.",
        same=(0,),
    ),
    Refused(
        "multimodal.mm_processor_cache_type",
        Literal["lru", "shm"],
        "lru",
        TEXT_ONLY,
        "Keep preprocessed media per process or in shared memory.",
    ),
    Refused("multimodal.mm_shm_cache_max_object_size_mb", Count, 128, TEXT_ONLY, "MiB of one object in shared memory."),
    Refused(
        "multimodal.mm_encoder_tp_mode",
        Literal["weights", "data"],
        "weights",
        TEXT_ONLY,
        "Split the media encoder by its weights or by its batch.",
    ),
    Refused("multimodal.interleave_mm_strings", Flag, False, TEXT_ONLY, "Keep the order of media and text."),
    Refused("multimodal.skip_mm_profiling", Flag, False, TEXT_ONLY, "Do not measure the memory of the media encoder."),
    Refused("multimodal.video_pruning_rate", NumberFromZero | None, None, TEXT_ONLY, "Share of video tokens dropped."),
    Refused(
        "multimodal.image_input_type",
        Literal["pixel_values", "image_features"] | None,
        None,
        TEXT_ONLY,
        "Whether images are given as pixels or as features.",
    ),
    Refused("multimodal.image_token_id", Whole | None, None, TEXT_ONLY, "Token id that represents an image."),
    Refused("multimodal.image_input_shape", str | None, None, TEXT_ONLY, "Maximum shape of an image."),
    Refused("multimodal.image_feature_size", Count | None, None, TEXT_ONLY, "Number of tokens of an image."),
    # structured_outputs
    Refused(
        "structured_outputs.backend",
        Literal["auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer"],
        "auto",
        NO_GRAMMARS,
        "Library that compiles grammars.",
    ),
    Refused("structured_outputs.disable_fallback", Flag, False, NO_GRAMMARS, "Use no other library on failure."),
    Refused("structured_outputs.disable_any_whitespace", Flag, False, NO_GRAMMARS, "Generate JSON without whitespace."),
    Refused(
        "structured_outputs.disable_additional_properties",
        Flag,
        False,
        NO_GRAMMARS,
        "Generate no JSON properties that the schema does not list.",
    ),
    Refused(
        "structured_outputs.reasoning_parser",
        str | None,
        None,
        NO_REASONING,
        "Parser that separates reasoning from the answer.",
        same=("",),
        aliases=("--reasoning-parser",),
    ),
    # speculative
    Refused(
        "speculative.method",
        Literal["ngram", "draft_model", "eagle", "eagle3", "medusa", "mtp", "suffix"] | None,
        None,
        NO_DRAFTS,
        "How draft tokens are proposed.",
    ),
    Refused("speculative.model", str | None, None, NO_DRAFTS, "Draft model: a hub id or a directory."),
    Refused(
        "speculative.num_speculative_tokens",
        Count | None,
        None,
        NO_DRAFTS,
        "Number of draft tokens in each step.",
        aliases=("--num-speculative-tokens",),
    ),
    Refused("speculative.quantization", str | None, None, NO_DRAFTS, "Quantisation of the draft model's weights."),
    Refused("speculative.draft_tensor_parallel_size", Count | None, None, NO_DRAFTS, "Devices of the draft model."),
    Refused("speculative.max_model_len", HumanInt | None, None, NO_DRAFTS, "Longest sequence that gets draft tokens."),
    Refused("speculative.disable_by_batch_size", Count | None, None, NO_DRAFTS, "Queued requests that stop drafting."),
    Refused("speculative.prompt_lookup_max", Count | None, None, NO_DRAFTS, "Maximum tokens of a prompt lookup."),
    Refused("speculative.prompt_lookup_min", Count | None, None, NO_DRAFTS, "Minimum tokens of a prompt lookup."),
    # kv_transfer
    Refused("kv_transfer.kv_connector", str | None, None, KV_STAYS, "Connector that moves KV blocks."),
    Refused(
        "kv_transfer.kv_role",
        Literal["kv_producer", "kv_consumer", "kv_both"] | None,
        None,
        KV_STAYS,
        "Whether this engine sends KV blocks, receives them, or both.",
    ),
    # kv_events
    Refused("kv_events.enable_kv_cache_events", Flag, False, NO_EVENTS, "Publish an event per stored or freed block."),
    Refused("kv_events.publisher", Literal["null", "zmq"], "null", NO_EVENTS, "Transport of the events."),
    Refused("kv_events.endpoint", str | None, None, NO_EVENTS, "Address of the publisher."),
    Refused("kv_events.topic", str, "", NO_EVENTS, "Topic of the events."),
    # observability
    Refused(
        "observability.show_hidden_metrics_for_version",
        str | None,
        None,
        NO_HIDDEN_METRICS,
        "Publish metrics that were hidden since this release.",
    ),
    Refused("observability.otlp_traces_endpoint", str | None, None, NO_TRACES, "Address of an OpenTelemetry server."),
    Refused(
        "observability.collect_detailed_traces",
        TraceModules,
        (),
        NO_TRACES,
        "Modules that are timed in detail.",
        notation="commas",
    ),
    # server
    Refused("server.enable_auto_tool_choice", Flag, False, TOOL_CALLS, "Return the model's tool calls as objects."),
    Refused("server.tool_call_parser", str | None, None, TOOL_CALLS, "Parser of tool calls in generated text."),
    Refused("server.tool_parser_plugin", str, "", TOOL_CALLS, "Python file with further tool call parsers."),
    Refused("server.tool_server", str | None, None, NO_TOOL_SERVER, "Servers whose tools the API runs, as host:port."),
    Refused("server.lora_modules", Texts, (), NO_ADAPTERS, "Adapters to load at start, each as name=path."),
    Refused("server.headless", Flag, False, NO_HEADLESS, "Start engine processes without an HTTP listener."),
    Refused(
        "server.api_server_count",
        Whole,
        1,
        ONE_API_PROCESS,
        "Number of HTTP processes in front of one engine.",
        aliases=("-asc",),
    ),
)


def with_refused(section: str) -> Callable[[type[SectionType]], type[SectionType]]:
    """Class decorator: the section with a field for each of its rows in the table, after its declared fields."""

    def add(declared: type[SectionType]) -> type[SectionType]:
        rows = {row.path.partition(".")[2]: row for row in REFUSED if row.path.partition(".")[0] == section}
        both = sorted(rows.keys() & declared.model_fields.keys())
        assert not both, f"{section}: declared and still in the table of refused options: {both}"
        fields: dict[str, Any] = {name: (row.type, _field(row)) for name, row in rows.items()}
        return create_model(
            declared.__name__, __base__=declared, __module__=declared.__module__, __doc__=declared.__doc__, **fields
        )

    return add


def _field(row: Refused) -> Any:
    extra: dict[str, Any] = {"reload": "process", "devices": [], "since": "0.1", "reason": row.reason}
    for name in ("same", "aliases"):
        if value := getattr(row, name):
            extra[name] = list(value)
    if row.notation is not None:
        extra["notation"] = row.notation
    return Field(row.default, description=row.meaning, json_schema_extra=extra)
