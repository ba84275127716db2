"""TII: Falcon."""

from __future__ import annotations

from collections.abc import Mapping

from ..spec import Norm
from .common import BAMBA_NAMES, BLOOM_NAMES, MAMBA, MAMBA2, MAMBA_NAMES
from .family import Family

FAMILIES: Mapping[str, Family] = {
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
        bias="bias",
        out_bias="bias",
        mlp_bias="bias",
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
        renames={**BLOOM_NAMES, ".ln_attn.": ".input_layernorm.", ".ln_mlp.": ".post_attention_layernorm."},
    ),
    "FalconMambaForCausalLM": Family(
        "falcon_mamba",
        "Falcon Mamba",
        MAMBA | {"mixer_rms_eps": 1e-6},
        own_keys={"rms_norm_eps": "layer_norm_epsilon"},
        states="falcon_mamba",
        renames=MAMBA_NAMES,
    ),
    "FalconH1ForCausalLM": Family(
        "falcon_h1",
        "Falcon-H1",
        MAMBA2
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
        bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        multipliers={"embedding_scale": "embedding_multiplier", "logits_scale": "lm_head_multiplier"},
        has_weight_scales=True,
        states="falcon_h1",
        renames=BAMBA_NAMES,
    ),
}
