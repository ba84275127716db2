"""Stoker's offline interface, `stoker.LLM`."""

from __future__ import annotations

from typing import Any

from stoker import LLM, SamplingParams

from ..workload import Request


class Stoker:
    def __init__(self, model: str, **options: Any) -> None:
        self.llm = LLM(
            model,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=4096,
            max_num_seqs=32,
            kv_cache_memory_bytes=2 * 1024**3,
            **options,
        )

    def generate(self, requests: list[Request]) -> int:
        """Serves all requests concurrently; returns the number of tokens generated."""
        outputs = self.llm.generate(
            [{"prompt_token_ids": request.prompt} for request in requests],
            [SamplingParams(temperature=0, max_tokens=request.output, ignore_eos=True) for request in requests],
            use_tqdm=False,
        )
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def memory_plan(self) -> dict[str, int]:
        info = self.llm.info
        return {"weights_bytes": info.weights_bytes, "kv_cache_bytes": info.kv_cache_bytes}
