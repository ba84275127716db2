"""Refused options of the model and of loading it."""

from __future__ import annotations

from typing import Any

from ..types import Count, Flag, HumanInt, Texts
from .reasons import (
    ATTENTION_DTYPE,
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

MODEL: tuple[Refused, ...] = (
    Refused("allowed_local_media_path", str, "", "Folder from which requests may read media files.", reason=TEXT_ONLY),
    Refused("allowed_media_domains", Texts, (), "Hosts from which requests may fetch media.", reason=TEXT_ONLY),
    Refused("enable_prompt_embeds", Flag, False, "Accept prompts as embedding vectors.", reason=NO_PROMPT_TENSORS),
    Refused("override_attention_dtype", str | None, None, "Number format of attention alone.", reason=ATTENTION_DTYPE),
    Refused(
        "io_processor_plugin", str | None, None, "Plugin that converts requests and outputs.", reason=NO_IO_PLUGINS
    ),
    Refused("quantization_config", dict[str, Any], {}, "Quantisation by kind of layer.", reason=ONE_QUANTISATION),
    Refused("allow_deprecated_quantization", Flag, False, "Accept methods to be removed.", reason=ONE_QUANTISATION),
    Refused("model_class_overrides", dict[str, Any], {}, "Python class for an architecture.", reason=REPOSITORY_CODE),
    Refused(
        "diffusion_config",
        dict[str, Any],
        {},
        "Settings of a diffusion language model.",
        reason=NO_DIFFUSION,
        aliases=("-dc",),
    ),
    Refused("engram_config", dict[str, Any], {}, "Storage of n-gram embeddings.", reason=NO_ENGRAM),
    Refused("renderer_num_workers", Count, 1, "Number of threads that render and tokenise.", reason=ONE_RENDERER),
    # results besides tokens and log-probabilities
    Refused("enable_return_routed_experts", Flag, False, "Return the experts of each token.", reason=NO_OTHER_RESULTS),
    Refused("return_sampling_mask", Flag, False, "Return the tokens that could be sampled.", reason=NO_OTHER_RESULTS),
    Refused("aux_output_config", dict[str, Any], {}, "Further results of the model.", reason=NO_OTHER_RESULTS),
    Refused("enable_trace_replay", Flag, False, "Let a request force the tokens that are generated.", reason=NO_REPLAY),
    Refused("use_fp64_gumbel", Flag, False, "Sample with noise in float64.", reason=SAMPLING_NOISE),
    Refused(
        "watermark_config", dict[str, Any], {}, "Mark generated text by its choice of tokens.", reason=NO_WATERMARK
    ),
    # sleep
    Refused("sleep_mode_backend", str, "cumem", "How GPU memory is freed and restored.", reason=SLEEPING_MEMORY),
    Refused(
        "sleep_mode_offload_cudagraph", Flag, False, "Keep the memory of graphs in host memory.", reason=SLEEPING_MEMORY
    ),
    Refused(
        "sleep_preserve_parameter_names", Texts, (), "Weights that are kept, as glob patterns.", reason=SLEEPING_MEMORY
    ),
    Refused("enable_cumem_allocator", Flag, False, "Allocate GPU memory that can be unmapped.", reason=SLEEPING_MEMORY),
    Refused("enable_nccl_comm_suspend", Flag, False, "Free the memory of NCCL while asleep.", reason=SLEEPING_MEMORY),
)
LOAD: tuple[Refused, ...] = (
    Refused(
        "safetensors_prefetch_num_threads",
        Count | None,
        None,
        "Number of threads that read safetensors files into the page cache.",
        reason=READ_ON_DEMAND,
    ),
    Refused(
        "safetensors_prefetch_block_size",
        HumanInt | None,
        None,
        "Bytes of one read into the page cache.",
        reason=READ_ON_DEMAND,
    ),
    Refused("weight_transfer_config", dict[str, Any], {}, "How a trainer sends new weights.", reason=NO_TRAINING),
)
