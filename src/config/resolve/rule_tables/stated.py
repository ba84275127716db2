"""Rules of the shared catalogue that no configuration of this build can break, each with where the reason is declared.

A rule here has no separate reason that could become false: `engine explain R161` shows the refusal of an option, the
description of an option, or another rule. Only the sentences in `SENTENCES` are written here, and
tests/unit/test_effects.py requires a test that shows each of them (`pytest.mark.holds`).
"""

from __future__ import annotations

import re

from ...schema.options import options
from ..rule import Rule, StatedRule

# Rule -> options that this build refuses, or accepts with a warning only; NAME=VALUE is one refused value.
NOT_HERE = {
    "R007": "multimodal.limit_mm_per_prompt",
    "R017": "server.enable_auto_tool_choice",
    "R020": "server.disable_log_requests",
    "R025": "multimodal.interleave_mm_strings",
    "R041": "structured_outputs.enable_reasoning",
    "R042": "structured_outputs.enable_reasoning",
    "R047": "load.load_format=bitsandbytes",
    "R048": "load.load_format=bitsandbytes",
    "R049": "load.qlora_adapter_name_or_path",
    "R053": "model.task",
    "R060": "model.max_seq_len_to_capture",
    "R061": "model.max_context_len_to_capture model.max_seq_len_to_capture",
    "R063": "model.disable_cascade_attn",
    "R064": "model.enable_prompt_embeds",
    "R069": "model.override_pooler_config",
    "R072": "model.allowed_local_media_path",
    "R073": "model.allowed_media_domains",
    "R091": "cache.quantization_param_path",
    "R093": "multimodal.limit_mm_per_prompt",
    "R095": "cache.swap_space scheduler.preemption_mode",
    "R101": "scheduler.disable_async_output_proc",
    "R117": "scheduler.disable_chunked_mm_input",
    "R124": "scheduler.num_scheduler_steps",
    "R125": "scheduler.num_scheduler_steps",
    "R126": "scheduler.num_scheduler_steps",
    "R127": "scheduler.num_lookahead_slots",
    "R128": "scheduler.multi_step_stream_outputs scheduler.num_scheduler_steps",
    "R129": "scheduler.scheduler_delay_factor",
    "R130": "scheduler.preemption_mode cache.swap_space",
    "R133": "device.device=tpu",
    "R144": "parallel.num_redundant_experts parallel.eplb_window_size parallel.eplb_step_interval"
    " parallel.eplb_log_balancedness",
    "R149": "parallel.worker_use_ray",
    "R152": "multimodal.mm_processor_cache_gb",
    "R153": "multimodal.mm_shm_cache_max_object_size_mb multimodal.mm_processor_cache_type",
    "R154": "multimodal.disable_mm_preprocessor_cache multimodal.mm_processor_cache_gb",
    "R155": "multimodal.mm_encoder_tp_mode",
    "R156": "parallel.enable_multimodal_encoder_data_parallel multimodal.mm_encoder_tp_mode",
    "R157": "multimodal.limit_mm_per_prompt",
    "R158": "multimodal.video_pruning_rate",
    "R159": "multimodal.skip_mm_profiling",
    "R160": "multimodal.media_io_kwargs multimodal.mm_processor_kwargs",
    "R165": "lora.long_lora_scaling_factors",
    "R166": "lora.fully_sharded_loras",
    "R167": "lora.default_mm_loras",
    "R168": "lora.enable_lora_bias lora.lora_extra_vocab_size",
    "R169": "lora.enable_prompt_adapter lora.max_prompt_adapters lora.max_prompt_adapter_token",
    "R170": "structured_outputs.guided_decoding_*",
    "R171": "structured_outputs.guided_decoding_backend",
    "R175": "speculative.speculative_* speculative.ngram_*",
    "R178": "speculative.draft_tensor_parallel_size",
    "R181": "speculative.spec_decoding_acceptance_method speculative.typical_acceptance_*",
    "R182": "speculative.disable_logprobs_during_spec_decoding",
    "R183": "speculative.quantization speculative.speculative_model_quantization",
    "R187": "device.additional_config",
    "R188": "server.tokenizer_pool_*",
    "R191": "scheduler.use_v2_block_manager",
    "R192": "scheduler.num_lookahead_slots",
}
# Rule -> effective options whose description says what the rule asks for; `pytest.mark.effect` tests show each.
DESCRIBED = {
    "R003": "model.max_model_len",
    "R009": "load.ignore_patterns",
    "R011": "observability.collect_detailed_traces",
    "R015": "server.tool_server",
    "R023": "server.trust_request_chat_template server.chat_template",
    "R030": "server.api_key",
    "R031": "server.api_key server.routes_without_key",
    "R032": "server.middleware",
    "R033": "server.enable_request_id_headers",
    "R034": "server.enable_tokenizer_info_endpoint",
    "R036": "server.max_incomplete_header_bytes server.max_header_count",
    "R037": "server.response_role",
    "R038": "server.headless",
    "R043": "model.served_model_name",
    "R044": "model.tokenizer",
    "R045": "model.hf_config_path",
    "R046": "model.config_format load.load_format",
    "R050": "model.quantization",
    "R051": "model.dtype",
    "R052": "model.runner",
    "R054": "model.skip_tokenizer_init",
    "R056": "model.tokenizer_mode",
    "R058": "model.logprobs_mode",
    "R066": "model.max_model_len",
    "R067": "model.override_generation_config model.generation_config",
    "R070": "model.logits_processor_pattern",
    "R071": "model.enable_sleep_mode",
    "R074": "model.config_format",
    "R075": "model.model_impl",
    "R076": "model.trust_remote_code",
    "R077": "model.hf_token",
    "R078": "model.seed",
    "R079": "load.load_format",
    "R083": "cache.gpu_memory_utilization",
    "R086": "cache.block_size",
    "R087": "cache.block_size",
    "R088": "cache.kv_cache_dtype",
    "R089": "cache.kv_cache_dtype",
    "R092": "cache.enable_prefix_caching",
    "R096": "cache.mamba_cache_dtype cache.mamba_ssm_cache_dtype",
    "R099": "scheduler.max_num_seqs",
    "R100": "scheduler.max_num_batched_tokens",
    "R102": "scheduler.max_num_seqs",
    "R103": "scheduler.max_num_batched_tokens",
    "R106": "scheduler.enable_chunked_prefill",
    "R107": "scheduler.enable_chunked_prefill",
    "R108": "scheduler.enable_chunked_prefill",
    "R111": "scheduler.max_prefill_share scheduler.max_num_batched_tokens",
    "R113": "scheduler.max_long_partial_prefills",
    "R115": "scheduler.long_prefill_token_threshold",
    "R118": "scheduler.cuda_graph_sizes",
    "R120": "scheduler.scheduling_policy",
    "R121": "scheduler.scheduling_policy",
    "R122": "scheduler.scheduler_cls",
    "R123": "scheduler.async_scheduling",
    "R131": "scheduler.disable_hybrid_kv_cache_manager",
    "R132": "parallel.distributed_executor_backend",
    "R135": "parallel.enable_expert_parallel",
    "R136": "parallel.data_parallel_rank",
    "R141": "parallel.enable_expert_parallel",
    "R145": "parallel.expert_placement_strategy",
    "R147": "parallel.max_parallel_loading_workers",
    "R150": "parallel.worker_extension_cls parallel.worker_cls",
    "R172": "structured_outputs.backend",
    "R173": "structured_outputs.disable_any_whitespace structured_outputs.disable_additional_properties",
    "R174": "structured_outputs.reasoning_parser",
    "R176": "speculative.num_speculative_tokens",
    "R179": "speculative.max_model_len",
    "R180": "speculative.disable_by_batch_size",
    "R189": "compilation.level",
    "R221": "cache.kv_cache_memory_bytes",
    "R222": "scheduler.max_queued_tokens",
    "R223": "device.num_threads",
    "R224": "server.log_format",
    "R225": "device.device",
    "R246": "scheduler.max_prefill_share",
    "R265": "server.http_log_level",
    "R266": "server.max_incomplete_header_bytes",
    "R290": "server.max_total_request_bytes",
    "R292": "server.max_connections",
    "R293": "server.max_connections_per_client",
    "R329": "cache.mamba_cache_dtype cache.mamba_ssm_cache_dtype",
    "R400": "kv_transfer.kv_connector_extra_config cache.kv_directory",
    "R432": "device.numa_bind_nodes device.numa_bind_cpus",
    "R433": "device.numa_bind",
    "R438": "device.numa_bind",
    "R443": "parallel.distributed_executor_backend",
    "R444": "parallel.distributed_executor_backend",
    "R445": "parallel.distributed_executor_backend",
    "R447": "parallel.worker_cls parallel.worker_extension_cls",
    "R451": "kv_transfer.kv_connector_extra_config cache.kv_offloading_size",
    "R478": "kv_transfer.kv_connector_module_path kv_transfer.kv_connector",
}
# Rule -> the one that is checked and covers it.
CHECKED_BY = {"R039": "R422", "R040": "R422", "R146": "R491", "R413": "R139", "R470": "R139"}
# What is true of notations and commands, not of one option. It is about the options that it names.
SENTENCES = {
    "R001": "k, m, g and t after a number are powers of 1000, also of a fraction (25.6k); K, M, G and T of 1024.",
    "R002": "K, M, G and T need a whole number: 1.5K is refused, and the message offers 1.5k.",
    "R004": "A mapping on the command line is one JSON text, dotted keys, or both, merged in order.",
    "R005": "`--flag` is true, `--no-flag` is false, and `true` or `false` may follow a flag.",
    "R006": "`None` or an empty text, in a flag or a variable, unsets an option: its default applies.",
    "R008": "-O3, -O 3, -O=3, -O.level=3 and --compilation-config 3 all set `compilation.level`.",
    "R010": "A flag or a variable separates the modules of `observability.collect_detailed_traces` by commas.",
    "R013": "The keys of a `--config` file are names of flags; for an unknown one the error names a similar one.",
    "R014": "Later layers override: default, preset, manifests, `--config` file, environment, command line.",
    "R068": "max_new_tokens of `model.generation_config` is the max_tokens of requests that have none.",
    "R193": "`engine run-batch` refuses `--url` and `--port` without `--enable-metrics`.",
    "R194": "`engine run-batch` reads its input from a file or with GET, and writes to a file or with PUT.",
    "R195": "`--api-key` of `engine chat` and `engine complete` overrides the variable OPENAI_API_KEY.",
    "R196": "`engine chat` and `engine complete` use the first model of the server without `--model-name`.",
    "R197": "`engine run-batch --use-v2-block-manager` has no effect except a warning.",
}


