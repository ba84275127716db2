"""vLLM's offline interface on a CPU. contest.py sets its KV cache size and cores by environment variables: without them
it runs on one core."""

from __future__ import annotations

import os
from typing import Any

from vllm import LLM, SamplingParams, __version__

from ...request import Request


class Engine:
    def __init__(self, weights: str, *, kv_bytes: int, max_len: int, streams: int, cores: int, **options: Any) -> None:
        self.llm = LLM(weights, dtype="bfloat16", max_model_len=max_len, max_num_seqs=streams, **options)

    def info(self) -> dict[str, Any]:
        return {"version": __version__, "kv_bytes": int(os.environ["VLLM_CPU_KVCACHE_SPACE"]) * 1024**3}

    def generate(self, requests: list[Request]) -> list[int]:
        """Serves all requests concurrently; returns the number of tokens of each."""
        params = [
            SamplingParams(temperature=0, max_tokens=request.output, ignore_eos=True, detokenize=False)
            for request in requests
        ]
        prompts = [{"prompt_token_ids": request.prompt} for request in requests]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]
