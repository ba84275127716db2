"""Values of config.json under keys that the family names, or that the family fixes.

A family whose `bias` is "attention_bias" has biases if config.json says so under this key; with True it always has:

    flag_of(config, family.bias)
"""

from __future__ import annotations

from .config_json import ConfigJson
from .families import Family, Setting

MAX_SCALE = 1e6


def flag_of(config: ConfigJson, setting: Setting) -> bool:
    return config.flag(setting) if isinstance(setting, str) else setting


def is_causal(config: ConfigJson, family: Family) -> bool:
    """Whether tokens see only those before them. Other values of the second key are about tokens of images."""
    return family.is_causal and config.flag("is_causal", True) and config.get("use_bidirectional_attention") is not True


def multiplier_of(config: ConfigJson, family: Family, name: str) -> float:
    """A factor of ModelSpec or Attention; 1 if the family or the file has none."""
    key = family.multipliers.get(name)
    return 1.0 if key is None else config.number(key, 0, MAX_SCALE, 1.0)


def limit_of(config: ConfigJson, family: Family, name: str) -> float | None:
    """The same for a value that can be missing."""
    key = family.multipliers.get(name)
    return None if key is None or config.get(key) is None else config.number(key, 0, MAX_SCALE)