def stated(rules: dict[str, Rule]) -> list[StatedRule]:
    """All of them. rules: those that are checked, by id."""
    found: list[StatedRule] = []
    for id, names in NOT_HERE.items():
        paths = _paths(names)
        name, _, value = names.partition(" ")[0].partition("=")
        title = f"`{name}: {value}` is refused" if value else f"`{paths[0]}` is {options()[paths[0]].status}"
        found.append(StatedRule(id, title, paths, _refusals(names)))
    for id, names in DESCRIBED.items():
        paths = _paths(names)
        found.append(StatedRule(id, f"what `{paths[0]}` does", paths, options()[paths[0]].description))
    for id, other in CHECKED_BY.items():
        rule = rules[other]
        found.append(
            StatedRule(
                id, f"{rule.title} ({other})", rule.fields, f"{other} checks it: {rule.title}.", checked_by=other
            )
        )
    for id, sentence in SENTENCES.items():
        named = tuple(name for name in re.findall(r"`([a-z_.]+)`", sentence) if name in options())
        found.append(StatedRule(id, sentence.rstrip("."), named, sentence, is_derived=False))
    return found


def _paths(names: str) -> tuple[str, ...]:
    """`lora.*` is all options whose path begins with `lora.`"""
    found: list[str] = []
    for name in names.split():
        path = name.partition("=")[0]
        found += [each for each in options() if each.startswith(path[:-1])] if path.endswith("*") else [path]
    return tuple(found)


def _refusals(names: str) -> str:
    """A sentence for each reason."""
    found: dict[str, list[str]] = {}
    for name in names.split():
        path, _, value = name.partition("=")
        if value:
            found.setdefault(f"refused: {options()[path].refused[value]}", []).append(f"`{path}: {value}`")
            continue
        for each in _paths(name):
            option = options()[each]
            found.setdefault(f"{option.status}: {option.reason}", []).append(f"`{each}`")
    return " ".join(
        f"{', '.join(alike)} {'is' if len(alike) == 1 else 'are'} {reason}." for reason, alike in found.items()
    )
