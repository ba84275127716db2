"""Tiny random checkpoints of every family, saved by transformers, and transformers itself as the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.slow_cases import slow_but
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

VOCAB = 97
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
INDEX = {"index_n_heads": 16, "index_head_dim": 32, "index_topk": 9}  # few heads: scores of 0, of which any are chosen
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 20,
    "v_head_dim": 12,
}
SLIDING_THEN_FULL = ["sliding_attention", "full_attention"]
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0 + 0.1 * pair for pair in range(8)],
    "long_factor": [1.5 + 0.5 * pair for pair in range(8)],
}
# names of keys in families older than those of COMMON
NO_GROUPS = {"num_key_value_heads": ...}
OLD = {**NO_GROUPS, "intermediate_size": ...}
GPT = {
    **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"), ...),
    **OLD,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
}
GRANITE_MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.4,
    "logits_scaling": 1.5,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama with biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 32},
    "diffllama": {
        "model_type": "diffllama",
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "attention_bias": True,
        "lambda_std_dev": 0.2,
    },
    "mistral": {"model_type": "mistral", "sliding_window": 6},
    "qwen2": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen2 tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "qwen3 untied": {"model_type": "qwen3", "head_dim": 8, "num_key_value_heads": 1},
    "ministral3": {"model_type": "ministral3", "head_dim": 16, "rope_parameters": YARN | {"llama_4_scaling_beta": 0.3}},
    "phi3": {"model_type": "phi3", "rope_parameters": PARTIAL, "sliding_window": 7},
    "phi3 longrope": {"model_type": "phi3", "rope_parameters": LONGROPE, "original_max_position_embeddings": 128},
    "phimoe": {
        "model_type": "phimoe",
        "head_dim": 16,
        "attention_bias": True,
        "lm_head_bias": True,
        "sliding_window": 7,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "router_jitter_noise": 0.1,
        "rope_parameters": LONGROPE
        | {"short_mscale": 1.2, "long_mscale": 1.5, "original_max_position_embeddings": 128},
    },
    "granite": {"model_type": "granite", **GRANITE_MULTIPLIERS},
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {
        "model_type": "olmo3",
        "sliding_window": 6,
        "layer_types": SLIDING_THEN_FULL,
        "rope_parameters": {"sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}, "full_attention": YARN},
    },
    "smollm3": {"model_type": "smollm3", "no_rope_layers": [1, 0]},
    "seed_oss": {"model_type": "seed_oss", "head_dim": 16},
    "exaone4": {"model_type": "exaone4", "sliding_window": 6, "layer_types": SLIDING_THEN_FULL},
    "ernie4_5": {"model_type": "ernie4_5", "head_dim": 16, "use_bias": True},
    "hunyuan": {"model_type": "hunyuan_v1_dense", "head_dim": 16},
    "starcoder2": {"model_type": "starcoder2", "sliding_window": 9},
    "stablelm": {"model_type": "stablelm", "head_dim": 16, "use_qkv_bias": True},
    "stablelm parallel": {"model_type": "stablelm", "use_parallel_residual": True},
    "stablelm norms": {"model_type": "stablelm", "qk_layernorm": True},
    "cohere": {"model_type": "cohere", "use_qk_norm": True, "logit_scale": 0.5},
    "cohere2": {"model_type": "cohere2", "sliding_window": 6, "layer_types": SLIDING_THEN_FULL, "head_dim": 16},
    "cohere2_moe": {
        "model_type": "cohere2_moe",
        "sliding_window": 6,
        "layer_types": SLIDING_THEN_FULL,
        "head_dim": 16,
        "mlp_layer_types": ["dense", "sparse"],
        "prefix_dense_intermediate_size": 80,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "num_shared_experts": 2,
        "expert_selection_fn": "sigmoid",
    },
    "glm": {"model_type": "glm", "head_dim": 16},
    "glm4": {"model_type": "glm4", "head_dim": 16},
    "gemma": {"model_type": "gemma", "head_dim": 16},
    "gemma2": {
        "model_type": "gemma2",
        "head_dim": 16,
        "sliding_window": 6,
        "query_pre_attn_scalar": 9,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 20.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "head_dim": 16,
        "sliding_window": 6,
        "layer_types": SLIDING_THEN_FULL,
        "query_pre_attn_scalar": 9,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 1e3, "rope_type": "default"},
            "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 4.0},
        },
    },
    "nemotron": {"model_type": "nemotron", "head_dim": 16},
    "qwen3_moe": {"model_type": "qwen3_moe", "head_dim": 16, "norm_topk_prob": True, "num_experts": 6, **EXPERTS},
    "mixtral": {"model_type": "mixtral", "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "minimax": {
        "model_type": "minimax",
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "head_dim": 16,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "full_attn_alpha_factor": 1.5,
        "linear_attn_beta_factor": 0.8,
        "mlp_alpha_factor": 2.5,
    },
    "minimax_m2": {
        "model_type": "minimax_m2",
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": PARTIAL,
    },
    "glm4_moe": {
        "model_type": "glm4_moe",
        "head_dim": 16,
        "use_qk_norm": True,
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
        "first_k_dense_replace": 1,
        **EXPERTS,
    },
    "deepseek_v2": {
        "model_type": "deepseek_v2",
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "topk_method": "group_limited_greedy",
        "routed_scaling_factor": 1.5,
        "first_k_dense_replace": 1,
        **LATENT,
        **EXPERTS,
    },
    "deepseek_v2 lite": {
        "model_type": "deepseek_v2",
        "n_routed_experts": 4,
        "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
        **LATENT,
        "q_lora_rank": None,
        **EXPERTS,
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "attention_bias": True,
        "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        **LATENT,
        **EXPERTS,
    },
    "deepseek_v3 whole queries": {  # which have no bias, in a model whose other projections have one
        "model_type": "deepseek_v3",
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "attention_bias": True,
        **LATENT,
        **EXPERTS,
        "q_lora_rank": None,
    },
    "deepseek_v32": {
        "model_type": "deepseek_v32",
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        **LATENT,
        **INDEX,
        **EXPERTS,
    },
    "deepseek_v4": {
        "model_type": "deepseek_v4",
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "qk_rope_head_dim": 16,
        "q_lora_rank": 96,  # multiples of 32, so that the C++ kernels multiply them in bfloat16
        "o_groups": 2,
        "o_lora_rank": 80,
        "sliding_window": 6,
        "compress_ratios": [0, 4, 128, 4],
        "compress_rate_hca": 8,
        "num_hash_layers": 1,
        "index_n_heads": 16,
        "index_head_dim": 16,
        "index_topk": 3,
        "n_routed_experts": 4,
        "swiglu_limit": 0.05,
        "rope_parameters": YARN,
        **EXPERTS,
    },
    "glm_moe_dsa": {
        "model_type": "glm_moe_dsa",
        "n_routed_experts": 4,
        "first_k_dense_replace": 1,
        "indexer_types": ["full", "shared"],
        **LATENT,
        **INDEX,
        **EXPERTS,
    },
    "hy_v4": {
        "model_type": "hy_v4",
        "num_hidden_layers": 3,
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "swiglu_limit": 0.02,
        "indexer_types": ["full", "shared", "full"],
        "hc_mult": 3,
        "hc_magnitude": 1.5,
        "hc_eps": 1e-3,
        **LATENT,
        **INDEX,
        "index_topk": 10,  # with 9, rounding to bfloat16 changes a choice, and in the library it does not
        **EXPERTS,
    },
    "axk2": {
        "model_type": "axk2",
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "gated_norm_rank": 6,
        **LATENT,
        **INDEX,
        **EXPERTS,
    },
    "glm4_moe_lite": {
        "model_type": "glm4_moe_lite",
        "n_routed_experts": 4,
        "rope_interleave": False,
        **LATENT,
        "v_head_dim": 32,
        **EXPERTS,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 6,
        "layer_types": SLIDING_THEN_FULL,
    },
    "qwen3_5": {
        "model_type": "qwen3_5_text",
        "head_dim": 16,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 20,
        "rms_norm_eps": 1e-3,  # outputs of a random model nearly vanish: their norm would amplify rounding errors
    },
    "qwen3_next": {
        "model_type": "qwen3_next",
        "head_dim": 16,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 20,
        "num_experts": 6,
        "mlp_only_layers": [1],
        "shared_expert_intermediate_size": 40,
        "rms_norm_eps": 1e-3,  # as above
        **EXPERTS,
    },
    "qwen3_5_moe": {
        "model_type": "qwen3_5_moe_text",
        "head_dim": 16,
        "layer_types": ["full_attention", "linear_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 20,
        "num_experts": 6,
        "shared_expert_intermediate_size": 40,
        "rms_norm_eps": 1e-3,  # as above
        **EXPERTS,
    },
    "qwen4_exp": {  # few heads of the index: scores of 0, of which any are chosen
        "model_type": "qwen4_exp_text",
        "head_dim": 16,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 20,
        "num_experts": 6,
        "shared_expert_intermediate_size": 40,
        "rms_norm_eps": 1e-3,  # as above
        "hc_count": 3,
        "hc_lowrank": 20,
        "indexer_n_heads": 16,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 12,
        "indexer_budget": 6,
        "indexer_compress_ratio": 3,
        "ple_layer_ids": [1, 3],
        "ple_embed_dim": 24,
        "ngram_size": 3,
        "heads_per_ngram": 2,
        "ngram_vocab_size_base": 50,
        "split_ngram_parts": 3,
        "output_gate_type": "sigmoid",
        "rope_parameters": PARTIAL,
        **EXPERTS,
    },
    "olmo_hybrid": {  # transformers stores a third of all convolutions under each name, of queries only 80 of 104
        "model_type": "olmo_hybrid",
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 40,
        "linear_value_head_dim": 38,
        "rms_norm_eps": 1e-3,  # as above
    },
    "mimo_v2_flash": {
        "model_type": "mimo_v2_flash",
        "num_key_value_heads": 1,
        "head_dim": 24,
        "v_head_dim": 16,
        "sliding_window": 6,
        "layer_types": SLIDING_THEN_FULL,
        "mlp_layer_types": ["dense", "sparse"],
        "n_routed_experts": 8,
        "routed_scaling_factor": 1.5,
        **EXPERTS,
    },
    "kimi_linear": {
        "model_type": "kimi_linear",
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_heads": 3,
        "linear_head_dim": 20,
        "num_local_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
        "first_k_dense_replace": 1,
        "rms_norm_eps": 1e-3,  # as above
        **LATENT,
        **EXPERTS,
        "q_lora_rank": None,
    },
    "bailing_hybrid": {
        "model_type": "bailing_hybrid",
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "head_dim": 20,
        "num_local_experts": 12,
        "n_group": 3,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
        "first_k_dense_replace": 1,
        "rms_norm_eps": 1e-3,  # as above
        **LATENT,
        **EXPERTS,
        "q_lora_rank": None,
    },
    "gpt2": {"model_type": "gpt2", **GPT, "n_inner": 80},
    "gpt_bigcode": {"model_type": "gpt_bigcode", **GPT},
    "gptj": {"model_type": "gptj", **GPT, "rotary_dim": 12},
    "codegen": {"model_type": "codegen", **GPT, "rotary_dim": 12},
    "openai-gpt": {"model_type": "openai-gpt", **GPT},
    "xglm": {
        "model_type": "xglm",
        **OLD,
        **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads"), ...),
        "d_model": 64,
        "num_layers": 2,
        "attention_heads": 4,
        "ffn_dim": 96,
        "pad_token_id": 1,
    },
    "gpt_neo": {
        "model_type": "gpt_neo",
        **NO_GROUPS,
        **dict.fromkeys(("num_hidden_layers", "num_attention_heads"), ...),
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 6,
    },
    "mpt": {
        "model_type": "mpt",
        **dict.fromkeys(COMMON, ...),
        "vocab_size": VOCAB,
        "d_model": 96,
        "n_layers": 2,
        "n_heads": 6,
        "max_seq_len": 128,
        "eos_token_id": 2,
    },
    "opt": {"model_type": "opt", **OLD, "ffn_dim": 96, "word_embed_proj_dim": 64},
    "gpt_neox": {"model_type": "gpt_neox", **NO_GROUPS},
    "gpt_neox sequential": {
        "model_type": "gpt_neox",
        **NO_GROUPS,
        "use_parallel_residual": False,
        "attention_bias": False,
    },
    "falcon": {"model_type": "falcon", **OLD},
    "falcon grouped": {"model_type": "falcon", **OLD, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon rw": {
        "model_type": "falcon",
        **OLD,
        "alibi": True,
        "multi_query": False,
        "parallel_attn": False,
        "bias": True,
        "ffn_hidden_size": 96,
    },
    "bloom": {"model_type": "bloom", **GPT, "hidden_size": 64, "n_embd": ..., "n_positions": ..., "seq_length": 128},
    "phi": {"model_type": "phi", "partial_rotary_factor": 0.5},
    "hunyuan scaled": {
        "model_type": "hunyuan_v1_dense",
        "head_dim": 16,
        "rope_parameters": {"type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 1e4},
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        "num_experts": 6,
        "shared_expert_intermediate_size": 40,
        "mlp_only_layers": [1],
        **EXPERTS,
    },
    "olmoe": {"model_type": "olmoe", "num_experts": 8, "num_experts_per_tok": 2},
    "dots1": {
        "model_type": "dots1",
        "head_dim": 16,
        "n_routed_experts": 6,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "first_k_dense_replace": 1,
        "sliding_window": 6,
        "max_window_layers": 1,
        **EXPERTS,
    },
    "dots3": {  # few heads of the index: scores of 0, of which any are chosen
        "model_type": "dots3_note_text",
        "num_hidden_layers": 5,  # which have indexes, indexes, windows, windows, windows
        **LATENT,
        **INDEX,
        **EXPERTS,
        "head_dim": 32,
        "sliding_window": 6,
        "swa_num_attention_heads": 2,
        "swa_num_key_value_heads": 2,
        "swa_q_lora_rank": 20,
        "swa_kv_lora_rank": 72,
        "swa_head_dim": 40,
        "swa_qk_nope_head_dim": 24,
        "swa_v_head_dim": 20,
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
        "shared_experts_intermediate_size": 24,
        "rms_norm_eps": 1e-3,
    },
    "hy_v3": {"model_type": "hy_v3", "head_dim": 16, "num_experts": 6, **EXPERTS},
    "hunyuan_moe": {"model_type": "hunyuan_v1_moe", "head_dim": 16, "num_experts": 4, "moe_topk": 2},
    "ernie4_5_moe": {
        "model_type": "ernie4_5_moe",
        "moe_num_experts": 6,
        "moe_k": 2,
        "moe_intermediate_size": 32,
    },
    "granitemoe": {
        "model_type": "granitemoe",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.7,
        "attention_multiplier": 0.4,
        "logits_scaling": 1.5,
    },
    "llama4": {
        "model_type": "llama4_text",
        "num_hidden_layers": 3,
        "head_dim": 16,
        "intermediate_size_mlp": 80,
        "num_local_experts": 4,
        "interleave_moe_layer_step": 2,
        "no_rope_layers": [1, 0, 1],
        "attention_chunk_size": 6,
        "floor_scale": 4,
        "attn_scale": 0.5,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 1.0,
            "original_max_position_embeddings": 16,
        },
    },
    "gemma4": {
        "model_type": "gemma4_text",
        "num_hidden_layers": 4,
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "final_logit_softcapping": 20.0,
    },
    "gemma4 experts": {
        "model_type": "gemma4_text",
        "head_dim": 16,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 0,
        "sliding_window": 6,
        "layer_types": SLIDING_THEN_FULL,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
    },
    "gemma4_unified": {
        "model_type": "gemma4_unified_text",
        "num_hidden_layers": 4,
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
    "gemma4 narrow": {
        "model_type": "gemma4_text",
        "num_hidden_layers": 4,
        "head_dim": 16,
        "global_head_dim": 64,
        "hidden_size_per_layer_input": 0,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
    "gemma4 shared": {  # as E2B: layers with inputs of their own, of which the last share keys and values
        "model_type": "gemma4_text",
        "num_hidden_layers": 7,
        "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCAB,
        "head_dim": 16,
        "global_head_dim": 32,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", *SLIDING_THEN_FULL, *["sliding_attention"] * 2, *SLIDING_THEN_FULL],
    },
    "lfm2": {
        "model_type": "lfm2",
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "block_multiple_of": 32,
    },
    "lfm3": {
        "model_type": "lfm3",
        "num_hidden_layers": 4,
        "layer_types": ["conv", "sliding_attention", "full_attention", "conv"],
        "head_dim": 16,
        "sliding_window": 6,
    },
    "lfm2_moe": {
        "model_type": "lfm2_moe",
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "num_dense_layers": 1,
        "num_experts": 6,
        "routed_scaling_factor": 1.5,
        **EXPERTS,
    },
    "exaone_moe": {
        "model_type": "exaone_moe",
        "num_hidden_layers": 3,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        **EXPERTS,
    },
    "arcee": {"model_type": "arcee", "mlp_bias": True},
    "jais2": {"model_type": "jais2"},
    "helium": {"model_type": "helium", "head_dim": 16},
    "ministral": {"model_type": "ministral", "head_dim": 16, "sliding_window": 6, "layer_types": SLIDING_THEN_FULL},
    "cwm": {"model_type": "cwm", "num_hidden_layers": 5, "head_dim": 16, "sliding_window": 6},
    "hyperclovax": {
        "model_type": "hyperclovax",
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.4,
        "logits_scaling": 0.7,
    },
    "youtu": {"model_type": "youtu", **LATENT},
    "solar_open": {"model_type": "solar_open", "head_dim": 16, "n_routed_experts": 6, **EXPERTS},
    "mellum": {
        "model_type": "mellum",
        "head_dim": 16,
        "num_hidden_layers": 3,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "num_experts": 6,
        "rope_parameters": {
            "full_attention": YARN,
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
        },
        **EXPERTS,
    },
    "granitemoeshared": {
        "model_type": "granitemoeshared",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 48,
        **GRANITE_MULTIPLIERS,
    },
    "granite_swa": {
        "model_type": "granite_swa",
        "num_hidden_layers": 5,
        "sliding_window": 6,
        "layer_rope_theta": [0, 1e4, 1e4, 5e3, 0],
        **GRANITE_MULTIPLIERS,
    },
    "granitemoe_swa": {
        "model_type": "granitemoe_swa",
        "sliding_window": 6,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 48,
        **GRANITE_MULTIPLIERS,
    },
    "flex_olmo": {"model_type": "flex_olmo", "num_experts": 8, "num_experts_per_tok": 3},
    "minicpm3": {
        "model_type": "minicpm3",
        **LATENT,
        "scale_emb": 3.0,
        "scale_depth": 0.9,
        "dim_model_base": 40,
    },
    "vaultgemma": {"model_type": "vaultgemma", "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 9},
    "bamba": {
        "model_type": "bamba",
        "num_hidden_layers": 3,
        "attn_layer_indices": [1],
        "mamba_n_heads": 8,
        "mamba_n_groups": 2,
        "mamba_d_state": 24,
        "rms_norm_eps": 1e-3,  # as above
    },
    "granite 4": {
        "model_type": "granitemoehybrid",
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "position_embedding_type": "rope",
        "mamba_n_heads": 4,
        "mamba_d_state": 20,
        "mamba_proj_bias": True,
        "num_local_experts": 6,
        "shared_intermediate_size": 48,  # with 40, two experts of a token have nearly the same logit
        "rms_norm_eps": 1e-3,
        **GRANITE_MULTIPLIERS,
    },
    "granite 4 dense": {
        "model_type": "granitemoehybrid",
        "layer_types": ["linear_attention", "full_attention"],
        "mamba_n_heads": 4,
        "mamba_d_state": 16,
        "mamba_conv_bias": False,
        "num_local_experts": 0,
        "shared_intermediate_size": 96,
        "rms_norm_eps": 1e-3,
    },
    "falcon_h1": {
        "model_type": "falcon_h1",
        "mamba_d_ssm": 80,
        "mamba_n_heads": 4,
        "mamba_n_groups": 2,
        "mamba_d_state": 16,
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": True,
        "embedding_multiplier": 2.0,
        "lm_head_multiplier": 0.5,
        "key_multiplier": 0.4,
        "attention_in_multiplier": 1.25,
        "attention_out_multiplier": 0.7,
        "ssm_in_multiplier": 1.5,
        "ssm_out_multiplier": 0.6,
        "ssm_multipliers": [0.5, 0.8, 1.2, 0.9, 0.7],
        "mlp_multipliers": [0.9, 0.8],
        "rms_norm_eps": 1e-3,
    },
    "falcon_h1 without norm": {
        "model_type": "falcon_h1",
        "attention_bias": True,
        "attention_in_multiplier": 1.25,
        "mamba_proj_bias": True,
        "mamba_d_ssm": None,
        "mamba_n_heads": 4,
        "mamba_d_state": 16,
        "ssm_in_multiplier": 1.5,
        "ssm_multipliers": [0.5, 0.8, 1.2, 0.9, 0.7],
    },
    "zamba2": {
        "model_type": "zamba2",
        # transformers applies this limit to prompts, and not to tokens that it computes one by one from a cache: with
        # its default, its own two ways give different tokens. The engine applies it to all tokens.
        "time_step_min": 1e-9,
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid", "hybrid"],
        "num_key_value_heads": 4,
        "num_mem_blocks": 2,
        "use_shared_attention_adapter": True,
        "adapter_rank": 6,
        "use_mem_rope": True,
        "n_mamba_heads": 8,
        "mamba_ngroups": 2,
        "mamba_d_state": 24,
        "rms_norm_eps": 1e-3,
    },
    "recurrent_gemma": {
        "model_type": "recurrent_gemma",
        "hidden_size": 96,  # whose root is not a number of bfloat16
        "num_attention_heads": 6,
        "num_key_value_heads": 1,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "block_types": ["recurrent", "attention"],
        "attention_window_size": 6,
        "logits_soft_cap": 20.0,
        "attention_bias": True,
        "rms_norm_eps": 1e-3,
    },
    "zamba": {
        "model_type": "zamba",
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "attention_head_dim": 32,
        "n_mamba_heads": 2,
        "mamba_d_state": 12,
        "mamba_dt_rank": 6,
        "mamba_proj_bias": True,
        "rms_norm_eps": 1e-3,
    },
    "zamba2 plain": {
        "model_type": "zamba2",
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "adapter_rank": 8,
        "add_bias_linear": True,
        "n_mamba_heads": 4,
        "mamba_d_state": 16,
        "rms_norm_eps": 1e-3,
    },
    "mamba": {"model_type": "mamba", "num_hidden_layers": 3, "state_size": 12, "layer_norm_epsilon": 1e-3},
    "falcon_mamba": {
        "model_type": "falcon_mamba",
        "intermediate_size": 96,
        "state_size": 20,
        "time_step_rank": 6,
        "use_bias": True,
        "use_conv_bias": False,
        "tie_word_embeddings": False,
        "layer_norm_epsilon": 1e-3,
        "mixer_rms_eps": 1e-2,
    },
    "jamba": {
        "model_type": "jamba",
        "num_hidden_layers": 4,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "num_experts": 4,
        "mamba_d_state": 16,
        "mamba_expand": 1,
        "mamba_dt_rank": 8,
        "rms_norm_eps": 1e-3,
    },
    "mamba2": {
        "model_type": "mamba2",
        "num_heads": 8,
        "head_dim": 16,
        "n_groups": 2,
        "state_size": 16,
        "layer_norm_epsilon": 1e-3,
    },
    "nemotron_h": {
        "model_type": "nemotron_h",
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"],
        "head_dim": 16,
        "mamba_num_heads": 6,
        "mamba_head_dim": 20,
        "n_groups": 3,
        "ssm_state_size": 16,
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
        "moe_shared_expert_intermediate_size": 40,
        "layer_norm_epsilon": 1e-3,
        **EXPERTS,
    },
}


_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_SMALL_IMAGES = {"image_size": 28, "patch_size": 14}
_QWEN_VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
_TOKENS_OF_MEDIA = {
    "image_token_id": 90,
    "video_token_id": 91,
    "vision_start_token_id": 92,
    "vision_end_token_id": 93,
}
WITH_ENCODERS: dict[str, dict[str, Any]] = {  # served as text
    "gemma3": {
        "text_config": {"head_dim": 16, "sliding_window": 6, "layer_types": SLIDING_THEN_FULL},
        "vision_config": {**_VISION, **_SMALL_IMAGES},
        "image_token_index": 90,
    },
    "mistral3": {
        "text_config": {"model_type": "mistral", "head_dim": 16, "sliding_window": None},
        "vision_config": {"model_type": "pixtral", "head_dim": 16, **_VISION, **_SMALL_IMAGES},
        "image_token_index": 90,
    },
    "gemma4": {
        "text_config": {key: value for key, value in FAMILIES["gemma4"].items() if key != "model_type"},
        "vision_config": {**_VISION, "head_dim": 16, "num_key_value_heads": 2},
        "audio_config": None,
    },
    "llama4": {
        "text_config": {key: value for key, value in FAMILIES["llama4"].items() if key != "model_type"},
        "vision_config": {**_VISION, **_SMALL_IMAGES, "vision_output_dim": 32, "projector_input_dim": 32},
    },
    "qwen2_5_vl": {
        "text_config": {"rope_parameters": {"type": "mrope", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}},
        "vision_config": _QWEN_VISION,
        **_TOKENS_OF_MEDIA,
    },
    "qwen3_5": {
        "text_config": {key: value for key, value in FAMILIES["qwen3_5"].items() if key != "model_type"},
        "vision_config": _QWEN_VISION,
        **_TOKENS_OF_MEDIA,
    },
    "qwen3_5_moe": {
        "text_config": {key: value for key, value in FAMILIES["qwen3_5_moe"].items() if key != "model_type"},
        "vision_config": _QWEN_VISION,
        **_TOKENS_OF_MEDIA,
    },
    "qwen4_exp": {
        "text_config": {key: value for key, value in FAMILIES["qwen4_exp"].items() if key != "model_type"},
        "vision_config": _QWEN_VISION,
        **_TOKENS_OF_MEDIA,
    },
    "dots3_note": {
        "text_config": {key: value for key, value in FAMILIES["dots3"].items() if key != "model_type"},
        "vision_config": {**_VISION, "num_hidden_layers": 2, "pyramid_num_routed": [-1, 4], "moe_intermediate_size": 16}
        | {"adapter_in_dim": 32, "adapter_out_dim": 64},
        "audio_config": {**_VISION, "downsample_hidden_size": 8, "feature_size": 16}
        | {"adapter_input_size": 32, "adapter_out_dim": 64},
        "image_token_id": 90,
        "video_token_id": 91,
        "audio_token_id": 92,
    },
    "qwen3_vl_moe": {
        "text_config": {"head_dim": 16, "num_experts": 6, **EXPERTS},
        "vision_config": {**_QWEN_VISION, "deepstack_visual_indexes": [0]},
        **_TOKENS_OF_MEDIA,
    },
    "qwen3_vl": {
        "text_config": {"head_dim": 16},
        "vision_config": {**_QWEN_VISION, "deepstack_visual_indexes": [0]},
        **_TOKENS_OF_MEDIA,
    },
}


# one of each way to place norms, to turn heads and to see windows; the others are tested by `make test-slow`
QUICK = (
    "mistral",
    "qwen3",
    "granite",
    "cohere2",
    "gemma2",
    "gemma4 shared",
    "qwen3_5",
    "bloom",
    "deepseek_v3",
    "nemotron_h",
)


def families() -> list[Any]:
    """All families, for parametrize."""
    return slow_but(FAMILIES, *QUICK)


# Families whose layers are divided among processes, or replayed, in a way of their own; the others consist of these.
KINDS = ("llama with biases", "phi3", "qwen3", "olmo2", "exaone4", "stablelm parallel", "cohere2", "gemma2", "gemma3")
KINDS += (
    "gpt2",
    "openai-gpt",
    "xglm",
    "gpt_bigcode",
    "bloom",
    "falcon grouped",
    "qwen3_moe",
    "glm4_moe",
    "llama4",
    "gpt_oss",
)
KINDS += ("deepseek_v2 lite", "deepseek_v3", "qwen3_5", "qwen3_next", "gemma4", "gemma4 narrow", "gemma4 shared")
KINDS += ("kimi_linear", "bailing_hybrid", "mimo_v2_flash", "minimax", "lfm3", "lfm2", "granite 4", "falcon_h1")
KINDS += (
    "mamba2",
    "nemotron_h",
    "falcon_mamba",
    "jamba",
    "deepseek_v4",
    "hy_v4",
    "axk2",
    "dots3",
    "zamba2",
    "diffllama",
    "recurrent_gemma",
    "qwen4_exp",
    "zamba",
    "phimoe",
)


def kinds() -> list[Any]:
    """A family of each kind, for parametrize."""
    return slow_but(KINDS, *QUICK)


# Of these, the ones whose layers keep or exchange something else between the parts of a step: keys and values, slopes,
# windows, experts with sinks, latents, states of two kinds, and the keys of other layers. What a family has besides is
# tested with tensor parallelism, whose layers the parts use.
STEP_KINDS = ("qwen3", "bloom", "gemma2", "gpt_oss", "deepseek_v3", "qwen3_next", "nemotron_h", "gemma4 shared")


def step_kinds() -> list[Any]:
    """The families of STEP_KINDS, for parametrize."""
    return slow_but(STEP_KINDS, *QUICK)


def build(family: str, **changes: Any) -> PreTrainedModel:
    """A float32 model whose logits are spread out, so that a wrong number gives a wrong token."""
    settings = {key: value for key, value in {**COMMON, **FAMILIES[family], **changes}.items() if value is not ...}
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(0)
    return spread(AutoModelForCausalLM.from_config(config, dtype=torch.float32))


def build_with_encoders(model_type: str) -> PreTrainedModel:
    """As build, of a model that also reads images."""
    settings = WITH_ENCODERS[model_type]
    text = {**COMMON, **settings.get("text_config", {})}
    config = AutoConfig.for_model(model_type, **{**settings, "text_config": text})
    torch.manual_seed(0)
    return spread(AutoModelForImageTextToText.from_config(config, dtype=torch.float32))


def spread(model: PreTrainedModel) -> PreTrainedModel:
    model.eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.15)
        for name, buffer in model.named_buffers():
            if name.endswith(".layer_scalar"):
                buffer.uniform_(0.7, 1.3, generator=generator)
            if name.endswith((".expert_bias", ".e_score_correction_bias")):
                buffer.uniform_(-0.2, 0.2, generator=generator)
            if name.endswith(".tid2eid"):  # different experts of each token id
                experts = model.config.n_routed_experts
                listed = torch.rand(len(buffer), experts, generator=generator).argsort(-1)
                buffer.copy_(listed[:, : buffer.shape[1]])
    return model


def save(model: PreTrainedModel, folder: Path, **how: Any) -> Path:
    model.save_pretrained(folder, **how)
    return folder


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """[len(token_ids), vocab] in float32."""
    text = getattr(model, "language_model", None)
    if hasattr(text, "lm_head"):  # Llama 4 as a whole fails without images in transformers 5.24
        model = text
    logits: torch.Tensor = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits.float()


@torch.inference_mode()
def reference_greedy(
    model: PreTrainedModel, prompt: list[int], max_tokens: int, found: list[int] | None = None
) -> list[int]:
    """What `generate` appends, up to and with the first eos.

    found: tokens that are compared with the result. If they are right, one forward pass shows it, instead of one for
    each token.
    """
    eos = model.generation_config.eos_token_id
    if found and eos not in found[:-1] and (len(found) == max_tokens or found[-1] == eos):
        best = reference_logits(model, prompt + found)[len(prompt) - 1 : -1].argmax(-1)
        if best.tolist() == found:
            return found
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False)
    generated: list[int] = out[0, len(prompt) :].tolist()
    return generated


def references(model: PreTrainedModel, prompts: list[list[int]], found: list[list[int]]) -> list[list[int]]:
    """reference_greedy of several prompts, 24 tokens of each."""
    return [reference_greedy(model, prompt, 24, ids) for prompt, ids in zip(prompts, found, strict=True)]
