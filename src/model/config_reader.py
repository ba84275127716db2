"""config.json read leniently: any spelling of a key, and a list of what had to be assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config_json import LARGEST, LIMITS, ModelConfigError, shown

# Keys that other families use for the same value, in the order in which they are looked up.
_SPELLINGS = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "n_embed", "dim"),
    "num_hidden_layers": (
        "num_hidden_layers",
        "n_layer",
        "n_layers",
        "num_layers",
        "decoder_layers",
        "num_decoder_layers",
    ),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv", "kv_n_heads"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "decoder_ffn_dim"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position_embeddings": (
        *("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx"),
        *("max_target_positions", "model_max_length"),
    ),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels", "head_size", "d_kv"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", "moe_topk"),
}


class ConfigReader:
    """config.json under any spelling, and a list of what had to be assumed."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.assumptions: list[str] = []

    def get(self, key: str) -> Any:
        names = _SPELLINGS.get(key, (key,))
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def number(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 0. If it is missing or of another type, the default is assumed and noted.

        Raises ModelConfigError above the limit of config_json.py.
        """
        value = self.get(key)
        if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
            value = max(value)  # one per layer: the plan takes the largest
            self.assumptions.append(f"`{key}` differs by layer; the largest, {value}, was taken for all")
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            if value > (most := LIMITS.get(key, LARGEST)):
                raise ModelConfigError(f"`{key}` is {shown(value)}; it must be a whole number of at most {most}")
            return value
        if value is not None:
            self.assumptions.append(f"`{key}` is {shown(value)}, which is no whole number; {default or 0} was taken")
        elif default is None:
            self.assumptions.append(f"config.json has no `{key}`; 0 was taken")
        return default or 0

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key)
        return value if isinstance(value, bool) else default

    def text(self, key: str) -> str:
        """Text of a key; empty if it is missing or of another type."""
        value = self.get(key)
        return value if isinstance(value, str) else ""

    def layers(self, key: str) -> list[Any] | None:
        """A list with an entry per layer, or of the indices of layers. Raises ModelConfigError for a longer one."""
        value, most = self.get(key), LIMITS["num_hidden_layers"]
        if not isinstance(value, list):
            return None
        if len(value) > most:
            raise ModelConfigError(f"`{key}` has {len(value)} entries; a model has at most {most} layers")
        return value

    def part(self, key: str) -> ConfigReader | None:
        """An object in it, with the same list of assumptions."""
        value = self.get(key)
        if not isinstance(value, Mapping):
            return None
        part = ConfigReader(value)
        part.assumptions = self.assumptions
        return part
