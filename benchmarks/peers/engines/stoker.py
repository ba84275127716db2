"""Stoker's offline interface, with the weights of a checkpoint."""

from __future__ import annotations

from typing import Any

from stoker import LLM, SamplingParams, __version__

from ...request import Request


class Engine:
    def __init__(self, weights: str, *, kv_bytes: int, max_len: int, streams: int, cores: int, **options: Any) -> None:
        self.llm = LLM(
            weights,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=max_len,
            max_num_seqs=streams,
            kv_cache_memory_bytes=kv_bytes,
            **options,
        )

    def info(self) -> dict[str, Any]:
        return {"version": __version__, "kv_bytes": self.llm.info.kv_cache_bytes}

    def generate(self, requests: list[Request]) -> list[int]:
        """Serves all requests concurrently; returns the number of tokens of each."""
        outputs = self.llm.generate(
            [{"prompt_token_ids": request.prompt} for request in requests],
            [SamplingParams(temperature=0, max_tokens=request.output, ignore_eos=True) for request in requests],
            use_tqdm=False,
        )
        return [len(output.outputs[0].token_ids) for output in outputs]
