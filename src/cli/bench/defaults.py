"""Defaults of the flags of each kind of measurement. Imports nothing else: help texts show them."""

from __future__ import annotations

from typing import Any, Literal

from ..defaults import DEFAULT_URL

_SIZES = {"input_len": 128, "output_len": 128, "num_warmup": 1, "seed": 0}
_MANY = {**_SIZES, "num_prompts": 100, "length_spread": 0, "prefix_len": 0}
_SERVER = {"url": DEFAULT_URL, "model_name": None, "api_key": None, "request_rate": None, "max_concurrency": 32}
Kind = Literal["latency", "throughput", "serve", "startup", "spec", "embed"]
DEFAULTS: dict[Kind, dict[str, Any]] = {
    "latency": {**_SIZES, "batch_size": 8, "num_iters": 10},
    "throughput": _MANY,
    "serve": {
        **_MANY,
        **_SERVER,
        "endpoint": "chat",
        "ignore_eos": False,
    },
    "startup": {"num_runs": 3},
    "spec": {
        "text": None,
        "rows": "1,4,16",
        "draft_lens": "2,4,8,16",
        "input_len": 1024,
        "output_len": 256,
        "num_iters": 3,
    },
    "embed": {
        **_SERVER,
        "input_len": 128,
        "length_spread": 0,
        "batch_size": 8,
        "num_prompts": 100,
        "num_warmup": 1,
        "seed": 0,
    },
}
