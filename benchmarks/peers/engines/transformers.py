"""transformers' `generate` as in ../../engines/transformers.py, with the weights of a checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, __version__

from ...engines.transformers import Transformers
from ...request import Request


class Engine(Transformers):
    def __init__(self, weights: str, *, kv_bytes: int, max_len: int, streams: int, cores: int) -> None:
        torch.set_num_threads(cores)
        self.model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.bfloat16, attn_implementation="sdpa")
        self.model.eval().generation_config.eos_token_id = None

    def info(self) -> dict[str, Any]:
        return {"version": __version__, "kv_bytes": "as needed"}

    def generate(self, requests: list[Request]) -> list[int]:  # type: ignore[override]
        super().generate(requests)
        return [request.output for request in requests]
