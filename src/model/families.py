"""The architectures that are described exactly: their parts, and the defaults of their classes in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .experts import Kind as ExpertsKind
from .latent import Index as IndexKind
from .recurrent import Kind as StatesKind
from .spec import Alibi, HeadNorm, Norm, NormPlaces

# Which layers have the sliding window: none, whatever config.json says; all; those that `layer_types` names, and where
# it is missing, those from `max_window_layers` on, or all but every n-th; chunks of `attention_chunk_size` tokens, in
# those that turn queries and keys
Windows = Literal["none", "all", "last", "chunks"] | int
# Which layers turn queries and keys: all; those with a window, or all if none has one; those with a window; those that
# `no_rope_layers` lists with 1; all, unless `alibi` is true; all if `position_embedding_type` is `rope`; none
RopeLayers = Literal["all", "windows_if_any", "windows", "listed", "not_alibi", "position_embedding_type", "none"]
FusedExperts = Literal["interleaved", "columns", "stacked"]
Setting = bool | str  # a string is the key of config.json that decides


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: the defaults of its config class, and what its code does whatever config.json says.

    own_keys: names of keys that most families have -> those in its config.json.
    fixed: keys of config.json -> the only value that is computed; also null.
    equal_keys: keys of config.json -> those whose value they must have.
    renames: parts of the names in its checkpoints -> the names of tensors.py, in this order; ^: only at the beginning.
    is_transposed: matrices of its layers are stored as [inputs, outputs].
    fused_experts: its checkpoints may have one tensor for all experts; interleaved: [experts, inputs, gate and up in
        turn]; columns: [experts, inputs, gates and then ups]; stacked: [experts, gates and then ups, inputs].
    ignored: beginnings of the names of tensors that a text model does not need.
    has_draft_layers: its checkpoints may have layers after the last, which draft several tokens at a time.
    text_in: the key of config.json that holds the language model, in models with encoders; some have it at the top.
    """

    model_type: str
    models: str  # for people
    defaults: Mapping[str, Any] = field(default_factory=dict)
    own_keys: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    fixed: Mapping[str, bool | int | str | None] = field(default_factory=dict, kw_only=True)
    equal_keys: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    bias: Setting = False  # of q, k, v
    out_bias: Setting = False
    mlp_bias: Setting = False
    head_norm: HeadNorm = "none"
    head_norm_if: str | None = None  # the key of config.json that decides whether there is one
    norm: Norm = field(default_factory=Norm)
    eps_key: str = "rms_norm_eps"
    norms: NormPlaces = "inputs"
    parallel_if: str | None = None  # the key of config.json by which the norms are `parallel_norms`
    parallel_norms: NormPlaces = "common"
    activation_key: str = "hidden_act"
    is_gated: bool = True
    mlp_width_key: str = "intermediate_size"
    windows: Windows = "none"
    window_if: str | None = None  # the key of config.json that decides whether there is a window
    rope_layers: RopeLayers = "all"
    is_interleaved: bool = False
    partial: float | str = 1.0  # default of `partial_rotary_factor`; a string: key of the number of elements instead
    alibi: Alibi = "none"  # in models without a rotary embedding
    position_offset: int | None = None  # of the first position in a table of learned ones; None: there is no table
    window_rope: Literal["same", "unscaled", "local"] = "same"  # in layers with a window; local: another base
    multipliers: Mapping[str, str] = field(default_factory=dict)  # field of ModelSpec or Attention -> key
    scales_embedding: bool = False  # by the square root of the width
    experts: ExpertsKind = "none"
    one_key_if: str | None = None  # the key of config.json by which all heads share one key
    is_grouped: bool = False  # queries, keys and values are stored in one tensor, by key-value head
    has_embedding_norm: bool = False
    has_output_bias: bool = False
    has_value_norm: bool = False
    has_layer_scalars: bool = False
    has_sinks: bool = False
    has_gate: bool = False  # on the outputs of attention
    is_latent: bool = False  # attention over compressed vectors
    index: IndexKind = "none"  # which pairs it rotates, where an index chooses the tokens of attention
    states: StatesKind = "none"  # of other layers
    has_weight_scales: bool = False  # multipliers.py reads them
    renames: Mapping[str, str] = field(default_factory=dict)
    is_transposed: bool = False
    fused_experts: FusedExperts | None = None
    ignored: tuple[str, ...] = ()
    has_draft_layers: bool = False
    text_in: str | None = None


