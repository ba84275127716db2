"""Refused options of the model and of loading it."""

from __future__ import annotations

from typing import Any, Literal

from ..types import Count, Flag, HumanInt, Texts
from .reasons import (
    ATTENTION_DTYPE,
    GENERATION_ONLY,
    NO_DIFFUSION,
    NO_ENGRAM,
    NO_IO_PLUGINS,
    NO_OTHER_RESULTS,
    NO_PROMPT_TENSORS,
    NO_REPLAY,
    NO_TRAINING,
    NO_WATERMARK,
    ONE_QUANTISATION,
    ONE_RENDERER,
    READ_ON_DEMAND,
    REPOSITORY_CODE,
    SAMPLING_NOISE,
    SLEEPING_MEMORY,
    TEXT_ONLY,
)
from .row import Refused

ROWS: tuple[Refused, ...] = (
    # model
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
    Refused("model.allowed_local_media_path", str, "", TEXT_ONLY, "Folder from which requests may read media files."),
    Refused("model.allowed_media_domains", Texts, (), TEXT_ONLY, "Hosts from which requests may fetch media."),
    Refused("model.enable_prompt_embeds", Flag, False, NO_PROMPT_TENSORS, "Accept prompts as embedding vectors."),
    Refused("model.override_attention_dtype", str | None, None, ATTENTION_DTYPE, "Number format of attention alone."),
    Refused("model.io_processor_plugin", str | None, None, NO_IO_PLUGINS, "Plugin that converts requests and outputs."),
    Refused("model.quantization_config", dict[str, Any], {}, ONE_QUANTISATION, "Quantisation by kind of layer."),
    Refused("model.allow_deprecated_quantization", Flag, False, ONE_QUANTISATION, "Accept methods to be removed."),
    Refused("model.model_class_overrides", dict[str, Any], {}, REPOSITORY_CODE, "Python class for an architecture."),
    Refused(
        "model.diffusion_config",
        dict[str, Any],
        {},
        NO_DIFFUSION,
        "Settings of a diffusion language model.",
        aliases=("-dc",),
    ),
    Refused("model.engram_config", dict[str, Any], {}, NO_ENGRAM, "Storage of n-gram embeddings."),
    Refused("model.renderer_num_workers", Count, 1, ONE_RENDERER, "Number of threads that render and tokenise."),
    # results besides tokens and log-probabilities
    Refused("model.enable_return_routed_experts", Flag, False, NO_OTHER_RESULTS, "Return the experts of each token."),
    Refused("model.return_sampling_mask", Flag, False, NO_OTHER_RESULTS, "Return the tokens that could be sampled."),
    Refused("model.aux_output_config", dict[str, Any], {}, NO_OTHER_RESULTS, "Further results of the model."),
    Refused("model.enable_trace_replay", Flag, False, NO_REPLAY, "Let a request force the tokens that are generated."),
    Refused("model.use_fp64_gumbel", Flag, False, SAMPLING_NOISE, "Sample with noise in float64."),
    Refused("model.watermark_config", dict[str, Any], {}, NO_WATERMARK, "Mark generated text by its choice of tokens."),
    # sleep
    Refused("model.sleep_mode_backend", str, "cumem", SLEEPING_MEMORY, "How GPU memory is freed and restored."),
    Refused(
        "model.sleep_mode_offload_cudagraph", Flag, False, SLEEPING_MEMORY, "Keep the memory of graphs in host memory."
    ),
    Refused(
        "model.sleep_preserve_parameter_names", Texts, (), SLEEPING_MEMORY, "Weights that are kept, as glob patterns."
    ),
    Refused("model.enable_cumem_allocator", Flag, False, SLEEPING_MEMORY, "Allocate GPU memory that can be unmapped."),
    Refused("model.enable_nccl_comm_suspend", Flag, False, SLEEPING_MEMORY, "Free the memory of NCCL while asleep."),
    # load
    Refused(
        "load.safetensors_prefetch_num_threads",
        Count | None,
        None,
        READ_ON_DEMAND,
        "Number of threads that read safetensors files into the page cache.",
    ),
    Refused(
        "load.safetensors_prefetch_block_size",
        HumanInt | None,
        None,
        READ_ON_DEMAND,
        "Bytes of one read into the page cache.",
    ),
    Refused("load.weight_transfer_config", dict[str, Any], {}, NO_TRAINING, "How a trainer sends new weights."),
)
