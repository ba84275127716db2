"""transformers' `generate`: requests of different lengths run as one left-padded batch, the usual way to use it."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ..workload import Request


class Transformers:
    def __init__(self, model: str) -> None:
        config = AutoConfig.from_pretrained(model)
        torch.manual_seed(0)
        self.model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
        self.model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def generate(self, requests: list[Request]) -> int:
        """Serves all requests as one batch; returns the number of requested tokens. Tokens that a row generates beyond
        its request, until the longest row ends, are not counted."""
        width = max(len(request.prompt) for request in requests)
        ids = torch.zeros(len(requests), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(requests):
            ids[row, width - len(request.prompt) :] = torch.tensor(request.prompt)
            mask[row, width - len(request.prompt) :] = 1
        longest = max(request.output for request in requests)
        out = self.model.generate(
            ids, attention_mask=mask, max_new_tokens=longest, min_new_tokens=longest, do_sample=False, pad_token_id=0
        )
        assert out.shape[1] == width + longest
        return sum(request.output for request in requests)

    def memory_plan(self) -> dict[str, int]:
        weights = sum(p.numel() * p.element_size() for p in self.model.parameters())
        return {"weights_bytes": weights, "kv_cache_bytes": 0}
