"""Models of state spaces without attention: Mamba and Mamba-2."""

from __future__ import annotations

from collections.abc import Mapping

from .common import MAMBA, MAMBA_NAMES
from .family import Family

FAMILIES: Mapping[str, Family] = {
    "MambaForCausalLM": Family(
        "mamba",
        "Mamba",
        MAMBA,
        own_keys={"rms_norm_eps": "layer_norm_epsilon"},
        states="mamba",
        renames=MAMBA_NAMES,
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
}
