"""JSON Schema of `model.pooler_config`. Rules R542 and R543 are about the keys that have no effect, or another name."""

from __future__ import annotations

from typing import Any

RENAMED = {"normalize": "use_activation", "softmax": "use_activation", "activation": "use_activation"}
RENAMED |= {"logit_bias": "logit_mean", "logit_scale": "logit_sigma"}
_PARTS = "a text that is longer than `max_model_len` is refused or cut, and not divided"
NOT_DONE = {
    "enable_chunked_processing": _PARTS,
    "max_embed_len": _PARTS,
    "returned_token_ids": "results have all labels; clients choose among them",
    "enable_flash_late_interaction": "vectors of tokens are compared where a request is answered, without a GPU",
}

POOLER_CONFIG: dict[str, Any] = {
    "type": "object",
    "properties": {
        "task": {"enum": ["embed", "classify", "token_embed", "token_classify", "sparse"]},
        "pooling_type": {"enum": ["CLS", "LAST", "MEAN", "ALL", "STEP"]},
        "seq_pooling_type": {"enum": ["CLS", "LAST", "MEAN"]},
        "tok_pooling_type": {"enum": ["ALL", "STEP"]},
        "use_activation": {"type": "boolean"},
        "dimensions": {"type": "integer", "minimum": 1},
        "logit_mean": {"type": "number"},
        "logit_sigma": {"type": "number", "exclusiveMinimum": 0},
        "step_tag_id": {"type": "integer", "minimum": 0},
        **{key: {} for key in (*RENAMED, *NOT_DONE)},
    },
    "additionalProperties": False,
}