_COMMON = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
_LLAMA = _COMMON | {
    "vocab_size": 32000,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MISTRAL = _LLAMA | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
_QWEN = _COMMON | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_OLMO = _LLAMA | {
    "vocab_size": 50304,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": 50279,
    "pad_token_id": 1,
}
_COHERE = _COMMON | {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
    "logit_scale": 0.0625,
    "bos_token_id": 5,
    "eos_token_id": 255001,
    "pad_token_id": 0,
}
_GLM = _COMMON | {
    "vocab_size": 151552,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "rms_norm_eps": 1.5625e-07,
    "max_position_embeddings": 131072,
    "attention_bias": True,
    "eos_token_id": [151329, 151336, 151338],
    "pad_token_id": 151329,
}
_GEMMA = _COMMON | {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_GEMMA_2 = _GEMMA | {
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA_3 = _GEMMA_2 | {
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
}
_COHERE_PARTS: dict[str, Any] = {
    "bias": "attention_bias",
    "out_bias": "attention_bias",
    "norm": Norm(kind="layer"),
    "eps_key": "layer_norm_eps",
    "norms": "common",
    "is_interleaved": True,
    "multipliers": {"logits_scale": "logit_scale"},
}
_GEMMA_PARTS: dict[str, Any] = {
    "bias": "attention_bias",
    "out_bias": "attention_bias",
    "norm": Norm(is_offset=True),
    "scales_embedding": True,
    "activation_key": "hidden_activation",
}
_SOFTCAPS = {"softcap": "attn_logit_softcapping", "logits_softcap": "final_logit_softcapping"}
_GEMMA_3_PARTS = _GEMMA_PARTS | {
    "norms": "both",
    "head_norm": "head",
    "windows": 6,
    "window_rope": "local",
    "multipliers": _SOFTCAPS,
}
_MIXTRAL_NAMES = {
    "block_sparse_moe.e_score_correction_bias": "mlp.gate.e_score_correction_bias",
    "block_sparse_moe.": "mlp.",
    ".w1.": ".gate_proj.",
    ".w2.": ".down_proj.",
    ".w3.": ".up_proj.",
}
_MULTIMODAL_NAMES = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head": "lm_head",
}
_TOWERS = (
    *(
        "model.vision_tower.",
        "model.multi_modal_projector.",
        "vision_tower.",
        "multi_modal_projector.",
        "model.visual.",
    ),
    *(
        "vision_model.",
        "model.vision_model.",
        "visual.",
        "model.audio_tower.",
        "model.embed_vision.",
        "model.embed_audio.",
    ),
)
_MTP = ("mtp.",)  # draft of several tokens at a time, of models that can be served without
_QWEN_3_5 = _COMMON | {
    "vocab_size": 248320,
    "intermediate_size": 12288,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_QWEN_3_5_PARTS: dict[str, Any] = {
    "bias": "attention_bias",
    "out_bias": "attention_bias",
    "head_norm": "head",
    "norm": Norm(is_offset=True),
    "partial": 0.25,
    "has_gate": True,
    "states": "gated_delta",
}
_SHARED_EXPERT = {".mlp.shared_expert.": ".mlp.shared_experts."}
_QWEN_3_5_MOE = _QWEN_3_5 | {
    "hidden_size": 2048,
    "intermediate_size": 512,  # of no layer: all have experts
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
}
_QWEN_3_5_MOE_PARTS: dict[str, Any] = _QWEN_3_5_PARTS | {
    "experts": "qwen",
    "fused_experts": "stacked",
    "renames": _SHARED_EXPERT,
    "ignored": (*_MTP, *_TOWERS),
}
_GRANITE_EXPERTS = {
    ".block_sparse_moe.input_linear.weight": ".mlp.experts.gate_up_proj",
    ".block_sparse_moe.output_linear.weight": ".mlp.experts.down_proj",
    ".block_sparse_moe.router.layer.": ".mlp.gate.",
}
_GRANITE_PARTS: dict[str, Any] = {
    "bias": "attention_bias",
    "out_bias": "attention_bias",
    "multipliers": {
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "scale": "attention_multiplier",
        "logits_divisor": "logits_scaling",
    },
}
_ERNIE = _LLAMA | {
    "vocab_size": 103424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "pad_token_id": 0,
}
_HUNYUAN = _LLAMA | {"vocab_size": 290943, "rms_norm_eps": 1e-5, "pad_token_id": 0}
_HUNYUAN_PARTS: dict[str, Any] = {
    "bias": "attention_bias",
    "out_bias": "attention_bias",
    "head_norm": "head_after_rope",
}
_HUNYUAN_NAMES = {".query_layernorm.": ".q_norm.", ".key_layernorm.": ".k_norm."}
_LLAMA_4 = _COMMON | {
    "vocab_size": 202048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "attention_chunk_size": 8192,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "use_qk_norm": True,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "attn_scale": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA_4_NAMES = {".feed_forward.": ".mlp.", ".mlp.router.": ".mlp.gate.", ".shared_expert.": ".shared_experts."}
_LLAMA_4_PARTS: dict[str, Any] = {
    "bias": "attention_bias",
    "out_bias": "attention_bias",
    "head_norm": "bare_after_rope",
    "head_norm_if": "use_qk_norm",
    "mlp_width_key": "intermediate_size_mlp",
    "windows": "chunks",
    "rope_layers": "listed",
    "is_interleaved": True,
    "experts": "llama4",
    "renames": _LLAMA_4_NAMES,
    "fused_experts": "columns",
    "ignored": _TOWERS,
}
_GEMMA_4 = _GEMMA | {
    "vocab_size": 262144,
    "num_hidden_layers": 30,
    "max_position_embeddings": 131072,
    "sliding_window": 512,
    "global_head_dim": 512,
    "hidden_size_per_layer_input": 256,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    },
}
_GEMMA_4_NAMES = {
    ".router.proj.": ".mlp.gate.",
    ".router.scale": ".mlp.gate.norm.weight",
    ".router.per_expert_scale": ".mlp.expert_scales",
    ".experts.": ".mlp.experts.",
}
_GEMMA_4_UNIFIED = _GEMMA_4 | {
    "max_position_embeddings": 262144,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
}
_GEMMA_4_PARTS: dict[str, Any] = {
    "bias": "attention_bias",
    "out_bias": "attention_bias",
    "fixed": {
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "use_bidirectional_attention": "vision",
    },
    "own_keys": {"num_experts_per_tok": "top_k_experts"},
    "head_norm": "head",
    "has_value_norm": True,
    "norms": "both",
    "has_layer_scalars": True,
    "scales_embedding": True,
    "activation_key": "hidden_activation",
    "windows": 6,
    "multipliers": {"logits_softcap": "final_logit_softcapping"},
    "experts": "gemma4",
    "renames": _GEMMA_4_NAMES,
    "fused_experts": "stacked",
    "ignored": _TOWERS,
}
_GPT = {
    "vocab_size": 50257,
    "hidden_size": 4096,
    "hidden_act": "gelu_new",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}
_GPT_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
}
_GPT_FIXED = {"add_cross_attention": False, "scale_attn_weights": True}
_GPT_NAMES = {
    "^transformer.": "",
    "^wte.": "model.embed_tokens.",
    "^wpe.": "model.embed_positions.",
    "^ln_f.": "model.norm.",
    "^h.": "model.layers.",
    ".ln_1.": ".input_layernorm.",
    ".ln_2.": ".post_attention_layernorm.",
    ".mlp.c_fc.": ".mlp.up_proj.",
    ".mlp.c_proj.": ".mlp.down_proj.",
    ".mlp.fc_in.": ".mlp.up_proj.",
    ".mlp.fc_out.": ".mlp.down_proj.",
}
_GPT_2 = _GPT | {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "tie_word_embeddings": True,
    "max_position_embeddings": 1024,
}
_GPT_2_PARTS: dict[str, Any] = {
    "bias": True,
    "out_bias": True,
    "mlp_bias": True,
    "own_keys": _GPT_KEYS,
    "norm": Norm(kind="layer", has_bias=True),
    "is_gated": False,
    "rope_layers": "none",
    "position_offset": 0,
    "renames": _GPT_NAMES | {".attn.c_attn.": ".self_attn.qkv_proj.", ".attn.c_proj.": ".self_attn.o_proj."},
}
_BLOOM_NAMES = {
    "^transformer.": "",
    "^word_embeddings.": "model.embed_tokens.",
    "^ln_f.": "model.norm.",
    "^h.": "model.layers.",
    ".self_attention.query_key_value.": ".self_attn.qkv_proj.",
    ".self_attention.dense.": ".self_attn.o_proj.",
    ".dense_h_to_4h.": ".up_proj.",
    ".dense_4h_to_h.": ".down_proj.",
}
_DEEPSEEK_V3 = _COMMON | {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_MAMBA2 = _COMMON | {
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
}
_BAMBA_NAMES = {
    ".feed_forward.": ".mlp.",
    ".pre_ff_layernorm.": ".post_attention_layernorm.",
    "model.final_layernorm.": "model.norm.",
}
FAMILIES = {
    "LlamaForCausalLM": Family(
        "llama", "Llama 2 and 3.x (text), and many derivatives", _LLAMA, "attention_bias", "attention_bias", "mlp_bias"
    ),
    "MistralForCausalLM": Family("mistral", "Mistral 7B, Nemo, Small; Devstral", _MISTRAL, windows="all"),
    "Ministral3ForCausalLM": Family(
        "ministral3",
        "Ministral 3",
        _MISTRAL
        | {
            "vocab_size": 131072,
            "num_hidden_layers": 34,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 262144,
            "sliding_window": None,
            "pad_token_id": 11,
        },
        windows="all",
    ),
    "Qwen2ForCausalLM": Family(
        "qwen2",
        "Qwen2, Qwen2.5, QwQ, distillations of DeepSeek-R1",
        _QWEN,
        bias=True,
        windows="last",
        window_if="use_sliding_window",
    ),
    "Qwen3ForCausalLM": Family(
        "qwen3",
        "Qwen3, dense",
        _QWEN | {"head_dim": 128},
        "attention_bias",
        "attention_bias",
        head_norm="head",
        windows="last",
        window_if="use_sliding_window",
    ),
    "Qwen3MoeForCausalLM": Family(
        "qwen3_moe",
        "Qwen3 30B-A3B, 235B-A22B, Qwen3-Coder",
        _QWEN
        | {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 24,
            "num_key_value_heads": 4,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
        "attention_bias",
        "attention_bias",
        head_norm="head",
        windows="all",
        window_if="use_sliding_window",
        experts="qwen",
    ),
    "MixtralForCausalLM": Family(
        "mixtral",
        "Mixtral 8x7B, 8x22B",
        _MISTRAL
        | {
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
            "rope_theta": 1e6,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        windows="all",
        experts="mixtral",
        renames=_MIXTRAL_NAMES,
    ),
    "MiniMaxM2ForCausalLM": Family(
        "minimax_m2",
        "MiniMax-M2",
        _COMMON
        | {
            "vocab_size": 200064,
            "hidden_size": 3072,
            "intermediate_size": 1536,
            "num_hidden_layers": 62,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 196608,
            "rope_theta": 5e6,
            "num_local_experts": 256,
            "num_experts_per_tok": 8,
            "bos_token_id": 200034,
            "eos_token_id": 200020,
        },
        head_norm="whole",
        partial="rotary_dim",
        experts="minimax",
        renames=_MIXTRAL_NAMES,
    ),
    "Glm4MoeForCausalLM": Family(
        "glm4_moe",
        "GLM-4.5 to 4.7",
        _COMMON
        | {
            "vocab_size": 151552,
            "intermediate_size": 10944,
            "num_hidden_layers": 46,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "n_routed_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
        },
        "attention_bias",
        head_norm="head",
        head_norm_if="use_qk_norm",
        partial=0.5,
        experts="deepseek",
        has_draft_layers=True,
    ),
    "DeepseekV2ForCausalLM": Family(
        "deepseek_v2",
        "DeepSeek-V2, V2-Lite, V2.5, Coder-V2",
        _LLAMA
        | {
            "vocab_size": 102400,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1407,
            "routed_scaling_factor": 1.0,
            "topk_method": "greedy",
            "first_k_dense_replace": 0,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
        },
        is_latent=True,
        experts="deepseek_v2",
    ),
    "DeepseekV3ForCausalLM": Family(
        "deepseek_v3",
        "DeepSeek-V3, V3.1, R1; Kimi K2; Moonlight",
        _DEEPSEEK_V3,
        is_latent=True,
        experts="deepseek",
        has_draft_layers=True,
    ),
    "DeepseekV32ForCausalLM": Family(
        "deepseek_v32",
        "DeepSeek-V3.2",
        _DEEPSEEK_V3
        | {"max_position_embeddings": 163840, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64},
        is_latent=True,
        index="halves",
        experts="deepseek",
        has_draft_layers=True,
    ),
    "GlmMoeDsaForCausalLM": Family(
        "glm_moe_dsa",
        "GLM-5",
        _DEEPSEEK_V3
        | {
            "vocab_size": 154880,
            "hidden_size": 6144,
            "intermediate_size": 12288,
            "num_hidden_layers": 78,
            "num_attention_heads": 64,
            "q_lora_rank": 2048,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "n_group": 1,
            "topk_group": 1,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 202752,
            "index_topk": 2048,
            "index_head_dim": 128,
            "index_n_heads": 32,
        },
        is_latent=True,
        index="interleaved",
        experts="deepseek",
        has_draft_layers=True,
    ),
    "Glm4MoeLiteForCausalLM": Family(
        "glm4_moe_lite",
        "GLM-4.7-Flash",
        _COMMON
        | {
            "vocab_size": 154880,
            "hidden_size": 2048,
            "intermediate_size": 10240,
            "moe_intermediate_size": 1536,
            "num_hidden_layers": 47,
            "num_attention_heads": 20,
            "n_shared_experts": 1,
            "n_routed_experts": 64,
            "num_experts_per_tok": 4,
            "routed_scaling_factor": 1.8,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
            "q_lora_rank": 768,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 202752,
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
        is_latent=True,
        experts="deepseek",
        has_draft_layers=True,
    ),
    "GptOssForCausalLM": Family(
        "gpt_oss",
        "gpt-oss",
        _COMMON
        | {
            "vocab_size": 201088,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "attention_bias": True,
            "sliding_window": 128,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "rope_theta": 150000.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        },
        "attention_bias",
        "attention_bias",
        windows=2,
        has_sinks=True,
        experts="gpt_oss",
        renames={"mlp.router.": "mlp.gate."},
        fused_experts="interleaved",
    ),
    "Phi3ForCausalLM": Family(
        "phi3",
        "Phi-3, Phi-4",
        _LLAMA
        | {
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "eos_token_id": 32000,
            "pad_token_id": 32000,
        },
        windows="all",
    ),
    "GraniteForCausalLM": Family("granite", "Granite 3", _LLAMA, mlp_bias="mlp_bias", **_GRANITE_PARTS),
    "Olmo2ForCausalLM": Family(
        "olmo2", "OLMo 2", _OLMO, "attention_bias", "attention_bias", head_norm="whole", norms="outputs"
    ),
    "Olmo3ForCausalLM": Family(
        "olmo3",
        "OLMo 3",
        _OLMO | {"sliding_window": 4096, "rope_theta": 500000.0},
        "attention_bias",
        "attention_bias",
        head_norm="whole",
        norms="outputs",
        windows=4,
        window_rope="unscaled",
    ),
    "SmolLM3ForCausalLM": Family(
        "smollm3",
        "SmolLM3",
        _LLAMA
        | {
            "vocab_size": 128256,
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "max_position_embeddings": 32768,
            "rope_theta": 2e6,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
            "pad_token_id": 128004,
        },
        "attention_bias",
        "attention_bias",
        "mlp_bias",
        windows="last",
        window_if="use_sliding_window",
        rope_layers="listed",
    ),
    "SeedOssForCausalLM": Family(
        "seed_oss",
        "Seed-OSS",
        _LLAMA
        | {
            "vocab_size": 155136,
            "intermediate_size": 27648,
            "num_hidden_layers": 64,
            "num_attention_heads": 80,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 524288,
            "attention_bias": True,
            "bos_token_id": 0,
            "pad_token_id": 1,
        },
        "attention_bias",
        "attention_out_bias",
        "mlp_bias",
    ),
    "Exaone4ForCausalLM": Family(
        "exaone4",
        "EXAONE 4",
        _LLAMA
        | {
            "vocab_size": 102400,
            "intermediate_size": 16384,
            "rms_norm_eps": 1e-5,
            "sliding_window": 4096,
            "bos_token_id": 0,
        },
        head_norm="head",
        norms="outputs",
        windows=4,
        rope_layers="windows_if_any",
    ),
    "Ernie4_5ForCausalLM": Family(
        "ernie4_5",
        "ERNIE 4.5, dense",
        _ERNIE,
        "use_bias",
        "use_bias",
        "use_bias",
        is_interleaved=True,
    ),
    "HunYuanDenseV1ForCausalLM": Family(
        "hunyuan_v1_dense", "Hunyuan, dense", _HUNYUAN, **_HUNYUAN_PARTS | {"renames": _HUNYUAN_NAMES}
    ),
    "Starcoder2ForCausalLM": Family(
        "starcoder2",
        "StarCoder2",
        _COMMON
        | {
            "vocab_size": 49152,
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_hidden_layers": 30,
            "num_attention_heads": 24,
            "num_key_value_heads": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
            "max_position_embeddings": 4096,
            "use_bias": True,
            "bos_token_id": 50256,
            "eos_token_id": 50256,
        },
        "use_bias",
        "use_bias",
        "use_bias",
        norm=Norm(kind="layer", has_bias=True),
        eps_key="norm_epsilon",
        is_gated=False,
        windows="all",
        renames={".mlp.c_fc.": ".mlp.up_proj.", ".mlp.c_proj.": ".mlp.down_proj."},
    ),
    "StableLmForCausalLM": Family(
        "stablelm",
        "StableLM",
        _COMMON
        | {
            "vocab_size": 50304,
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "num_key_value_heads": 32,
            "layer_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        "use_qkv_bias",
        norm=Norm(kind="layer", has_bias=True),
        eps_key="layer_norm_eps",
        parallel_if="use_parallel_residual",
        partial=0.25,
    ),
    "CohereForCausalLM": Family(
        "cohere", "Command R, Aya", _COHERE, head_norm="layer", head_norm_if="use_qk_norm", **_COHERE_PARTS
    ),
    "Cohere2ForCausalLM": Family(
        "cohere2",
        "Command R7B, Command A",
        _COHERE | {"head_dim": 128, "sliding_window": 4096},
        windows=4,
        rope_layers="windows",
        **_COHERE_PARTS,
    ),
    "GlmForCausalLM": Family("glm", "GLM-4 9B", _GLM, "attention_bias", is_interleaved=True, partial=0.5),
    "Glm4ForCausalLM": Family(
        "glm4",
        "GLM-4 0414",
        _GLM,
        "attention_bias",
        norms="both",
        is_interleaved=True,
        partial=0.5,
        renames={
            ".post_attention_layernorm.": ".pre_feedforward_layernorm.",
            ".post_self_attn_layernorm.": ".post_attention_layernorm.",
            ".post_mlp_layernorm.": ".post_feedforward_layernorm.",
        },
    ),
    "GemmaForCausalLM": Family(
        "gemma",
        "Gemma",
        _GEMMA
        | {
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
        },
        **_GEMMA_PARTS | {"activation_key": "hidden_act"},
    ),
    "Gemma2ForCausalLM": Family(
        "gemma2", "Gemma 2", _GEMMA_2, norms="both", windows=2, multipliers=_SOFTCAPS, **_GEMMA_PARTS
    ),
    "Gemma3ForCausalLM": Family("gemma3_text", "Gemma 3 1B", _GEMMA_3, **_GEMMA_3_PARTS),
    "Gemma3ForConditionalGeneration": Family(
        "gemma3",
        "Gemma 3 4B to 27B",
        _GEMMA_3,
        text_in="text_config",
        renames=_MULTIMODAL_NAMES,
        ignored=_TOWERS,
        **_GEMMA_3_PARTS,
    ),
    "Mistral3ForConditionalGeneration": Family(
        "mistral3",
        "Mistral Small 3.1 and later, Ministral 3 with vision",
        _MISTRAL | {"head_dim": 128, "sliding_window": None},
        windows="all",
        text_in="text_config",
        renames=_MULTIMODAL_NAMES,
        ignored=_TOWERS,
    ),
    "Qwen2_5_VLForConditionalGeneration": Family(
        "qwen2_5_vl",
        "Qwen2.5-VL",
        _QWEN,
        bias=True,
        windows="last",
        window_if="use_sliding_window",
        text_in="text_config",
        renames=_MULTIMODAL_NAMES,
        ignored=_TOWERS,
    ),
    "Qwen3VLForConditionalGeneration": Family(
        "qwen3_vl",
        "Qwen3-VL, dense",
        _QWEN | {"head_dim": 128, "sliding_window": None, "rope_theta": 5e6},
        "attention_bias",
        "attention_bias",
        head_norm="head",
        text_in="text_config",
        renames=_MULTIMODAL_NAMES,
        ignored=_TOWERS,
    ),
    "Qwen3NextForCausalLM": Family(
        "qwen3_next",
        "Qwen3-Next",
        _QWEN_3_5
        | {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 48,
            "num_key_value_heads": 2,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "norm_topk_prob": True,
        },
        experts="qwen",
        renames=_SHARED_EXPERT,
        ignored=_MTP,
        **_QWEN_3_5_PARTS | {"states": "grouped_gated_delta"},
    ),
    "Qwen3_5MoeForCausalLM": Family(
        "qwen3_5_moe_text", "Qwen3.5 with experts, text only", _QWEN_3_5_MOE, **_QWEN_3_5_MOE_PARTS
    ),
    "Qwen3_5MoeForConditionalGeneration": Family(
        "qwen3_5_moe",
        "Qwen3.5 with experts",
        _QWEN_3_5_MOE,
        text_in="text_config",
        **_QWEN_3_5_MOE_PARTS | {"renames": _MULTIMODAL_NAMES | _SHARED_EXPERT},
    ),
    "Qwen3_5ForCausalLM": Family(
        "qwen3_5_text", "Qwen3.5, text only", _QWEN_3_5, ignored=(*_MTP, *_TOWERS), **_QWEN_3_5_PARTS
    ),
    "Qwen3_5ForConditionalGeneration": Family(
        "qwen3_5",
        "Qwen3.5, dense",
        _QWEN_3_5,
        text_in="text_config",
        renames=_MULTIMODAL_NAMES,
        ignored=(*_MTP, *_TOWERS),
        **_QWEN_3_5_PARTS,
    ),
    "Lfm2ForCausalLM": Family(
        "lfm2",
        "LFM2",
        _COMMON
        | {
            "vocab_size": 65536,
            "hidden_size": 2560,
            "intermediate_size": 12288,
            "num_key_value_heads": 8,
            "norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "max_position_embeddings": 128000,
            "rope_theta": 1e6,
            "conv_L_cache": 3,
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.0,
            "block_multiple_of": 256,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        head_norm="head",
        eps_key="norm_eps",
        states="short_convolution",
        renames={
            "model.embedding_norm.": "model.norm.",
            ".operator_norm.": ".input_layernorm.",
            ".ffn_norm.": ".post_attention_layernorm.",
            ".feed_forward.w1.": ".mlp.gate_proj.",
            ".feed_forward.w2.": ".mlp.down_proj.",
            ".feed_forward.w3.": ".mlp.up_proj.",
            ".self_attn.out_proj.": ".self_attn.o_proj.",
            ".q_layernorm.": ".q_norm.",
            ".k_layernorm.": ".k_norm.",
        },
    ),
    "BambaForCausalLM": Family(
        "bamba",
        "Bamba",
        _MAMBA2
        | {
            "vocab_size": 128000,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 262144,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        "attention_bias",
        "attention_bias",
        "mlp_bias",
        partial=0.5,
        states="bamba",
        renames=_BAMBA_NAMES,
    ),
    "GraniteMoeHybridForCausalLM": Family(
        "granitemoehybrid",
        "Granite 4",
        _LLAMA | _MAMBA2 | {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024},
        rope_layers="position_embedding_type",
        mlp_width_key="shared_intermediate_size",
        experts="granite_hybrid",
        states="granite_hybrid",
        renames=_GRANITE_EXPERTS
        | {
            ".shared_mlp.input_linear.": ".mlp.shared_experts.gate_up_proj.",
            ".shared_mlp.output_linear.": ".mlp.shared_experts.down_proj.",
        },
        fused_experts="stacked",
        **_GRANITE_PARTS,
    ),
    "FalconH1ForCausalLM": Family(
        "falcon_h1",
        "Falcon-H1",
        _MAMBA2
        | {
            "vocab_size": 128000,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192,
            "mamba_d_ssm": 1024,
            "mamba_norm_before_gate": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        "attention_bias",
        "attention_bias",
        "mlp_bias",
        multipliers={"embedding_scale": "embedding_multiplier", "logits_scale": "lm_head_multiplier"},
        has_weight_scales=True,
        states="falcon_h1",
        renames=_BAMBA_NAMES,
    ),
    "NemotronHForCausalLM": Family(
        "nemotron_h",
        "Nemotron-H, Nemotron Nano 2 and 3",
        _COMMON
        | {
            "vocab_size": 131072,
            "intermediate_size": 21504,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "hidden_act": "relu2",
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "mamba_hidden_act": "silu",
            "n_groups": 8,
            "ssm_state_size": 128,
            "conv_kernel": 4,
            "use_conv_bias": True,
            "time_step_min": 0.001,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 7688,
            "moe_shared_expert_intermediate_size": 7688,
            "norm_topk_prob": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        mlp_bias="mlp_bias",
        own_keys={"hidden_act": "mlp_hidden_act", "rms_norm_eps": "layer_norm_epsilon"},
        is_gated=False,
        rope_layers="none",
        experts="nemotron_h",
        states="nemotron_h",
        renames={
            "backbone.": "model.",
            "model.embeddings.": "model.embed_tokens.",
            ".mixer.norm.": ".mamba_norm.",
            **{f".mixer.{part}_proj.": f".self_attn.{part}_proj." for part in "qkvo"},
            **{f".mixer.{part}": f".mamba.{part}" for part in ("in_proj", "out_proj", "conv1d", "A_log", "dt_bias")},
            ".mixer.D": ".mamba.D",
            ".mixer.": ".mlp.",
            ".norm.": ".input_layernorm.",
            "model.norm_f.": "model.norm.",
            ".mamba_norm.": ".mamba.norm.",
        },
        ignored=_MTP,
    ),
    "Mamba2ForCausalLM": Family(
        "mamba2",
        "Mamba-2, Codestral Mamba",
        {
            "vocab_size": 32768,
            "hidden_size": 4096,
            "num_hidden_layers": 64,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 32768,
            "num_heads": 128,
            "head_dim": 64,
            "state_size": 128,
            "n_groups": 8,
            "expand": 2,
            "conv_kernel": 4,
            "use_conv_bias": True,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "pad_token_id": 1,
        },
        own_keys={"rms_norm_eps": "layer_norm_epsilon"},
        states="mamba2",
        renames={
            "backbone.": "model.",
            "model.embeddings.": "model.embed_tokens.",
            "model.embedding.": "model.embed_tokens.",
            ".mixer.norm.": ".mamba_norm.",
            ".mixer.": ".mamba.",
            ".norm.": ".input_layernorm.",
            "model.norm_f.": "model.norm.",
            ".mamba_norm.": ".mamba.norm.",
        },
    ),
    "NemotronForCausalLM": Family(
        "nemotron",
        "Nemotron 3 8B, Nemotron 4, Minitron",
        _COMMON
        | {
            "vocab_size": 256000,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_attention_heads": 48,
            "head_dim": 128,
            "hidden_act": "relu2",
            "norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "bos_token_id": 2,
            "eos_token_id": 3,
        },
        "attention_bias",
        "attention_bias",
        "mlp_bias",
        norm=Norm(kind="layer", has_bias=True, is_offset=True),
        eps_key="norm_eps",
        is_gated=False,
        partial=0.5,
    ),
    "GPT2LMHeadModel": Family(
        "gpt2",
        "GPT-2",
        _GPT_2,
        fixed={**_GPT_FIXED, "scale_attn_by_inverse_layer_idx": False},
        is_transposed=True,
        **_GPT_2_PARTS,
    ),
    "GPTBigCodeForCausalLM": Family(
        "gpt_bigcode",
        "StarCoder, SantaCoder",
        _GPT_2 | {"hidden_act": "gelu_pytorch_tanh", "multi_query": True},
        fixed={**_GPT_FIXED, "multi_query": True},
        one_key_if="multi_query",
        **_GPT_2_PARTS,
    ),
    "GPTJForCausalLM": Family(
        "gptj",
        "GPT-J 6B",
        _GPT | {"vocab_size": 50400, "num_hidden_layers": 28, "num_attention_heads": 16, "rotary_dim": 64},
        mlp_bias=True,
        own_keys=_GPT_KEYS,
        norm=Norm(kind="layer", has_bias=True),
        norms="common",
        is_gated=False,
        is_interleaved=True,
        partial="rotary_dim",
        has_output_bias=True,
        renames=_GPT_NAMES | {".attn.out_proj.": ".self_attn.o_proj.", ".attn.": ".self_attn."},
    ),
    "OPTForCausalLM": Family(
        "opt",
        "OPT",
        {
            "vocab_size": 50272,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "hidden_act": "relu",
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "max_position_embeddings": 2048,
            "enable_bias": True,
            "pad_token_id": 1,
            "bos_token_id": 2,
            "eos_token_id": 2,
        },
        "enable_bias",
        "enable_bias",
        "enable_bias",
        own_keys={"intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
        equal_keys={"word_embed_proj_dim": "hidden_size"},
        fixed={
            "do_layer_norm_before": True,
            "_remove_final_layer_norm": False,
            "layer_norm_elementwise_affine": True,
        },
        norm=Norm(kind="layer", has_bias=True),
        is_gated=False,
        rope_layers="none",
        position_offset=2,
        renames={
            "^model.decoder.": "model.",
            "^decoder.": "model.",
            "^model.final_layer_norm.": "model.norm.",
            ".self_attn_layer_norm.": ".input_layernorm.",
            ".final_layer_norm.": ".post_attention_layernorm.",
            ".self_attn.out_proj.": ".self_attn.o_proj.",
            ".fc1.": ".mlp.up_proj.",
            ".fc2.": ".mlp.down_proj.",
        },
    ),
    "GPTNeoXForCausalLM": Family(
        "gpt_neox",
        "Pythia, GPT-NeoX, Dolly 2",
        {
            "vocab_size": 50432,
            "hidden_size": 6144,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "intermediate_size": 24576,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "max_position_embeddings": 2048,
            "use_parallel_residual": True,
            "attention_bias": True,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        "attention_bias",
        "attention_bias",
        True,
        own_keys={"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"},
        norm=Norm(kind="layer", has_bias=True),
        eps_key="layer_norm_eps",
        parallel_if="use_parallel_residual",
        parallel_norms="parallel",
        is_gated=False,
        partial=0.25,
        is_grouped=True,
        renames={
            "gpt_neox.embed_in.": "model.embed_tokens.",
            "gpt_neox.final_layer_norm.": "model.norm.",
            "gpt_neox.": "model.",
            "embed_out.": "lm_head.",
            ".attention.query_key_value.": ".self_attn.qkv_proj.",
            ".attention.dense.": ".self_attn.o_proj.",
            ".attention.": ".self_attn.",
            ".dense_h_to_4h.": ".up_proj.",
            ".dense_4h_to_h.": ".down_proj.",
        },
    ),
    "FalconForCausalLM": Family(
        "falcon",
        "Falcon 7B, 11B, 40B, 180B, RW",
        {
            "vocab_size": 65024,
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "hidden_act": "gelu",
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "max_position_embeddings": 2048,
            "multi_query": True,
            "parallel_attn": True,
            "bos_token_id": 11,
            "eos_token_id": 11,
        },
        "bias",
        "bias",
        "bias",
        own_keys={
            "num_key_value_heads": "num_kv_heads",
            "intermediate_size": "ffn_hidden_size",
            "hidden_act": "activation",
            "rms_norm_eps": "layer_norm_epsilon",
        },
        norm=Norm(kind="layer", has_bias=True),
        parallel_if="parallel_attn",
        is_gated=False,
        rope_layers="not_alibi",
        alibi="before_scale",
        one_key_if="multi_query",
        is_grouped=True,
        renames={**_BLOOM_NAMES, ".ln_attn.": ".input_layernorm.", ".ln_mlp.": ".post_attention_layernorm."},
    ),
    "BloomForCausalLM": Family(
        "bloom",
        "BLOOM, BLOOMZ",
        {
            "vocab_size": 250880,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 8,
            "hidden_act": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "max_position_embeddings": 2048,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        True,
        True,
        True,
        own_keys={
            "hidden_size": "n_embed",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "seq_length",
            "rms_norm_eps": "layer_norm_epsilon",
        },
        fixed={"apply_residual_connection_post_layernorm": False},
        norm=Norm(kind="layer", has_bias=True),
        is_gated=False,
        rope_layers="none",
        alibi="after_scale",
        is_grouped=True,
        has_embedding_norm=True,
        renames={**_BLOOM_NAMES, "^word_embeddings_layernorm.": "model.embed_norm."},
    ),
    "PhiForCausalLM": Family(
        "phi",
        "Phi-1, Phi-1.5, Phi-2",
        {
            "vocab_size": 51200,
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "intermediate_size": 8192,
            "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "max_position_embeddings": 2048,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        True,
        True,
        True,
        fixed={"qk_layernorm": False},
        norm=Norm(kind="layer", has_bias=True),
        eps_key="layer_norm_eps",
        norms="common",
        is_gated=False,
        partial=0.5,
        has_output_bias=True,
        renames={
            "^model.final_layernorm.": "model.norm.",
            ".self_attn.dense.": ".self_attn.o_proj.",
            ".fc1.": ".up_proj.",
            ".fc2.": ".down_proj.",
        },
    ),
    "Qwen2MoeForCausalLM": Family(
        "qwen2_moe",
        "Qwen1.5-MoE, Qwen2 57B-A14B",
        _QWEN
        | {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "qkv_bias": True,
        },
        "qkv_bias",
        windows=2,
        window_if="use_sliding_window",
        experts="qwen",
        renames=_SHARED_EXPERT,
    ),
    "OlmoeForCausalLM": Family(
        "olmoe",
        "OLMoE",
        _OLMO
        | {
            "hidden_size": 2048,
            "intermediate_size": 2048,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "max_position_embeddings": 4096,
            "num_experts": 64,
            "num_experts_per_tok": 8,
        },
        "attention_bias",
        "attention_bias",
        own_keys={"moe_intermediate_size": "intermediate_size"},
        fixed={"clip_qkv": None},
        head_norm="whole",
        experts="qwen",
    ),
    "Dots1ForCausalLM": Family(
        "dots1",
        "dots.llm1",
        _QWEN
        | {
            "vocab_size": 152064,
            "hidden_size": 4608,
            "intermediate_size": 10944,
            "num_hidden_layers": 62,
            "max_position_embeddings": 2048,
            "max_window_layers": 62,
            "moe_intermediate_size": 1408,
            "first_k_dense_replace": 0,
            "n_routed_experts": 128,
            "num_experts_per_tok": 6,
            "n_shared_experts": 2,
        },
        "attention_bias",
        "attention_bias",
        head_norm="head",
        windows="last",
        experts="deepseek",
    ),
    "HYV3ForCausalLM": Family(
        "hy_v3",
        "Hunyuan 3 with experts",
        _COMMON
        | {
            "vocab_size": 120832,
            "intermediate_size": 13312,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "rope_theta": 11158840.0,
            "n_routed_experts": 192,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "moe_intermediate_size": 1536,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.826,
        },
        "attention_bias",
        "attention_bias",
        "mlp_bias",
        own_keys={
            "n_routed_experts": "num_experts",
            "n_shared_experts": "num_shared_experts",
            "routed_scaling_factor": "router_scaling_factor",
        },
        head_norm="head",
        experts="deepseek",
        renames={
            ".mlp.router.gate.": ".mlp.gate.",
            ".mlp.expert_bias": ".mlp.gate.e_score_correction_bias",
            ".mlp.e_score_correction_bias": ".mlp.gate.e_score_correction_bias",
            ".mlp.shared_mlp.": ".mlp.shared_experts.",
        },
    ),
    "HunYuanMoEV1ForCausalLM": Family(
        "hunyuan_v1_moe",
        "Hunyuan A13B, Hunyuan-Large",
        _HUNYUAN | {"num_experts": 1, "num_experts_per_tok": 1},
        own_keys={"num_experts_per_tok": "moe_topk"},
        experts="hunyuan",
        **_HUNYUAN_PARTS | {"renames": _HUNYUAN_NAMES | {".gate.wg.": ".gate.", ".shared_mlp.": ".shared_experts."}},
    ),
    "Ernie4_5_MoeForCausalLM": Family(
        "ernie4_5_moe",
        "ERNIE 4.5 with experts",
        _ERNIE
        | {
            "hidden_size": 2560,
            "intermediate_size": 12288,
            "num_hidden_layers": 28,
            "num_attention_heads": 20,
            "num_key_value_heads": 4,
            "num_experts": 64,
            "num_experts_per_tok": 6,
            "moe_num_shared_experts": 2,
            "moe_intermediate_size": 1536,
            "moe_layer_start_index": 1,
        },
        "use_bias",
        "use_bias",
        own_keys={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
        fixed={"use_bias": False},
        is_interleaved=True,
        experts="ernie",
        renames={".mlp.moe_statics.": ".mlp.gate."},
        ignored=("model.mtp_",),
    ),
    "GraniteMoeForCausalLM": Family(
        "granitemoe",
        "Granite 3 with experts",
        _LLAMA | {"num_local_experts": 8, "num_experts_per_tok": 2},
        experts="granite",
        renames=_GRANITE_EXPERTS,
        fused_experts="stacked",
        **_GRANITE_PARTS,
    ),
    "Llama4ForCausalLM": Family("llama4_text", "Llama 4, text only", _LLAMA_4, **_LLAMA_4_PARTS),
    "Llama4ForConditionalGeneration": Family(
        "llama4",
        "Llama 4 Scout, Maverick",
        _LLAMA_4,
        text_in="text_config",
        **_LLAMA_4_PARTS | {"renames": _MULTIMODAL_NAMES | _LLAMA_4_NAMES},
    ),
    "Gemma4ForCausalLM": Family("gemma4_text", "Gemma 4, text only", _GEMMA_4, **_GEMMA_4_PARTS),
    "Gemma4ForConditionalGeneration": Family(
        "gemma4",
        "Gemma 4 31B, 26B-A4B",
        _GEMMA_4,
        text_in="text_config",
        **_GEMMA_4_PARTS | {"renames": _MULTIMODAL_NAMES | _GEMMA_4_NAMES},
    ),
    "Gemma4UnifiedForCausalLM": Family(
        "gemma4_unified_text", "Gemma 4 12B, text only", _GEMMA_4_UNIFIED, **_GEMMA_4_PARTS
    ),
    "Gemma4UnifiedForConditionalGeneration": Family(
        "gemma4_unified",
        "Gemma 4 12B",
        _GEMMA_4_UNIFIED,
        text_in="text_config",
        **_GEMMA_4_PARTS | {"renames": _MULTIMODAL_NAMES},
    ),
}
