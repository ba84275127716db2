"""JSON Schema of `model.rope_scaling`: the keys that config.json has for it. Rule R282 checks `rope_type`."""

from __future__ import annotations

from typing import Any

_ABOVE_ZERO = {"type": "number", "exclusiveMinimum": 0}

ROPE_SCALING: dict[str, Any] = {
    "type": "object",
    "properties": {
        "rope_type": {"type": "string"},
        "type": {"type": "string"},
        "factor": {"type": "number", "minimum": 1},
        "original_max_position_embeddings": {"type": "integer", "minimum": 1},
        "low_freq_factor": _ABOVE_ZERO,
        "high_freq_factor": _ABOVE_ZERO,
        "beta_fast": _ABOVE_ZERO,
        "beta_slow": _ABOVE_ZERO,
        "truncate": {"type": "boolean"},
        "attention_factor": _ABOVE_ZERO,
        "mscale": {"type": "number"},
        "mscale_all_dim": {"type": "number"},
        "rope_theta": _ABOVE_ZERO,
        "partial_rotary_factor": _ABOVE_ZERO,
    },
    "additionalProperties": False,
}
